"""systemd's services and the limits of processes on a simulated host: scripts as in host_tools."""

from __future__ import annotations

SERVICES = r"""#!/bin/sh
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

restarted() {  # a kubelet that starts anew is another process
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
"""

LIMITS = r"""#!/bin/sh
# Limits of a process, as the kernel shows them in /proc.
pid=
for word in "$@"; do
  case $word in
    --pid) ;;
    --pid=*) pid=${word#*=} ;;
    --*=*:*)
      limit=${word#--} soft=${word#*=} hard=${word##*:}
      case ${limit%%=*} in
        memlock) title='Max locked memory' ;;
        stack) title='Max stack size' ;;
        core) title='Max core file size' ;;
        nproc) title='Max processes' ;;
        rtprio) title='Max realtime priority' ;;
        *) echo "prlimit: a simulated host has no limit ${limit%%=*}" >&2; exit 1 ;;
      esac
      sed "s/^$title .*/$title ${soft%%:*} $hard/" "/proc/$pid/limits" >"/proc/$pid/limits.new" &&
        mv "/proc/$pid/limits.new" "/proc/$pid/limits" || exit ;;
    *) pid=$word ;;
  esac
done
[ -e "/proc/$pid/limits" ] || { echo "prlimit: failed to get resource limits: No such process" >&2; exit 1; }
"""

RUNTIME_CLIENTS = r"""#!/bin/sh
# Clients of the container runtime, which answers while its unit is active.
tool=${0##*/}
case $tool in ctr) unit=containerd ;; crictl) unit=crio ;; esac
for known in /.sandbox/units/$unit.service /.sandbox/units/k*s*.service /.sandbox/units/rke2*.service; do
  [ -e "$known" ] || continue
  read -r active rest <"$known"
  [ "$active" = active ] || { echo "$tool: connection refused" >&2; exit 1; }
done
case "$tool $*" in
  ctr*plugins*) echo "io.containerd.grpc.v1 cri linux/amd64 ok" ;;
  crictl*version*) echo "RuntimeName: cri-o" ;;
  *) echo "$tool: a simulated host only says whether its runtime answers" >&2; exit 1 ;;
esac
"""

TRUST = r"""#!/bin/sh
# The store of trusted certificates: one file of all that were put beside the system's own, of which there are none.
case ${0##*/} in
  update-ca-certificates) anchors=/usr/local/share/ca-certificates store=/etc/ssl/certs/ca-certificates.crt ;;
  *) anchors=/etc/pki/ca-trust/source/anchors store=/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem ;;
esac
mkdir -p "${store%/*}" && cat /dev/null "$anchors"/* >"$store.new" 2>/dev/null
mv "$store.new" "$store"
"""
