# Prints what is known of a host, in sections of lines: a word and a rest. Uses the shell, coreutils, grep, sed and
# find; other programs only where they are there, and bounded in time. Writes nothing. gpu_provision.hosts.facts.host
# assigns the variables that no line here assigns, and calls read_sections with the names of sections.
# shellcheck disable=SC2020 # tr gets two newlines on purpose

by_root() { grep -qs '^Uid:[[:space:]]*0[[:space:]]' "$1/status"; } # any user can give a process any name
show() {
  word=$1
  shift
  for file in "$@"; do [ -f "$file" ] && [ -r "$file" ] && { sed "s/^/$word /" "$file"; echo; }; done
}
own_file() { [ -e "$1" ] && { echo "own "; show own "$1"; }; } # an empty file still prints the word
several_files() { for file in "$@"; do [ -f "$file" ] && { echo "file $file"; sed "s#^#line $file #" "$file"; }; done; }
unit_of() { sed -nE 's|^.*/([^/]*\.service)(/.*)?$|\1|p' "$1/cgroup" | head -n 1; }

read_system() {
  echo "time $(date +%s)"
  echo "hostname $(uname -n)"
  show os /etc/os-release
  [ -e /run/reboot-required ] || [ -e /var/run/reboot-required ] && echo reboot-required
  # SUSE and the RHEL family: their own files and tool; needs-restarting takes seconds, so it is not asked.
  [ -e /run/reboot-needed ] || [ -e /boot/do_purge_kernels ] && echo reboot-required
}

# The variable holds four bytes of attributes, then the value.
read_firmware() {
  [ -d /sys/firmware/efi ] && echo efi
  variable=/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c
  [ -r "$variable" ] && echo "efivar $(od -An -v -t u1 "$variable" | tr -s ' \n' ' ')"
  if command -v mokutil >/dev/null; then
    $bounded mokutil --sb-state 2>&1 | sed 's/^/mokutil /'
  fi
  [ -r /sys/kernel/security/lockdown ] && sed 's/^/lockdown /' /sys/kernel/security/lockdown
  [ -r /sys/module/module/parameters/sig_enforce ] && sed 's/^/enforce /' /sys/module/module/parameters/sig_enforce
}

read_settings() {
  several_files "$sysctl_file" "$links_rule" "$links_script"
  sed -nE 's/^([^#; ]+) = .*/\1/p' "$sysctl_file" | while read -r key; do
    value=/proc/sys/$(echo "$key" | tr . /)
    [ -r "$value" ] && echo "running $key $(tr '\t\n' '  ' <"$value")"
  done
  grep -q ' nvidia' /proc/devices && echo driver
}

# getconf is missing on some minimal systems; the kernel says it in smaps, too.
read_kernel() {
  echo "running $kernel"
  echo "architecture $(uname -m)"
  size=$(getconf PAGESIZE) || size=$(sed -n 's/^KernelPageSize: *\([0-9]*\) kB.*/\1k/p' /proc/self/smaps | head -n 1)
  echo "page-size $size"
}

