"""Shell functions for scripts that restart a container runtime: whether it answers, and why it does not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pyinfra.api.command import StringCommand

from gpu_provision.hosts import background_script
from gpu_provision.hosts.changes.runtime_environment import EnvironmentChange, HostFile
from gpu_provision.hosts.facts.runtime import ContainerRuntime
from gpu_provision.hosts.facts.section import BY_ROOT
from gpu_provision.hosts.operations.backups import KEEP

# Only lines that tell of errors are quoted: at its start containerd logs its configuration, credentials and all.
FUNCTIONS = (
    f"\n{BY_ROOT}"
    r"""
ask_containerd() {
  timeout 10 "$ctr" --address "$socket" --connect-timeout 5s plugins ls >"$said" 2>&1 &&
    awk '$1 == "io.containerd.grpc.v1" && $2 == "cri" { state = $NF } END { exit state != "ok" }' "$said"
}
ask_crio() {
  if command -v crictl >/dev/null; then
    timeout 10 crictl --runtime-endpoint "unix://$socket" version >"$said" 2>&1
  else
    systemctl is-active "$unit" >"$said" && [ -S "$socket" ]
  fi
}
answers() {
  case $kind in
    containerd) ask_containerd ;;
    cri-o) ask_crio ;;
    docker) timeout 10 docker version >"$said" 2>&1 ;;
  esac
}
recovers() {
  deadline=$(($(date +%s) + patience))
  while ! answers; do
    [ "$(date +%s)" -lt "$deadline" ] || return 1
    sleep 1
  done
  sleep 2
  answers
}
complaint() {
  line=$(journalctl -u "$unit" -n 50 -o cat --no-pager 2>/dev/null |
    grep -E 'level="?(error|fatal)|^(containerd|crio|dockerd): |failed to load plugin [^ ]*\.cri"' | tail -n 1)
  [ -n "$line" ] || line=$(grep -E '^io.containerd.grpc.v1 +cri ' "$said")
  [ -n "$line" ] || line=$(last)
  printf '%s\n' "${line:-$kind does not answer}"
}
restart() { timeout 90 systemctl restart "$unit" >"$said" 2>&1; }

option() { tr '\0' '\n' | sed -nE '/^(-c|--config)$/{n; p; }; s/^--config=//p' | head -n 1; }
case $kind in
  cri-o) program=crio unit=crio.service ;;
  docker) program=dockerd unit=docker.service ;;
  *) program=containerd unit=containerd.service ;;
esac
for process in /proc/[0-9]*; do
  read -r name 2>/dev/null <"$process/comm" && [ "$name" = "$program" ] && by_root "$process" || continue
  own=$(option <"$process/cmdline")
  [ "$kind" != containerd ] || [ "${own:-/etc/containerd/config.toml}" = "$config" ] || continue
  found=$(sed -nE 's|.*/([^/]+\.service)(/.*)?$|\1|p' "$process/cgroup" | head -n 1)
  unit=${found:-$unit}
  break
