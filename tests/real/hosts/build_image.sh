#!/usr/bin/env bash
# Builds the disk of a Debian virtual machine with systemd, Debian's stock kernel, OpenSSH and containerd.
#
#   tests/real/hosts/build_image.sh FOLDER     # makes disk.ext4, vmlinuz, initrd.img and the SSH key `key` in it
#
# Needs root, on Debian: what is built is the release that the machine itself runs, from its own package sources.
set -euo pipefail
umask 022

folder=$(realpath "$1")
root=$folder/root
codename=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
packages=(
  systemd-sysv dbus udev kmod pciutils openssh-server sudo iproute2 procps
  initramfs-tools linux-image-amd64 containerd runc
)

# Debian's own repositories: whatever form the machine's list of them has.
source_lines() {
  local keyring=/usr/share/keyrings/debian-archive-keyring.gpg
  # shellcheck disable=SC2016 # apt's variables, not ours
  apt-get indextargets --format '$(CODENAME) deb [signed-by='"$keyring"'] $(REPO_URI) $(RELEASE) $(COMPONENT)' \
    'Origin: Debian' 'Component: main' 'Created-By: Packages' | sed -n "s/^$codename[^ ]* //p" | sort -u
}

# How the machine reaches them: its proxy, if it has one.
apt_options() {
  apt-config dump Acquire | grep -E '^Acquire::https?::Proxy' | sed 's/^/--aptopt=/' || true
}

install_system() {
  local options
  mapfile -t options < <(apt_options)
  [ -n "$(source_lines)" ] || { echo "The package lists of this machine have nothing of Debian: apt-get update" >&2; exit 1; }
  source_lines | mmdebstrap --quiet --mode=root --variant=minbase --include="$(IFS=,; echo "${packages[*]}")" \
    "${options[@]}" --essential-hook='small_initramfs() { mkdir -p "$1/etc/initramfs-tools/conf.d"
      echo MODULES=list >"$1/etc/initramfs-tools/conf.d/list"
      printf "%s\n" virtio_pci virtio_blk ext4 >"$1/etc/initramfs-tools/modules"; }; small_initramfs "$1"' \
    --dpkgopt='force-confold' --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' \
    "$codename" "$root" -
}

write() {
  mkdir -p "$(dirname "$root$1")"
  cat >"$root$1"
}

configure() {
  write /etc/hostname <<<gpu-host
  write /etc/fstab <<<'/dev/vda / ext4 noinit_itable 0 1'
  write /etc/systemd/network/all.network <<<$'[Match]\nName=e*\n[Network]\nDHCP=yes'
  write /etc/sudoers.d/admin <<<'admin ALL=(ALL) NOPASSWD: ALL'
  chroot "$root" useradd --create-home --shell /bin/bash admin
  local home
  for home in /root /home/admin; do
    write "$home/.ssh/authorized_keys" <"$folder/key.pub"
  done
  chroot "$root" chown -R admin: /home/admin
  chroot "$root" systemctl --quiet enable systemd-networkd ssh containerd
  # What a test machine has no use for costs seconds of every boot.
  chroot "$root" systemctl --quiet mask apt-daily.timer apt-daily-upgrade.timer systemd-timesyncd fstrim.timer
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
