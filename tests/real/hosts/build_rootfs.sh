#!/usr/bin/env bash
# Builds the root directory that hosts without a kernel of their own share: Debian with systemd, OpenSSH and sudo.
#
#   tests/real/hosts/build_rootfs.sh FOLDER     # makes root/ and the SSH key `key` in it
#
# Needs root, on Debian: what is built is the release that the machine itself runs, from its own package sources.
set -euo pipefail
umask 022
. "$(dirname "${BASH_SOURCE[0]}")/debian.sh"

folder=$(realpath "$1")
root=$folder/root

# Packages of a kernel and of a driver, as apt knows them; there is nothing in them.
install_empty_packages() {
  local name
  for name in linux-image-6.1.0-1-amd64 linux-headers-6.1.0-1-amd64; do
    mkdir -p "$folder/$name/DEBIAN"
    printf '%s\n' "Package: $name" 'Version: 6.1.1-1' 'Architecture: all' 'Maintainer: tests' \
      'Description: what a kernel is called' >"$folder/$name/DEBIAN/control"
    dpkg-deb --build --root-owner-group "$folder/$name" "$root/$name.deb" >/dev/null
    chroot "$root" dpkg --install "/$name.deb" >/dev/null
    rm -r "$folder/$name" "$root/$name.deb"
  done
}

ssh-keygen -q -t ed25519 -N '' -C gpu-provision-test -f "$folder/key"
# python3: for Ansible, which the benchmark compares with.
install_debian "$root" \
  systemd-sysv,dbus,udev,kmod,pciutils,openssh-server,ca-certificates,sudo,iproute2,procps,containerd,runc,python3 \
  --dpkgopt='path-exclude=/usr/share/locale/*'
install_empty_packages
name_itself "$root" host
let_in "$root" "$folder/key.pub"
# Each host makes a key of its own.
rm -f "$root"/etc/ssh/ssh_host_*
