# Written by gpu-provision: links in /dev/char let runc find the GPUs' device nodes by number. Without them, a
# container that got its GPUs by a hook loses them when systemd reloads its units.
proc=${1:-/proc} sys=${2:-/sys} char=${3:-/dev/char}
link() { [ -e "$char/$1" ] || [ -L "$char/$1" ] || ln -s "../$2" "$char/$1"; }
registered() { grep -qE "^ *[0-9]+ $1\$" "$proc/devices"; }
tries=5
while [ "$tries" -gt 0 ]; do
  if [ ! -d "$sys/module/nvidia_uvm" ] || registered nvidia-uvm; then registered 'nvidia(-frontend)?' && break; fi
  tries=$((tries - 1))
  sleep 1
done
mkdir -p "$char" || exit
while read -r major name; do
  case $name in
    nvidia | nvidia-frontend)
      link "$major:255" nvidiactl
      link "$major:254" nvidia-modeset
      minor=0
      for gpu in "$proc"/driver/nvidia/gpus/*; do
        [ -d "$gpu" ] && link "$major:$minor" "nvidia$minor"
        minor=$((minor + 1))
      done ;;
    nvidia-uvm) link "$major:0" nvidia-uvm; link "$major:1" nvidia-uvm-tools ;;
    nvidia-caps)
      find "$proc/driver/nvidia/capabilities" -type f | while read -r file; do
        minor=$(sed -n 's/^DeviceFileMinor: *//p' "$file")
        [ -n "$minor" ] && link "$major:$minor" "nvidia-caps/nvidia-cap$minor"
      done ;;
  esac
done <"$proc/devices"
exit 0