# Package lists may be compressed, or not there: then nothing is known about headers. dnf is asked only if the running
# kernel has none: it takes a second, and writes a log of its own. Real-time and Oracle's kernels have headers under
# names that are not looked for.
read_kernels() {
  for directory in /lib/modules/*; do
    release=${directory##*/}
    [ -e "$directory/modules.dep" ] || continue
    echo "installed $release"
    for image in vmlinuz vmlinux Image image vmlinuz.gz; do
      [ -e "/boot/$image-$release" ] || [ -e "$directory/$image" ] && { echo "bootable $release"; break; }
    done
    [ -e "$directory/build/Makefile" ] && echo "headers $release"
  done
  for link in /boot/vmlinuz /boot/Image /boot/image /vmlinuz; do
    target=$(readlink "$link") && echo "link $link $target"
  done
  command -v grubby >/dev/null && $bounded grubby --default-kernel | sed 's/^/grubby /'
  sed -n 's/^saved_entry=/saved /p' /boot/grub/grubenv /boot/grub2/grubenv
  cat /etc/default/grub /etc/default/grub.d/*.cfg | sed -nE 's/^[[:space:]]*GRUB_DEFAULT=/default /p'
  for menu in /boot/grub/grub.cfg /boot/grub2/grub.cfg; do
    sed -nE 's/^[[:space:]]*linux(efi|16)?[[:space:]]+([^[:space:]]+).*/menu \2/p' "$menu" | head -n 1
  done
  offered() { sort -u | while read -r release; do [ -d "/lib/modules/$release" ] && echo "offered $release"; done; }
  has() { [ -e "$1" ]; }
  zypp=$(find /var/cache/zypp/solv -name solv.idx ! -path '*/@System/*' -exec grep -hE '^kernel-[a-z0-9]+-devel' {} +)
  if has /var/lib/apt/lists/*_Packages; then
    echo "lists apt"
    set --
    for directory in /lib/modules/*; do set -- "$@" -e "Package: linux-headers-${directory##*/}"; done
    grep -hxF "$@" /var/lib/apt/lists/*_Packages | sed 's/^Package: linux-headers-//' | offered
  elif [ -n "$zypp" ]; then
    echo "lists zypp"
    echo "$zypp" |
      sed -nE 's/^kernel-([a-z0-9]+)-devel[[:space:]]+([0-9.]+-[0-9.]+)\.[0-9]+[[:space:]].*/\2-\1/p' | offered
  elif has /var/cache/dnf/*.solv && [ ! -e "$stock/build/Makefile" ]; then
    case $kernel in *rt* | *uek*) ;; *)
      found=$($bounded dnf -q -C repoquery --whatprovides kernel-devel-uname-r --provides) && [ -n "$found" ] && {
        echo "lists dnf"
        echo "$found" | sed -n 's/^kernel-devel-uname-r = //p' | offered
      } ;;
    esac
  fi
  true
}

read_modules() {
  grep_into() { sed 's/:.*//' "$3" | grep -E "/($2)\.ko" | sed "s/^/$1 /"; }
  show loaded /proc/modules
  grep_into builtin "$module_pattern" "$stock/modules.builtin"
  grep_into available "$module_pattern" "$stock/modules.dep"
  set -f # a name is no pattern
  for module in $module_names; do
    [ -d "/sys/module/$module" ] && ! grep -q "^$module " /proc/modules && echo "builtin $module"
  done
  set +f
  own_file "$modules_file"
  [ -d "$stock" ] || echo no-directory
}

# Of the kernel's command line, which may hold secrets, only blacklists are read.
read_nouveau() {
  tr ' ' '\n' </proc/cmdline | grep -E '^(rd\.driver\.|modprobe\.|module_)blacklist=' | sed 's/^/cmdline /'
  own_file "$nouveau_file"
  for file in /etc/modprobe.d/*.conf /run/modprobe.d/*.conf /usr/lib/modprobe.d/*.conf /lib/modprobe.d/*.conf; do
    [ "$file" != "$nouveau_file" ] && grep -E '^[[:space:]]*(blacklist|install)[[:space:]]+nouveau' "$file" |
      sed 's/^/modprobe /'
  done
  for tool in update-initramfs dracut; do
    command -v "$tool" >/dev/null && { echo "tool $tool"; break; }
  done
  for image in "/boot/initrd.img-$kernel" "/boot/initramfs-$kernel.img" "/boot/initrd-$kernel"; do
    [ -e "$image" ] || continue
    echo "initramfs $image"
    [ -n "$(find "$nouveau_file" -newer "$image")" ] && echo stale
    [ -d /sys/module/nouveau ] || break
    for list in lsinitramfs lsinitrd; do
      command -v "$list" >/dev/null || continue
      names=$($patient "$list" "$image") && {
        echo listed
        echo "$names" | grep -q '/nouveau\.ko' && echo contains
      }
      break
    done
    break
  done
}

read_pci() {
  for device in /sys/bus/pci/devices/*; do
    read -r vendor <"$device/vendor" || continue
    case $vendor in 0x10de | 0x15b3) ;; *) continue ;; esac
    driver=$(readlink "$device/driver")
    read -r id <"$device/device" && read -r class <"$device/class" || continue
    echo "device ${device##*/} $vendor $id $class ${driver##*/}"
  done
}

