#!/bin/sh
# Who this host says it is; the system call would name the machine that the sandbox runs on.
read -r release </proc/sys/kernel/osrelease
read -r node </proc/sys/kernel/hostname
read -r machine </proc/sys/kernel/arch
version="#1 SMP"
[ "${0##*/}" = hostname ] && { echo "$node"; exit 0; }
[ $# -eq 0 ] && set -- -s
line=
for word in "$@"; do
  case $word in
    --all) word=-a ;;
    --kernel-name) word=-s ;;
    --nodename) word=-n ;;
    --kernel-release) word=-r ;;
    --kernel-version) word=-v ;;
    --machine) word=-m ;;
    --processor | --hardware-platform) word=-p ;;
    --operating-system) word=-o ;;
  esac
  case $word in *[as]*) line="$line Linux" ;; esac
  case $word in *[an]*) line="$line $node" ;; esac
  case $word in *[ar]*) line="$line $release" ;; esac
  case $word in *[av]*) line="$line $version" ;; esac
  case $word in *[ampi]*) line="$line $machine" ;; esac
  case $word in *[ao]*) line="$line GNU/Linux" ;; esac
done
echo "${line# }"
