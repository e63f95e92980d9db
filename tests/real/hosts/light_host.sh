#!/bin/sh
# The first process of a light host, in mount, PID, UTS and IPC namespaces of its own.
#
#   light_host.sh NAME PORT DISK BYTES LOWER     # LOWER: the layers below, as overlayfs wants them
set -eu
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export PATH
name=$1 port=$2 disk=$3 bytes=$4 lower=$5

hostname "$name"
mount -t tmpfs -o "size=$bytes,mode=755" disk "$disk"
mkdir "$disk/upper" "$disk/work" "$disk/root"
mount -t overlay -o "lowerdir=$lower,upperdir=$disk/upper,workdir=$disk/work" "$name" "$disk/root"
cd "$disk/root"
# /proc is made of files, since sysctls and modules of the real one are this machine's; see light.py.
mount -t proc proc .proc
mount --bind "$disk" .disk
mount -t tmpfs -o mode=755 run run
mount -t devpts -o newinstance,ptmxmode=0666,mode=620,gid=5 devpts dev/pts
mount -t tmpfs -o mode=1777 shm dev/shm
pivot_root . mnt

# Root can end the host: kill -TERM 1. What SSH leaves behind, this shell takes in.
exec chroot . /bin/sh -c '
  umount -l /mnt
  trap "exit 0" TERM
  echo "$0" | tee /etc/hostname >/proc/sys/kernel/hostname
  cat /.proc/sys/kernel/random/uuid >/proc/sys/kernel/random/boot_id
  echo "127.0.1.1 $0" >>/etc/hosts
  mkdir -p /run/sshd
  ssh-keygen -q -t ed25519 -N "" -f /etc/ssh/ssh_host_ed25519_key
  /usr/sbin/sshd -D -e -o LogLevel=VERBOSE -o ListenAddress=127.0.0.1 -p "$1" &
  wait $!
' "$name" "$port"