# apt-config prints the settings of all its files as they count. SUSE's transactional-update and yast's online update
# are timers and cron files; what they would install is not known beforehand.
read_packages() {
  if command -v dpkg-query >/dev/null && [ -s /var/lib/dpkg/status ]; then
    echo "manager dpkg"
    # shellcheck disable=SC2016 # variables of dpkg's
    $bounded dpkg-query -W -f '${db:Status-Abbrev} ${Package} ${Version}\n' '*nvidia*' 'cuda-drivers*' 'linux-image-*' \
      'linux-headers-*' 'linux-modules-*' dkms 'datacenter-gpu-manager*' unattended-upgrades |
      sed -nE 's/^([a-z])i[^ ]* +/package \1 /p'
    $bounded apt-config dump | sed -nE \
      's/^(APT::Periodic::(Enable|Unattended-Upgrade)|Unattended-Upgrade::(Package-Blacklist|Automatic-Reboot))/apt &/p'
  elif command -v rpm >/dev/null; then
    echo "manager rpm"
    $bounded rpm -qa --qf 'package i %{NAME} %{VERSION}-%{RELEASE}\n' '*nvidia*' 'cuda-drivers*' kernel \
      kernel-core kernel-devel kernel-default kernel-default-devel kernel-headers dkms 'datacenter-gpu-manager*' \
      dnf-automatic
  fi
  for list in /etc/dnf/plugins/versionlock.list /etc/yum/pluginconf.d/versionlock.list; do
    [ -r "$list" ] && grep -Ev '^[[:space:]]*(#|$)' "$list" | sed 's/^/lock /'
  done
  for file in /etc/dnf/dnf.conf /etc/yum.conf; do
    [ -r "$file" ] && sed -nE 's/^(exclude|excludepkgs)[[:space:]]*=[[:space:]]*/exclude /p' "$file"
  done
  [ -r /etc/zypp/locks ] && sed -nE 's/^solvable_name:[[:space:]]*/lock /p' /etc/zypp/locks
  file=/etc/dnf/automatic.conf
  [ -r "$file" ] && sed -nE 's/^apply_updates[[:space:]]*=[[:space:]]*/automatic /p' "$file"
  for timer in dnf-automatic dnf-automatic-install transactional-update apt-daily-upgrade; do
    [ -e "/etc/systemd/system/timers.target.wants/$timer.timer" ] && echo "timer $timer"
  done
  for job in /etc/cron.daily/opensuse.org-online_update /etc/cron.weekly/opensuse.org-online_update; do
    [ -e "$job" ] && echo "job $job"
  done
}

read_holds() {
  for tool in apt-mark zypper dnf; do command -v "$tool" >/dev/null && echo "tool $tool"; done
  [ -e /etc/dnf/plugins/versionlock.conf ] && echo "tool versionlock"
  show ours "$held_file"
  show installed "$installed_file"
}

