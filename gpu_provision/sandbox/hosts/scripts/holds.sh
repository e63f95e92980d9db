#!/bin/sh
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
