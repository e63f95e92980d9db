#!/bin/sh
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