# nvidia-smi is not run: it hangs on a GPU that has fallen off the bus.
read_driver() {
  [ -r /sys/module/nvidia/version ] && sed 's/^/loaded /' /sys/module/nvidia/version
  [ -r /proc/driver/nvidia/version ] && sed 's/^/proc /' /proc/driver/nvidia/version
  grep -q ' /run/nvidia/driver' /proc/mounts && echo container
  [ -e /run/nvidia/driver/usr/bin/nvidia-smi ] && echo container
  if grep -qE '/nvidia(-current)?\.ko' "$stock/modules.dep"; then
    $bounded modinfo nvidia | sed -nE 's/^(filename|version|license|signer):[[:space:]]*/\1 /p'
  fi
  for file in /usr/lib/*/libnvidia-ml.so.*.* /usr/lib64/libnvidia-ml.so.*.* /usr/lib/libnvidia-ml.so.*.* \
    /usr/lib/*/nvidia/current/libnvidia-ml.so.*.*; do
    [ -s "$file" ] && echo "library $file"
  done
  for file in nvidia-smi nvidia-uninstall nvidia-installer nv-fabricmanager nvidia-persistenced nvidia-ctk \
    nvidia-container-runtime; do
    [ -s "/usr/bin/$file" ] && echo "program /usr/bin/$file"
  done
  for built in /var/lib/dkms/nvidia*/*/*/*; do [ -d "$built" ] && echo "dkms ${built#/var/lib/dkms/}"; done
  true
}

read_persistence() {
  command -v systemctl >/dev/null && $bounded systemctl show -p ExecStart nvidia-persistenced.service |
    grep -q -e --no-persistence-mode && echo off
  own_file "$persistence_file"
  show enabled "$enabled_file"
  case $($bounded systemctl is-system-running) in '' | offline | unknown) echo no-systemd ;; esac
}

# A process that has ended holds nothing. Names of processes are the processes' own: echo would take backslashes in
# them for newlines, and paths of other files may hold an arrow.
read_services() {
  # shellcheck disable=SC2086 # names of units
  command -v systemctl >/dev/null && $bounded systemctl show -p Id,LoadState,ActiveState,UnitFileState \
    $units | sed 's/^/unit /'
  for device in /dev/nvidia[0-9]* /dev/nvidiactl; do
    [ -e "$device" ] || continue
    $bounded ls -l /proc/[0-9]*/fd |
      sed -nE '/^\/proc/h; /^[^>]*-> \/dev\/nvidia/{G; s/^[^>]*-> ([^[:space:]]*)\n\/proc\/([0-9]+)\/fd:$/\2 \1/p; }' |
      sort -u |
      while read -r pid held; do
        read -r command <"/proc/$pid/comm" || continue
        unit=$(unit_of "/proc/$pid")
        printf '%s\n' "holder $pid ${unit:--} $held $command"
      done
    break
  done
}

