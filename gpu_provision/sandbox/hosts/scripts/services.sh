#!/bin/sh
# Services: /.sandbox/units/<unit> holds whether it is active, and whether it starts at boot. None really runs.
units=/.sandbox/units
verb= now= names=
while [ $# -gt 0 ]; do
  case $1 in
    --now) now=yes ;;
    -p | --property) shift ;;
    -*) ;;
    *) if [ -z "$verb" ]; then verb=$1; else names="$names ${1%.service}.service"; fi ;;
  esac
  shift
done

known() {  # known UNIT: sets $active, $enabled, and $command
  active=inactive enabled=disabled command=
  [ -e "$units/$1" ] || [ -e "/etc/systemd/system/$1" ] || return
  [ ! -e "$units/$1" ] || read -r active enabled command <"$units/$1"
}

save() { mkdir -p "$units" && echo "$active $enabled $command" >"$units/$1"; }

restarted() {  # a kubelet that restarts is another process
  stat=/proc/977/stat
  [ "$1" != kubelet.service ] || [ ! -e "$stat" ] || {
    start=$(cut -d' ' -f22 "$stat")
    sed "s/ $start\$/ $((start + 1))/" "$stat" >"$stat.new" && mv "$stat.new" "$stat"
  }
}

status=0
for name in $names; do
  if ! known "$name" && [ "$verb" != show ]; then
    echo "Unit $name not found." >&2
    status=5
    continue
  fi
  case $verb in
    show)
      loaded=not-found
      known "$name" && loaded=loaded
      printf '%s\n' "Id=$name" "LoadState=$loaded" "ActiveState=$active" "UnitFileState=$enabled" \
        "ExecStart=$command" "" ;;
    start | restart) active=active; save "$name"; [ "$verb" = start ] || restarted "$name" ;;
    stop) active=inactive; save "$name" ;;
    enable) [ "$enabled" = static ] || enabled=enabled; [ -z "$now" ] || active=active; save "$name" ;;
    disable) [ "$enabled" = static ] || enabled=disabled; [ -z "$now" ] || active=inactive; save "$name" ;;
    is-active) echo "$active"; [ "$active" = active ] || status=3 ;;
    *) echo "Unknown command verb $verb: a simulated host knows few of them." >&2; exit 1 ;;
  esac
done
exit "$status"
