"""Software of a simulated host: installed, held, and kernel headers to be installed. Scripts as in host_tools."""

from __future__ import annotations

PACKAGES = r"""#!/bin/sh
# The archives have headers for the kernel that runs here, or for none if there is /.sandbox/no-headers.
tool=${TOOL:-${0##*/}} verb= names=
read -r kernel </proc/sys/kernel/osrelease
while [ $# -gt 0 ]; do
  case $1 in
    -o) shift ;;
    --remove) verb=remove ;;
    -e) verb=remove ;;
    -*) ;;
    *) if [ -z "$verb" ]; then verb=$1; else names="$names|$1"; fi ;;
  esac
  shift
done

install() {
  line=
  [ -e /.sandbox/no-headers ] || case $1 in
    "linux-headers-$kernel") line="ii  $1 1" ;;
    "kernel-devel-uname-r = $kernel") line="package i kernel-devel-${kernel%.*} 1" ;;
    "kernel-default-devel = ${kernel%-default}.1") line="package i kernel-default-devel-${kernel%-default} 1" ;;
  esac
  if [ -z "$line" ]; then
    case $tool in
      apt-get) echo "E: Unable to locate package $1" >&2; exit 100 ;;
      dnf) echo "Error: Unable to find a match: $1" >&2; exit 1 ;;
      *) echo "No provider of '$1' found." >&2; exit 104 ;;
    esac
  fi
  echo "$line" >>/.sandbox/packages
  mkdir -p "/lib/modules/$kernel/build" && : >"/lib/modules/$kernel/build/Makefile"
}

remove() {
  grep -vF " $1 " /.sandbox/packages >/.sandbox/packages.new
  mv /.sandbox/packages.new /.sandbox/packages
  case $1 in linux-headers-* | kernel-devel-* | kernel-default-devel-*) rm -rf "/lib/modules/$kernel/build" ;; esac
}

case $verb in
  update | makecache | refresh) exit 0 ;;
  install | remove) ;;
  *) echo "$tool: a simulated host can only install and remove packages" >&2; exit 1 ;;
esac
old=$IFS; IFS='|'; set -- ${names#|}; IFS=$old
for name in "$@"; do "$verb" "$name"; done
"""

SOFTWARE = r"""#!/bin/sh
# Installed software, as its fleet has it: the version of the container runtime, the package manager's list.
case ${0##*/}:${1-} in
  rpm:-e) TOOL=rpm exec /.sandbox/scripts/packages "$@" ;;
  rpm:*) case $* in *"package i"*) cat ;; *) sed 's/^package i \([^ ]*\) .*/\1/' ;; esac </.sandbox/packages ;;
  dpkg-query:*) cat /.sandbox/packages ;;
  apt-config) ;;
  *) cat /.sandbox/runtime ;;
esac
"""

HOLDS = r"""#!/bin/sh
# Holds of packages, where each package manager keeps them.
case " $* " in
  *" install "* | *" makecache "* | *" refresh "*) TOOL=${0##*/} exec /.sandbox/scripts/packages "$@" ;;
esac
tool=${0##*/} verb= names=
for word in "$@"; do
  case $word in
    -* | versionlock) ;;
    *) if [ -z "$verb" ]; then verb=$word; else names="$names $word"; fi ;;
  esac
done

without() {  # without WORD FILE: its lines but for those that hold a package
  while read -r line; do
    case " $line" in *" $1" | *" $1-"[0-9]*) ;; *) echo "$line" ;; esac
  done <"$2" >"$2.new"
  mv "$2.new" "$2"
}

marked() {  # marked LETTER NAME: its state in the list of packages
  while read -r state each rest; do
    [ "$each" = "$2" ] && state=${1}i
    echo "$state  $each $rest"
  done </.sandbox/packages >/.sandbox/packages.new
  mv /.sandbox/packages.new /.sandbox/packages
}

for name in $names; do
  case $tool:$verb in
    apt-mark:hold) marked h "$name" ;;
    apt-mark:unhold) marked i "$name" ;;
    dnf:add) echo "$name-0:1-1.*" >>/etc/dnf/plugins/versionlock.list ;;
    dnf:delete) without "$name" /etc/dnf/plugins/versionlock.list ;;
    zypper:addlock) mkdir -p /etc/zypp; echo "solvable_name: $name" >>/etc/zypp/locks ;;
    zypper:removelock) without "$name" /etc/zypp/locks ;;
    *) echo "$tool: a simulated host can only hold packages" >&2; exit 1 ;;
  esac
done
"""
