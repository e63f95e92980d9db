#!/bin/sh
# Installed software, as its fleet has it: the version of the container runtime, the package manager's list.
case ${0##*/}:${1-} in
  rpm:-e) TOOL=rpm exec /.sandbox/scripts/packages "$@" ;;
  rpm:*) case $* in *"package i"*) cat ;; *) sed 's/^package i \([^ ]*\) .*/\1/' ;; esac </.sandbox/packages ;;
  dpkg-query:*) cat /.sandbox/packages ;;
  apt-config) ;;
  *) cat /.sandbox/runtime ;;
esac
