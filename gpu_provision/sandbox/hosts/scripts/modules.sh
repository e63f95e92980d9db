#!/bin/sh
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
