"""The shell script by which a host changes its containerd's imports, and takes the change back by itself.

The configuration never leaves the host, since it may hold credentials.
"""

from __future__ import annotations

from gpu_provision.facts.runtimes import ContainerRuntime
from gpu_provision.hosts import detached, runtime_shell
from gpu_provision.hosts.originals import KEEP

# Adds $PATTERN as the last of the top-level imports, since later files count more; reads the file twice.
_AWK = r"""
function added(line, from,    i, c) {
  for (i = from; i <= length(line); i++) {
    c = substr(line, i, 1)
    if (quote != "") { if (c == quote) quote = "" }
    else if (c == "#") return line
    else if (c == "]") {
      open = 0
      return substr(line, 1, i - 1) (last == "[" ? "" : last == "," ? " " : ", ") item substr(line, i)
    }
    else if (c == "\"" || c == "\047") quote = c
    if (c != " " && c != "\t") last = c
  }
  return line
}
BEGIN { item = "\"" ENVIRON["PATTERN"] "\"" }
NR == FNR && /^[ \t]*\[/ { table = 1 }
NR == FNR && !table && /^[ \t]*imports[ \t]*=/ { imports = FNR }
NR == FNR && !table && /^[ \t]*version[ \t]*=/ { version = FNR }
NR == FNR { next }
FNR == imports { open = 1; print added($0, index($0, "[")); next }
open { print added($0, 1); next }
{ print }
!imports && FNR == version { print "imports = [" item "]" }
"""

_SCRIPT = r"""
target=$(readlink -f "$config") || target=$config
fresh=$target.gpu-provision-new
old=$target.gpu-provision-old
clean_up() { rm -f "$fresh"; }
accepts() { timeout 30 "$binary" --config "$1" config dump >/dev/null 2>"$said"; }
take_back() {
  trap '' HUP INT TERM
  evidence=$(complaint)
  if [ -e "$old" ]; then mv "$old" "$target"; else rm -f "$target"; fi
  systemctl reset-failed "$unit" 2>/dev/null
  restart
  recovers && end restored "$evidence"
  end dead "$(complaint)"
}

answers || end down "$(complaint)"
if [ -e "$target" ]; then
  accepts "$target" || end rejected-old "$(last)"
  PATTERN=$pattern awk "$edit" "$target" "$target" >"$work/edited" || end rejected-new "awk cannot edit $target"
  { cp -a "$target" "$old" && cp -a "$target" "$fresh" && cat "$work/edited" >"$fresh"; } 2>"$said" || {
    rm -f "$old"
    end not-kept "$(last)"
  }
  rm -f "$work/edited"
else
  fresh=$work/config.toml
  schema=$(timeout 30 "$binary" config default 2>/dev/null | sed -nE 's/^version *= *([0-9]+).*/\1/p' | head -n 1)
  [ -n "$schema" ] || end rejected-new "$binary config default names no version"
  printf '# Written by gpu-provision\nversion = %s\nimports = ["%s"]\n' "$schema" "$pattern" >"$fresh"
  chmod 644 "$fresh"
  rm -f "$old"
fi
accepts "$fresh" || { evidence=$(last); rm -f "$old"; end rejected-new "$evidence"; }
keep "$target" 2>"$said" || { rm -f "$old"; end not-kept "$(last)"; }
trap take_back HUP INT TERM
{ (umask 022 && mkdir -p "${target%/*}") && mv "$fresh" "$target"; } 2>"$said" || take_back
! command -v restorecon >/dev/null || restorecon "$target"
restart && recovers || take_back
trap '' HUP INT TERM
rm -f "$old"
end changed
"""


def start(runtime: ContainerRuntime, *, pattern: str, patience: int) -> str:
    """Return the command that starts the script and returns at once.

    Args:
        runtime: A containerd; its configuration need not exist.
        pattern: What its imports shall take in.
        patience: Seconds that it may take to answer after a restart.
    """
    variables = {**runtime_shell.variables(runtime, patience), "pattern": pattern, "edit": _AWK}
    return detached.start(KEEP + runtime_shell.FUNCTIONS + _SCRIPT, variables)


_RESTART = r"""
restart && recovers && end changed
end dead "$(complaint)"
"""


def restart(runtime: ContainerRuntime, *, patience: int) -> str:
    """Return the command that starts a restart of the runtime, with what is on disk, and returns at once."""
    return detached.start(runtime_shell.FUNCTIONS + _RESTART, runtime_shell.variables(runtime, patience))
