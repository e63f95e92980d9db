#!/bin/sh
# Everybody is root on a simulated host, so all that is left of sudo is its command.
while [ $# -gt 0 ]; do
  case $1 in
    -u | -g | -p | -C | -h | -r | -t | -U | -D) shift 2 ;;
    -k | -K | -v | -l) [ $# -gt 1 ] || exit 0; shift ;;
    --) shift; break ;;
    -*) shift ;;
    *=*) export "$1"; shift ;;
    *) break ;;
  esac
done
exec "$@"
