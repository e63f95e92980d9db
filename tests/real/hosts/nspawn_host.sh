#!/bin/sh
# A host with systemd: systemd-nspawn on an overlay, in a mount namespace that takes all of it away again.
#
#   nspawn_host.sh NAME PORT DISK BYTES LOWER CGROUP...     # LOWER: the layers below, as overlayfs wants them
set -eu
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export PATH
name=$1 port=$2 disk=$3 bytes=$4 lower=$5
shift 5

for group in "$@"; do
  echo $$ >"$group/cgroup.procs"
done
mount -t tmpfs run /run/systemd # what nspawn leaves there
mount -t tmpfs -o "size=$bytes,mode=755" disk "$disk"
mkdir "$disk/upper" "$disk/work" "$disk/root"
mount -t overlay -o "lowerdir=$lower,upperdir=$disk/upper,workdir=$disk/work" "$name" "$disk/root"
cd "$disk/root"
# These come over the real ones once it has booted: see nspawn.py.
mkdir .machine
cp -r proc/sys .machine/sysctls
cp -r sys/bus/pci/devices .machine/devices
echo "$name" >etc/hostname
echo "127.0.1.1 $name" >>etc/hosts
printf 'ListenAddress 127.0.0.1\nPort %s\n' "$port" >etc/ssh/sshd_config.d/address.conf
ssh-keygen -q -t ed25519 -N '' -f etc/ssh/ssh_host_ed25519_key
status=133 # what nspawn says of a reboot, which it leaves to the manager of the unit
while [ "$status" = 133 ]; do
  status=0
  systemd-nspawn --quiet --register=no --keep-unit --link-journal=no --tmpfs=/var/lib/containerd --directory=. \
    --machine="$name" --boot || status=$?
done
exit "$status"
