# shellcheck shell=bash
# The Debian release that the machine itself runs, made with mmdebstrap from its own package sources; as root.

codename=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")

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

# install_debian ROOT PACKAGE,... [OPTION ...]: a small system with these packages, and mmdebstrap's options.
install_debian() {
  local root=$1 packages=$2 options
  shift 2
  mapfile -t options < <(apt_options)
  [ -n "$(source_lines)" ] || { echo "The package lists of this machine have nothing of Debian: apt-get update" >&2; exit 1; }
  source_lines | mmdebstrap --quiet --mode=root --variant=minbase --include="$packages" "${options[@]}" "$@" \
    --dpkgopt='force-confold' --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' \
    "$codename" "$root" -
}

# name_itself ROOT NAME: the system knows its own name, which sudo looks up, and asks no server for others: without a network
# each question takes 20 seconds.
name_itself() {
  printf '127.0.0.1 localhost\n127.0.1.1 %s\n' "$2" >"$1/etc/hosts"
  : >"$1/etc/resolv.conf"
}

# let_in ROOT KEY: the owner of the key is root, and admin, who has sudo.
let_in() {
  local root=$1 key=$2 home
  echo 'admin ALL=(ALL) NOPASSWD: ALL' >"$root/etc/sudoers.d/admin"
  chroot "$root" useradd --create-home --shell /bin/bash admin
  for home in /root /home/admin; do
    mkdir -p "$root$home/.ssh"
    cat <"$key" >"$root$home/.ssh/authorized_keys"
  done
  chroot "$root" chown -R admin: /home/admin
}
