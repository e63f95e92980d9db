"""Changes files of a host so that nothing that was there is lost: every original is kept, and comes back on teardown.

Before the first change of a path, what is there is kept under /var/lib/gpu-provision/originals with its mode, owner
and time, or it is written down that nothing was there. Later changes leave what is kept alone. All commands are POSIX
shell, and need root as the files do. One command at a time changes a host, whoever runs it.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from pyinfra.api.command import StringCommand

from gpu_provision.hosts.facts.backups import (
    ABSENT,
    DIRECTORY,
    FILE,
    HOME,
    STORE,
)
from gpu_provision.hosts.facts.kernel import FileLines

# The kernel lets go of the lock when the command ends, however it ends; on a directory, so that no file is left behind.
_ALONE = """
alone() {
  [ "${alone-}" ] || ! command -v flock >/dev/null || {
    exec 9</etc && { flock -w 600 9 2>/dev/null || flock -n 9; } && alone=1 || {
      echo 'another run is changing this host: its command holds the lock on /etc' >&2
      return 1
    }
  }
}
"""

# A path is listed after its original is complete and before it is changed: an interruption leaves either as it was.
# The list is replaced in one step, so that a full disk cannot leave half a line.
KEEP = rf"""{_ALONE}
store={STORE}
record() {{ {{ cat "$store/list" && echo "$1"; }} >"$store/list.new" && mv -f "$store/list.new" "$store/list"; }}
above() {{ [ -d "${{1:-/}}" ] || {{ above "${{1%/*}}" && record "{DIRECTORY} $1"; }}; }}
keep() {{ (alone && keep_alone "$1"); }}
keep_alone() {{
  mkdir -p {HOME} && (umask 077 && mkdir -p "$store/files") && touch "$store/list" || return
  grep -qxF -e "{FILE} $1" -e "{ABSENT} $1" "$store/list" && return
  if [ -e "$1" ] || [ -L "$1" ]; then
    mkdir -p "$store/files${{1%/*}}" && cp -pPf "$1" "$store/files$1" && record "{FILE} $1"
  else
    above "${{1%/*}}" && record "{ABSENT} $1"
  fi
}}
label() {{ if command -v restorecon >/dev/null; then restorecon "$1"; fi; }}
"""
"""``keep PATH`` keeps the original of a path, for other scripts."""

_PUT = rf"""{KEEP}
put() {{
  alone && keep "$1" && mkdir -p "${{1%/*}}" || return
  fresh=${{1%/*}}/.${{1##*/}}.gpu-provision
  rm -f "$fresh"
  if [ -f "$1" ]; then cp -p "$1" "$fresh"; else (umask 077 && : >"$fresh") && chmod 644 "$fresh"; fi &&
    {{ [ -z "$2" ] || chmod "$2" "$fresh"; }} && cat >"$fresh" && mv -f "$fresh" "$1" && label "$1"
}}
"""

# The newest first, so that a directory comes after what was put into it; one that others use by now stays.
_RESTORE = rf"""
store={STORE}
label() {{ if command -v restorecon >/dev/null; then restorecon "$1"; fi; }}
restore() {{
  case $1 in
    {FILE}) mkdir -p "${{2%/*}}" && rm -f "$2.gpu-provision" && cp -pP "$store/files$2" "$2.gpu-provision" &&
      mv -f "$2.gpu-provision" "$2" && label "$2" ;;
    {ABSENT}) rm -f "$2" ;;
    {DIRECTORY}) rmdir "$2" 2>/dev/null || : ;;
  esac
}}
if [ -e "$store/list" ]; then
  sed '1!G;h;$!d' "$store/list" | {{
    failed=0
    while read -r kind path; do restore "$kind" "$path" || failed=1; done
    exit "$failed"
  }}
fi
"""


def put(path: str, content: FileLines, *, mode: str = "") -> StringCommand:
    """Return the command that puts a file in place in one step, or removes it, and keeps what was there.

    Args:
        path: Absolute, without a newline.
        content: Its lines; None for no file.
        mode: Such as ``600``; empty leaves that of the file that is there, and means 644 for a new one.
    """
    if content is None:
        return StringCommand(f"{KEEP}\nalone && keep {shlex.quote(path)} && rm -f {shlex.quote(path)}")
    lines = f"printf '%s\\n' {shlex.join(content)}" if content else ":"
    return StringCommand(f"{_PUT}\n{lines} | put {shlex.quote(path)} '{mode}'")


def restore(after: Sequence[str] = ()) -> StringCommand:
    """Return the command that makes every file as it was and then forgets the originals.

    If one cannot be restored, the others are all the same, the originals stay, and the command fails.

    Args:
        after: Shell commands that let the system know, before the originals are forgotten.
    """
    telling = [f"{{ {command}\n}} 9<&-" for command in after]  # what they leave running does not hold the lock
    return StringCommand(f"{_ALONE}\n" + " &&\n".join(["alone", f"({_RESTORE})", *telling, f"rm -rf {HOME}"]))


def alone(command: str) -> str:
    """Return a shell command that waits until no other run changes files of the host, for 10 minutes at most."""
    return f"{_ALONE}\nalone && {{ {command}; }}"
