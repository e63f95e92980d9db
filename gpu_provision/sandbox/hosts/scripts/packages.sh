#!/bin/sh
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