done
ctr=${binary%/*}/ctr
[ "$kind" != containerd ] || [ -x "$ctr" ] || ctr=$(command -v ctr) || end no-tool "ctr is not installed"
[ -z "$kind" ] || command -v systemctl >/dev/null || end no-tool "systemctl is not installed"
"""
)
"""``answers``, ``recovers``, ``restart``, ``complaint``, and ``$unit``; without ``$kind`` there is no runtime."""


def runtime_variables(runtime: ContainerRuntime | None, patience: int) -> Mapping[str, str]:
    """Return the variables that the functions read.

    Args:
        runtime: None for none.
        patience: Seconds that it may take to answer after a restart.
    """
    found = runtime or ContainerRuntime(kind="")
    return {
        "kind": found.kind,
        "config": found.config,
        "binary": found.binary,
        "socket": found.socket,
        "patience": str(patience),
    }


def longest_seconds(patience: int) -> int:
    """Return how long a script may take: two restarts of 90 seconds, two waits, and what comes between."""
    return 2 * 90 + 2 * patience + 180


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

_IMPORTS_SCRIPT = r"""
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


def start_imports(runtime: ContainerRuntime, *, pattern: str, patience: int) -> str:
    """Return the command that starts the script and returns at once.

    Args:
        runtime: A containerd; its configuration need not exist.
        pattern: What its imports shall take in.
        patience: Seconds that it may take to answer after a restart.
    """
    variables = {**runtime_variables(runtime, patience), "pattern": pattern, "edit": _AWK}
    return background_script.start(KEEP + FUNCTIONS + _IMPORTS_SCRIPT, variables)


_RESTART = r"""
restart && recovers && end changed
end dead "$(complaint)"
"""


def restart_runtime(runtime: ContainerRuntime, *, patience: int) -> str:
    """Return the command that starts a restart of the runtime, with what is on disk, and returns at once."""
    return background_script.start(FUNCTIONS + _RESTART, runtime_variables(runtime, patience))


_ENVIRONMENT_SCRIPT = r"""
files=$work/files
rm -rf "$files" && mkdir -p "$files/new" "$files/old" || end not-kept "no room in $work"
: >"$files/done"
clean_up() { rm -rf "$files" "$work/input"; }
awk -v folder="$files/new" '
  /^[+] / { if (file) close(file); file = folder "/" ++count; printf "" >file; print "put", $2, $3, count; next }
  /^- / { print "remove", 0, $2, ++count; next }
  { print substr($0, 2) >file }
' "$work/input" >"$files/todo" 2>"$said" || end not-kept "$(last)"

place() {
  fresh=${2%/*}/.${2##*/}.gpu-provision
  (umask 022 && mkdir -p "${2%/*}") && rm -f "$fresh" && cp -p "$1" "$fresh" && mv -f "$fresh" "$2" && label "$2"
}
change() {
  while read -r what mode path number; do
    keep "$path" || return
    if [ -e "$path" ] || [ -L "$path" ]; then cp -pP "$path" "$files/old/$number" || return; fi
    echo "$path $number" >>"$files/done" || return
    case $what in
      put) chmod "$mode" "$files/new/$number" && place "$files/new/$number" "$path" || return ;;
      remove) rm -f "$path" || return ;;
    esac
  done <"$files/todo"
}
undo() {
  while read -r path number; do
    if [ -e "$files/old/$number" ] || [ -L "$files/old/$number" ]; then
      rm -f "$path" && cp -pP "$files/old/$number" "$path"
    else
      rm -f "$path"
    fi
  done <"$files/done"
}
tell() {
  { [ -z "$units" ] || systemctl daemon-reload; } >"$said" 2>&1 &&
    { [ -z "$trust" ] || timeout 120 $trust; } >>"$said" 2>&1
}
take_back() {
  trap '' HUP INT TERM
  evidence=$(complaint)
  undo
  tell
  systemctl reset-failed "$unit" 2>/dev/null
  restart
  recovers && end restored "$evidence"
  end dead "$(complaint)"
}

if [ "$kind" = docker ] && [ "$(timeout 10 docker info --format '{{.LiveRestoreEnabled}}')" != true ]; then
  end no-tool "without live-restore in its daemon.json, docker stops all containers when it is restarted"
fi
[ -z "$kind" ] || answers || end down "$(complaint)"
trap 'undo; tell; end not-kept "ended from outside"' HUP INT TERM
change 2>"$said" || { evidence=$(last); undo; end not-kept "$evidence"; }
tell || { evidence=$(last); undo; tell; end rejected-new "$evidence"; }
[ -n "$kind" ] || end changed
trap take_back HUP INT TERM
restart && recovers || take_back
trap '' HUP INT TERM
end changed
"""


def start_environment(change: EnvironmentChange, *, patience: int) -> StringCommand:
    """Return the command that starts the script and returns at once.

    Args:
        change: What has to change.
        patience: Seconds that the runtime may take to answer after a restart.
    """
    variables = {
        **runtime_variables(change.runtime, patience),
        "units": "yes" if change.units else "",
        "trust": change.trust.command if change.trust else "",
    }
    script = KEEP + FUNCTIONS + _ENVIRONMENT_SCRIPT
    return StringCommand(
        background_script.start(script, variables, takes_stdin=True), _stdin="".join(_packed(change.files))
    )


def _packed(files: Mapping[str, HostFile | None]) -> Iterator[str]:
    """Yield files as the script reads them: a line that says where to, then what it holds behind a bar."""
    for path, file in files.items():
        if file is None:
            yield f"- {path}\n"
        else:
            yield f"+ {file.mode} {path}\n"
            yield "".join(f"|{line}\n" for line in file.text.splitlines())
