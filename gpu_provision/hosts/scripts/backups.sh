# Functions that change files of a host so that nothing is lost; see gpu_provision.hosts.operations.backups.

# The kernel releases the lock when the command ends, however it ends; on a directory, so that no file is left behind.
alone() {
  [ "${alone-}" ] || ! command -v flock >/dev/null || {
    exec 9</etc && { flock -w 600 9 2>/dev/null || flock -n 9; } && alone=1 || {
      echo 'another run is changing this host: its command holds the lock on /etc' >&2
      return 1
    }
  }
}

# A path is listed after its original is complete and before it is changed: an interruption leaves either as it was.
# The list is replaced in one step, so that a full disk cannot leave half a line.
record() {
  { cat "$originals/list" && echo "$1"; } >"$originals/list.new" && mv -f "$originals/list.new" "$originals/list"
}
above() { [ -d "${1:-/}" ] || { above "${1%/*}" && record "directory $1"; }; }
keep() { (alone && keep_alone "$1"); }
keep_alone() {
  mkdir -p "$home" && (umask 077 && mkdir -p "$originals/files") && touch "$originals/list" || return
  grep -qxF -e "file $1" -e "absent $1" "$originals/list" && return
  if [ -e "$1" ] || [ -L "$1" ]; then
    mkdir -p "$originals/files${1%/*}" && cp -pPf "$1" "$originals/files$1" && record "file $1"
  else
    above "${1%/*}" && record "absent $1"
  fi
}
label() { if command -v restorecon >/dev/null; then restorecon "$1"; fi; }

# put PATH MODE: makes standard input the content of a file, in one step.
put() {
  alone && keep "$1" && mkdir -p "${1%/*}" || return
  fresh=${1%/*}/.${1##*/}.gpu-provision
  rm -f "$fresh"
  if [ -f "$1" ]; then cp -p "$1" "$fresh"; else (umask 077 && : >"$fresh") && chmod 644 "$fresh"; fi &&
    { [ -z "$2" ] || chmod "$2" "$fresh"; } && cat >"$fresh" && mv -f "$fresh" "$1" && label "$1"
}

restore() {
  case $1 in
    file) mkdir -p "${2%/*}" && rm -f "$2.gpu-provision" && cp -pP "$originals/files$2" "$2.gpu-provision" &&
      mv -f "$2.gpu-provision" "$2" && label "$2" ;;
    absent) rm -f "$2" ;;
    directory) rmdir "$2" 2>/dev/null || : ;;
  esac
}
# The newest first, so that a directory comes after what was put into it; one that others use by now stays.
restore_all() (
  [ -e "$originals/list" ] || exit 0
  sed '1!G;h;$!d' "$originals/list" | {
    failed=0
    while read -r kind path; do restore "$kind" "$path" || failed=1; done
    exit "$failed"
  }
)
