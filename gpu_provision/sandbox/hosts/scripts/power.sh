#!/bin/sh
# Boot and reboot: what a fresh kernel, its initramfs, udev and systemd-modules-load would leave behind.
tool=${0##*/}

blacklisted() {
  for file in "$@"; do
    [ -r "$file" ] || continue
    while read -r word name _; do [ "$word $name" = "blacklist nouveau" ] && return 0; done <"$file"
  done
  return 1
}

start_nouveau() {  # the initramfs knows its own copy of modprobe.d, udev reads the one in /etc
  read -r kernel </proc/sys/kernel/osrelease
  [ -e /.sandbox/has-nvidia-gpu ] || return
  modprobe -n -q nouveau || return
  blacklisted "/boot/initrd.img-$kernel" "/boot/initramfs-$kernel.img" || { modprobe -q nouveau; return; }
  blacklisted /etc/modprobe.d/*.conf || modprobe -q nouveau
}

boot() {
  rm -rf /run/* /sys/module/*
  for unit in /.sandbox/units/*; do
    read -r _ enabled command <"$unit"
    case $enabled in enabled | static) active=active ;; *) active=inactive ;; esac
    echo "$active $enabled $command" >"$unit"
  done
  for pool in /sys/kernel/mm/hugepages/*/nr_hugepages; do echo 0 >"$pool"; done
  cat /etc/tmpfiles.d/*.conf 2>/dev/null | while read -r kind path _ _ _ _ value; do
    [ "$kind" = w ] && echo "$value" >"$path"
  done
  while read -r socket; do mkdir -p "${socket%/*}"; : >"$socket"; done </.sandbox/sockets
  : >/proc/modules
  while read -r module; do mkdir -p "/sys/module/$module"; done </.sandbox/builtin
  while read -r module; do modprobe -q "$module"; done </.sandbox/modules
  start_nouveau
  [ -e /.sandbox/nvidia ] && modprobe -q nvidia
  for file in /etc/modules /etc/modules-load.d/*.conf; do
    [ -r "$file" ] || continue
    while read -r module _; do
      case $module in '' | '#'* | ';'*) ;; *) modprobe -b -q "$module" ;; esac
    done <"$file"
  done
  echo "30.00 30.00" >/proc/uptime
  cat /.proc/sys/kernel/random/uuid >/proc/sys/kernel/random/boot_id
}

case $tool:${1-} in
  boot:* | reboot:* | systemctl:reboot) boot ;;
  systemctl:is-system-running) echo running ;;
  systemctl:daemon-reload) ;;
  systemctl:*) exec /.sandbox/scripts/services "$@" ;;
  *) echo "$tool: a simulated host can only reboot" >&2; exit 1 ;;
esac
