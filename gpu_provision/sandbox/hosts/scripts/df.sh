#!/bin/sh
# One disk; the real one would be that of the machine that the sandbox runs on.
read -r size free </.sandbox/disk
echo "Filesystem     1024-blocks      Used Available Capacity Mounted on"
for word in "$@"; do
  case $word in -*) continue ;; esac
  [ -e "$word" ] && echo "/dev/vda1 $size $((size - free)) $free $(((size - free) * 100 / size))% /"
done
