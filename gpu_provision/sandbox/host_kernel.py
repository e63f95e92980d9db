"""The kernel of a simulated host: its modules, its boots, its initramfs. Scripts as in host_tools."""

from __future__ import annotations

MODULES = r"""#!/bin/sh
# Kernel modules: the state is /proc/modules and /sys/module, the stock is /lib/modules/<kernel>.
tool=${0##*/}
read -r kernel </proc/sys/kernel/osrelease
stock=/lib/modules/$kernel
status=0
quiet= verbose= dry= remove= all= blacklist=

say() { [ -n "$quiet" ] || echo "$tool: $*" >&2; }

canonical() {  # kernel modules are the same with dashes and with underscores
  name=$1
  while :; do case $name in *-*) name=${name%%-*}_${name#*-} ;; *) return ;; esac; done
}

listed() {  # listed FILE: whether it lists $name; sets $path
  wanted=$name
  while read -r path _; do
    path=${path%:}
    canonical "${path##*/}"
    [ "${name%%.ko*}" = "$wanted" ] && { name=$wanted; return 0; }
  done <"$1"
  name=$wanted
  return 1
}

loaded() {  # sets $users
  while read -r each _ users _; do [ "$each" = "$name" ] && return 0; done </proc/modules
  return 1
}

refused() {  # modprobe.d may replace loading by a command, or blacklist the module
  for file in /etc/modprobe.d/*.conf; do
    [ -r "$file" ] || continue
    while read -r word each rest; do
      [ "$word" = install ] && [ "$each" = "$name" ] && { sh -c "$rest" || status=1; return 0; }
      [ -n "$blacklist" ] && [ "$word" = blacklist ] && [ "$each" = "$name" ] && return 0
    done <"$file"
  done
  return 1
}

load() {
  listed "$stock/modules.builtin" && return
  loaded && return
  if ! listed "$stock/modules.dep"; then
    severity=FATAL
    [ -n "$all" ] && severity=WARNING
    say "$severity: Module $1 not found in directory $stock"
    status=1
    return
  fi
  refused && return
  [ -n "$verbose" ] && echo "insmod $stock/$path"
  [ -n "$dry" ] && return
  echo "$name 16384 0 - Live 0x0000000000000000" >>/proc/modules
  mkdir -p "/sys/module/$name"
  [ "$name" = nvidia ] && cat /.sandbox/nvidia >"/sys/module/$name/version"
}

unload() {
  if listed "$stock/modules.builtin"; then say "FATAL: Module $name is builtin."; status=1; return; fi
  if ! loaded; then
    listed "$stock/modules.dep" && [ "$tool" != rmmod ] && return
    say "FATAL: Module $1 not found."
    status=1
    return
  fi
  if [ "$users" != 0 ]; then say "FATAL: Module $name is in use."; status=1; return; fi
  [ -n "$dry" ] && return
  gone=$name
  while read -r each rest; do
    [ "$each" = "$gone" ] || echo "$each $rest"
  done </proc/modules >/proc/modules.new
  mv /proc/modules.new /proc/modules
  rm -rf "/sys/module/$gone"
}

tell() {
  if listed "$stock/modules.builtin"; then echo "filename:       (builtin)"; return; fi
  if listed "$stock/modules.dep"; then
    echo "filename:       $stock/$path"
    [ "$name" = nvidia ] && echo "version:        $(cat /.sandbox/nvidia)"
    return
  fi
  echo "modinfo: ERROR: Module $1 not found." >&2
  status=1
}

case $tool in
  lsmod)
    echo "Module                  Size  Used by"
    while read -r name size users by _; do
      by=${by%,}
      printf '%-19s %8s  %s%s\n' "$name" "$size" "$users" "${by#-}"
    done </proc/modules
    exit 0 ;;
  depmod) exit 0 ;;
  kmod | insmod) echo "$tool: not part of a simulated host; use modprobe" >&2; exit 1 ;;
  rmmod) remove=yes all=yes ;;
esac

names=
ended=
for word in "$@"; do
  [ -z "$ended" ] || { names="$names $word"; continue; }
  case $word in
    --) ended=yes ;;
    --all) all=yes ;;
    --remove) remove=yes ;;
    --quiet | --silent) quiet=yes ;;
    --verbose) verbose=yes ;;
    --dry-run | --show | --first-time) dry=yes ;;
    --use-blacklist) blacklist=yes ;;
    --*) ;;
    -*)
      case $word in *a*) all=yes ;; esac
      case $word in *r*) remove=yes ;; esac
      case $word in *q*) quiet=yes ;; esac
      case $word in *v*) verbose=yes ;; esac
      case $word in *n*) dry=yes ;; esac
      case $word in *b*) blacklist=yes ;; esac ;;
    *) names="$names $word" ;;
  esac
done

for word in $names; do
  canonical "$word"
  case $tool in
    modinfo) tell "$word" ;;
    *) if [ -n "$remove" ]; then unload "$word"; else load "$word"; fi ;;
  esac
  # without -a, what follows the module's name are its parameters
  [ -n "$all$remove" ] || break
done
exit "$status"
"""

POWER = r"""#!/bin/sh
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
"""

INITRAMFS = r"""#!/bin/sh
# An initramfs image holds a copy of modprobe.d, which decides what loads early at the next boot.
tool=${0##*/}
read -r kernel </proc/sys/kernel/osrelease
case $tool in dracut) image=/boot/initramfs-$kernel.img ;; *) image=/boot/initrd.img-$kernel ;; esac
case $tool in update-initramfs) echo "update-initramfs: Generating $image" ;; esac
cat /etc/modprobe.d/*.conf >"$image.new" 2>/dev/null
mv "$image.new" "$image"
"""