# Of configurations only the keys that matter are read: they may hold credentials of registries. Inside blocks of
# docker's, containerd's version 1 and CRI-O's files the same few words are looked for.
read_runtimes() {
  keys='version|imports|disabled_plugins|SystemdCgroup|systemd_cgroup|default_runtime|default_runtime_name'
  keys="$keys|cgroup_manager"
  keys="^[[:space:]]*($keys)[[:space:]]*="
  described=
  describe() {
    case $described in *"<$2 $4>"*) return ;; esac # one that runs hides one that is merely installed
    echo "runtime $1 $2"
    [ -n "$3" ] && [ -x "$3" ] && {
      described="$described<$2 $4>"
      echo "binary $3"
      $bounded "$3" --version | sed -E 's/^/version /' | head -n 2
    }
    [ -n "$4" ] && echo "config $4"
    target=$(readlink -f "$4") && [ "$target" != "$4" ] && echo "target $target"
    [ "$1" = run ] && echo "unit $(unit_of "$process")"
    [ "$1 $2" = "run containerd" ] && [ -x "$3" ] && $bounded "$3" --config "$4" config dump |
      sed -nE 's/^version *= *([0-9]+).*/dump \1/p' | head -n 1
    [ -r "$4" ] && {
      echo "readable $4"
      sed -nE '/^[[:space:]]*imports[[:space:]]*=/,/\]/s/^/imports /p' "$4"
      grep -E "$keys" "$4" | sed 's/^/key /'
      grep -qE '^[[:space:]]*\[.*[.]runtimes[.]' "$4" && echo "handlers "
      grep -oE '"(default-runtime|native.cgroupdriver)[^,}]*' "$4" | sed 's/^/json /'
      for pattern in $(sed -nE '/^[[:space:]]*imports[[:space:]]*=/,/\]/p' "$4" | grep -oE '"[^"]+"' | tr -d '"'); do
        case $pattern in /*) ;; *) pattern=${4%/*}/$pattern ;; esac
        for file in $pattern; do [ -e "$file" ] && echo "drop-in $file"; done
      done
    }
    [ -n "$6" ] && for file in "$6"/*.conf "$6"/*.toml; do
      [ -r "$file" ] && {
        echo "drop-in $file"
        grep -E "$keys" "$file" | sed 's/^/key /'
      }
    done
    [ -n "$5" ] && [ -e "$5" ] && echo "socket $5"
    echo "end "
  }
  value() {  # value SHORT LONG: of an option on the command line that is on standard input
    tr '\0' '\n' | sed -nE "/^($1|$2)\$/{n; p; }; s/^$2=//p" | head -n 1
  }
  for process in /proc/[0-9]*; do
    read -r name <"$process/comm" || continue
    case $name in containerd | crio | dockerd) ;; *) continue ;; esac
    by_root "$process" || continue
    # The program is run: the path of one in a container would be another file here.
    program=
    [ "$(readlink "$process/ns/mnt")" = "$(readlink /proc/self/ns/mnt)" ] && program=$(readlink "$process/exe")
    program=${program% (deleted)}
    config=$(value -c --config <"$process/cmdline")
    socket=$(value -a --address <"$process/cmdline")
    # k3s is one program under many names: asked for its version, it would tell that of k3s.
    [ "$name" = containerd ] && [ -x "${program%/*}/containerd" ] && program=${program%/*}/containerd
    case $name in
      containerd) describe run containerd "$program" "${config:-/etc/containerd/config.toml}" \
        "${socket:-/run/containerd/containerd.sock}" "" ;;
      crio) describe run cri-o "$program" "${config:-/etc/crio/crio.conf}" /run/crio/crio.sock /etc/crio/crio.conf.d ;;
      dockerd) config=$(value --config-file --config-file <"$process/cmdline")
        describe run docker "$program" "${config:-/etc/docker/daemon.json}" /run/docker.sock "" ;;
    esac
  done
  for entry in $distribution_runtimes; do
    old=$IFS
    IFS=,
    # shellcheck disable=SC2086 # split at commas
    set -- $entry
    IFS=$old
    [ -e "$2" ] || [ -e "$3" ] && describe have "$1" "$2" "$3" "$4" ""
  done
  program=$(command -v containerd) && describe have containerd "$program" /etc/containerd/config.toml \
    /run/containerd/containerd.sock ""
  program=$(command -v crio) && describe have cri-o "$program" /etc/crio/crio.conf \
    /run/crio/crio.sock /etc/crio/crio.conf.d
  program=$(command -v dockerd) && describe have docker "$program" /etc/docker/daemon.json /run/docker.sock ""
  true
}

# Of these files only a digest leaves the host: one may hold credentials.
read_environment() {
  for file in "$proxy_file" "$unit_directory"/*.service.d/"$environment_drop_in" \
    /etc/pki/ca-trust/source/anchors/"$certificate_prefix"* /etc/pki/trust/anchors/"$certificate_prefix"* \
    /usr/local/share/ca-certificates/"$certificate_prefix"*; do
    [ -f "$file" ] && echo "file $(sha256sum <"$file" | cut -c 1-64) $file"
  done
  if command -v update-ca-trust >/dev/null; then echo "trust /etc/pki/ca-trust/source/anchors"
  elif command -v update-ca-certificates >/dev/null; then
    if [ -d /etc/pki/trust/anchors ]; then
      echo "trust /etc/pki/trust/anchors"
    else
      echo "trust /usr/local/share/ca-certificates"
    fi
  fi
}

read_limits() {
  for process in /proc/[0-9]*; do
    read -r name <"$process/comm" || continue
    case $name in containerd | crio | dockerd) by_root "$process" || continue ;; *) continue ;; esac
    unit=$(unit_of "$process")
    sed -nE -e 's/^Max locked memory +([^ ]+) +([^ ]+).*/memlock \1 \2/p' \
      -e 's/^Max stack size +([^ ]+) +([^ ]+).*/stack \1 \2/p' \
      -e 's/^Max core file size +([^ ]+) +([^ ]+).*/core \1 \2/p' \
      -e 's/^Max processes +([^ ]+) +([^ ]+).*/nproc \1 \2/p' \
      -e 's/^Max realtime priority +([^ ]+) +([^ ]+).*/rtprio \1 \2/p' \
      "$process/limits" |
      sed "s/^/limit ${process##*/} $name ${unit:--} /"
  done
  several_files "$unit_directory"/*.service.d/"$limits_drop_in"
  true
}

# Of command lines only the flags that matter are read: others may hold tokens.
read_kubernetes() {
  for mark in $distribution_marks; do [ -e "${mark#*:}" ] && echo "mark ${mark%%:*} ${mark#*:}"; done
  names='config|container-runtime-endpoint|cgroup-driver|hostname-override|node-name'
  flags() { tr '\0 ' '\n\n' | sed -nE "/^--($names)\$/{N; s/\n/=/; p; }; /^--($names|fail-swap-on)=/p"; }
  for process in /proc/[0-9]*; do
    read -r name <"$process/comm" || continue
    case $name in
      kubelet | kubelite | k0s | k3s | k3s-server | k3s-agent | rke2 | rke2-server | rke2-agent)
        by_root "$process" || continue
        echo "process $name"
        flags <"$process/cmdline" | sed "s/^/flag $name /" ;;
    esac
  done
  for file in /var/lib/kubelet/kubeadm-flags.env /etc/default/kubelet /etc/sysconfig/kubelet \
    /var/snap/microk8s/current/args/kubelet; do
    [ -r "$file" ] && tr ' "' '\n\n' <"$file" | flags | sed 's/^/flag file /'
  done
  root=$(for process in /proc/[0-9]*; do
    read -r name <"$process/comm" && [ "$name" = kubelet ] && by_root "$process" &&
      flags <"$process/cmdline" | sed -n 's/^--config=//p'
  done | head -n 1)
  for file in "$root" /var/lib/kubelet/config.yaml; do
    [ -r "$file" ] && {
      echo "configured $file"
      grep -E '^(cgroupDriver|containerRuntimeEndpoint|failSwapOn):' "$file" | sed 's/^/setting /'
      break
    }
  done
  [ -e /var/lib/kubelet/kubeconfig ] || [ -e /etc/systemd/system/kubelet.service ] || command -v kubelet >/dev/null &&
    echo kubelet
  true
}

# What stands before an @ is a user's name and password: it is removed here, so that it never leaves the host.
read_proxies() {
  for service in containerd crio docker kubelet k3s k3s-agent rke2-server rke2-agent; do
    for file in "/etc/systemd/system/$service.service.d"/*.conf; do [ -r "$file" ] && set -- "$@" "$file"; done
  done
  for file in /etc/environment /etc/sysconfig/proxy /etc/default/docker /etc/sysconfig/docker /etc/default/k3s \
    /etc/default/rke2-server /etc/default/rke2-agent /etc/sysconfig/rke2-server /etc/sysconfig/rke2-agent \
    /etc/systemd/system/k3s.service.env /etc/systemd/system/k3s-agent.service.env "$proxy_file" \
    /var/snap/microk8s/current/args/containerd-env /etc/dnf/dnf.conf /etc/yum.conf /etc/apt/apt.conf \
    /etc/apt/apt.conf.d/* /etc/systemd/system.conf.d/*.conf; do
    [ -r "$file" ] && set -- "$@" "$file"
  done
  words='(https?|ftp|no|all)_proxy|^[[:space:]]*proxy[[:space:]]*=|Acquire::https?::Proxy'
  [ $# -gt 0 ] && grep -iE "$words" "$@" /dev/null | sed -E -e 's#://[^"[:space:]]*@#://#g' \
    -e 's#([=" ])[^"=@[:space:]/]*:[^"@[:space:]]*@#\1#g' -e 's/^/setting /'
}

read_storage() {
  for place in / /boot /tmp /usr/local /var /var/lib/containerd /var/lib/containers /var/lib/docker /var/lib/kubelet \
    /var/lib/rancher /var/snap/microk8s/common /var/lib/k0s; do
    [ -d "$place" ] && $bounded df -Pk "$place" | sed -n "2s#^#place $place #p"
  done
  [ -r /proc/swaps ] && sed -n '2,$s/^/swap /p' /proc/swaps
}

# A kubelet is the same one if it has the same process id and was started at the same moment.
read_hugepages() {
  for pool in /sys/kernel/mm/hugepages/hugepages-*kB; do
    read -r count <"$pool/nr_hugepages" && echo "pages ${pool##*hugepages-} $count"
  done
  own_file "$hugepages_file"
  show attempt "$hugepage_attempts"
  sed -nE 's/^MemTotal: +([0-9]+) kB/memory \1/p' /proc/meminfo
  [ -r "$unaware_kubelets" ] && while read -r pid start name; do
    [ "$(cut -d' ' -f22 "/proc/$pid/stat")" = "$start" ] && echo "unaware ${name}[$pid]"
  done <"$unaware_kubelets"
  true
}

# Content by its checksum, mode and owner by ls: neither cmp nor stat is everywhere.
read_originals() {
  attributes() {
    # shellcheck disable=SC2046 # split into words
    set -- $(ls -ldn "$1")
    echo "${1%[.+]} $3 $4"
  }
  same() {
    if [ -L "$1" ] || [ -L "$2" ]; then
      [ "$(readlink "$1")" = "$(readlink "$2")" ]
    else
      [ "$(cksum <"$1")" = "$(cksum <"$2")" ] && [ "$(attributes "$1")" = "$(attributes "$2")" ]
    fi
  }

  store=$originals
  [ -d "$home" ] && echo "present $home"
  [ -d "$store" ] && [ ! -x "$store" ] && echo "unreadable $store"
  differs() {
    case $1 in
      file) ! same "$store/files$2" "$2" ;;
      absent) [ -e "$2" ] || [ -L "$2" ] ;;
      *) [ -d "$2" ] ;;
    esac
  }
  [ -r "$store/list" ] && while read -r kind path; do
    if differs "$kind" "$path"; then echo "differs $kind $path"; else echo "restored $kind $path"; fi
  done <"$store/list"
}

read_sections() {
  PATH=$PATH:/usr/local/sbin:/usr/local/bin:/usr/sbin:/sbin
  LC_ALL=C
  export PATH LC_ALL
  exec </dev/null
  # For programs that answer at once or hang, and for those that may take their time.
  bounded=
  patient=
  timeout 5 true 2>/dev/null && { bounded='timeout 5'; patient='timeout 20'; }
  kernel=$(uname -r)
  stock=/lib/modules/$kernel
  for section in "$@"; do
    echo "[$section]"
    ("read_$section") 2>/dev/null
  done
  echo "[asked]"
  echo "modules $module_names"
  echo "[end]"
}

# A comment in Latin-1 in a file would make whole lines unreadable, or the host: what is no UTF-8 goes.
clean() { if command -v iconv >/dev/null; then iconv -c -f UTF-8 -t UTF-8 || :; else cat; fi; }
