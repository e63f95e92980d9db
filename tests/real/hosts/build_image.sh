#!/usr/bin/env bash
# Builds the disk of a Debian virtual machine with systemd, Debian's stock kernel, OpenSSH and containerd.
#
#   tests/real/hosts/build_image.sh FOLDER     # makes disk.ext4, vmlinuz, initrd.img and the SSH key `key` in it
#
# Needs root, on Debian: what is built is the release that the machine itself runs, from its own package sources.
set -euo pipefail
umask 022
. "$(dirname "${BASH_SOURCE[0]}")/debian.sh"

folder=$(realpath "$1")
root=$folder/root
packages=(
  systemd-sysv dbus udev kmod pciutils openssh-server sudo iproute2 procps
  initramfs-tools linux-image-amd64 containerd runc
)

# Tests rebuild the initramfs, which takes an emulated machine long: it has the drivers of the disk and no udev.
install_system() {
  install_debian "$root" "$(IFS=,; echo "${packages[*]}")" --dpkgopt='path-exclude=/usr/share/initramfs-tools/*/udev' \
    --essential-hook='small_initramfs() { mkdir -p "$1/etc/initramfs-tools/conf.d"
      printf "%s\n" MODULES=list COMPRESSLEVEL=1 >"$1/etc/initramfs-tools/conf.d/small"
      printf "%s\n" virtio_pci virtio_blk ext4 >"$1/etc/initramfs-tools/modules"; }; small_initramfs "$1"'
}

write() {
  mkdir -p "$(dirname "$root$1")"
  cat >"$root$1"
}

configure() {
  write /etc/hostname <<<gpu-host
  name_itself "$root" gpu-host
  write /etc/fstab <<<'/dev/vda / ext4 noinit_itable 0 1'
  write /etc/systemd/network/all.network <<<$'[Match]\nName=e*\n[Network]\nDHCP=yes'
  let_in "$root" "$folder/key.pub"
  chroot "$root" systemctl --quiet enable systemd-networkd ssh containerd
  # What a test machine has no use for costs seconds of every boot.
  chroot "$root" systemctl --quiet mask apt-daily.timer apt-daily-upgrade.timer systemd-timesyncd fstrim.timer \
    dpkg-db-backup.timer e2scrub_all.timer e2scrub_reap systemd-pstore modprobe@ getty@tty1 serial-getty@ttyS0 \
    systemd-update-utmp systemd-update-utmp-runlevel sys-kernel-debug.mount sys-kernel-tracing.mount
}

ssh-keygen -q -t ed25519 -N '' -C gpu-provision-test -f "$folder/key"
install_system
configure
cp -L "$root/vmlinuz" "$folder/vmlinuz"
cp -L "$root/initrd.img" "$folder/initrd.img"
# As large as real ones, with few inodes: the file is sparse, and what is not there needs no time to be made.
truncate -s 40G "$folder/disk.ext4"
mke2fs -q -F -t ext4 -O ^has_journal -N 200000 -d "$root" "$folder/disk.ext4"
rm -rf "$root"
