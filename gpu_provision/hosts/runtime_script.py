"""The shell script by which a host changes its containerd's imports, and takes the change back by itself.

It runs detached from whoever started it: a lost connection, or a helper pod that ends with its runtime, cannot stop
it between the restart and the way back. The configuration never leaves the host, since it may hold credentials.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from gpu_provision.hosts.originals import KEEP

WORK = "/run/gpu-provision/runtime"
"""Directory of the script, its process number and its result; a reboot empties it."""


class Outcome(StrEnum):
    """Where the script is, or how it ended."""

    RUNNING = "running"
    GONE = "gone"  # it was ended from outside, such as by the kernel
    CHANGED = "changed"
    DOWN = "down"  # the runtime did not answer to begin with; nothing was changed
    NO_TOOL = "no-tool"  # it cannot be restarted or asked here; nothing was changed
    REJECTED_OLD = "rejected-old"  # the node's containerd rejects its present configuration; nothing was changed
    REJECTED_NEW = "rejected-new"  # likewise, the new one; nothing was changed
    NOT_KEPT = "not-kept"  # the original could not be put aside; nothing was changed
    RESTORED = "restored"  # the old configuration is back, and the runtime answers
    DEAD = "dead"  # the old configuration is back, and the runtime does not answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The script's last words.

    Attributes:
        outcome: Where it is, or how it ended.
        evidence: A line of a program's output; empty if there is none.
    """

    outcome: Outcome
    evidence: str = ""


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

# Only lines that tell of errors are quoted: at its start containerd logs its configuration, credentials and all.
_SCRIPT = r"""
umask 077
PATH=$PATH:/usr/local/sbin:/usr/local/bin:/usr/sbin:/sbin
LC_ALL=C
export PATH LC_ALL
echo $$ >"$work/pid.new" && mv "$work/pid.new" "$work/pid"
said=$work/said
target=$(readlink -f "$config") || target=$config
fresh=$target.gpu-provision-new
old=$target.gpu-provision-old
command -v timeout >/dev/null || timeout() { shift; "$@"; }

end() {
  rm -f "$fresh"
  printf '%s\n' "$@" | cut -c 1-300 >"$work/result.new"
  mv "$work/result.new" "$work/result"
  exit 0
}
last() { grep -v '^[[:space:]]*$' "$said" | tail -n 1; }
accepts() { timeout 30 "$binary" --config "$1" config dump >/dev/null 2>"$said"; }
answers() {
  timeout 10 "$ctr" --address "$socket" --connect-timeout 5s plugins ls >"$said" 2>&1 &&
    awk '$1 == "io.containerd.grpc.v1" && $2 == "cri" { state = $NF } END { exit state != "ok" }' "$said"
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
  line=$(journalctl -u "$unit" -n 50 -o cat --no-pager 2>/dev/null | grep -E 'level=(error|fatal)|^containerd: ' |
    tail -n 1)
  [ -n "$line" ] || line=$(grep -E '^io.containerd.grpc.v1 +cri ' "$said")
  [ -n "$line" ] || line=$(last)
  printf '%s\n' "${line:-ctr plugins ls: no answer}"
}
restart() { timeout 90 systemctl restart "$unit" >"$said" 2>&1; }
take_back() {
  trap '' HUP INT TERM
  evidence=$(complaint)
  if [ -e "$old" ]; then mv "$old" "$target"; else rm -f "$target"; fi
  systemctl reset-failed "$unit" 2>/dev/null
  restart
  recovers && end restored "$evidence"
  end dead "$(complaint)"
}

option() { tr '\0' '\n' | sed -nE '/^(-c|--config)$/{n; p; }; s/^--config=//p' | head -n 1; }
unit=
for process in /proc/[0-9]*; do
  read -r name 2>/dev/null <"$process/comm" && [ "$name" = containerd ] || continue
  own=$(option <"$process/cmdline")
  [ "${own:-/etc/containerd/config.toml}" = "$config" ] || continue
  unit=$(sed -nE 's|.*/([^/]+\.service)(/.*)?$|\1|p' "$process/cgroup" | head -n 1)
  break
done
unit=${unit:-containerd.service}
ctr=${binary%/*}/ctr
[ -x "$ctr" ] || ctr=$(command -v ctr) || end no-tool "ctr is not installed"
command -v systemctl >/dev/null || end no-tool "systemctl is not installed"
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
{ mkdir -p "${target%/*}" && mv "$fresh" "$target"; } 2>"$said" || take_back
! command -v restorecon >/dev/null || restorecon "$target"
restart && recovers || take_back
trap '' HUP INT TERM
rm -f "$old"
end changed
"""


def start(*, config: str, pattern: str, binary: str, socket: str, patience: int) -> str:
    """Return the command that starts the script and returns at once; one that runs already is left to run.

    Args:
        config: Root configuration of containerd; need not exist.
        pattern: What its imports shall take in.
        binary: Program of containerd.
        socket: Its socket.
        patience: Seconds that it may take to answer after a restart.
    """
    variables = {
        "config": config,
        "pattern": pattern,
        "binary": binary,
        "socket": socket,
        "work": WORK,
        "patience": str(patience),
        "edit": _AWK,
    }
    script = "".join(f"{name}={shlex.quote(value)}\n" for name, value in variables.items()) + KEEP + _SCRIPT
    return (
        f"mkdir -p -m 700 {WORK} && if ! kill -0 $(cat {WORK}/pid 2>/dev/null || echo none) 2>/dev/null; then "
        f"rm -f {WORK}/result {WORK}/pid && (umask 077 && printf %s {shlex.quote(script)} >{WORK}/change.sh) && "
        f"if [ -d /run/systemd/system ] && command -v systemd-run >/dev/null; then "
        f"systemd-run --quiet --collect --unit=gpu-provision-runtime sh {WORK}/change.sh; "
        f"else setsid sh {WORK}/change.sh </dev/null >/dev/null 2>&1 & fi; fi"
    )


def longest_seconds(patience: int) -> int:
    """Return how long the script may take: two restarts of 90 seconds, two waits, and what comes between."""
    return 2 * 90 + 2 * patience + 180


def question(*, seconds: int = 10) -> str:
    """Return the command that waits for the result for some seconds, and prints it or where the script is."""
    return (
        f"ends() {{ [ -e {WORK}/result ] || {{ [ -e {WORK}/pid ] && ! kill -0 $(cat {WORK}/pid) 2>/dev/null; }}; }}; "
        f"left={seconds}; while ! ends && [ $left -gt 0 ]; do sleep 1; left=$((left - 1)); done; "
        f"if [ -e {WORK}/result ]; then cat {WORK}/result; elif ends; then echo gone; else echo running; fi"
    )


def parse(lines: Sequence[str]) -> Result | None:
    """Read the answer; None if there is none that is known."""
    words = [line.strip() for line in lines if line.strip()]
    if not words or words[0] not in tuple(Outcome):
        return None
    return Result(outcome=Outcome(words[0]), evidence=" ".join(words[1:]))
