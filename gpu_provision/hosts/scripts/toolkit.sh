# Prints what the container toolkit has left below $install_dir, and what still uses it; writes nothing. The path of the
# programs is put together here, so that a command line with it is not that of this command. $configs are more files of
# container runtimes, one a line.
programs=$install_dir/toolkit
[ "$(id -u)" = 0 ] || echo 'unsure '
# A name that any other program could have is not among them.
for file in "$programs"/nvidia-container-* "$programs"/libnvidia-container* "$programs"/nvidia-ctk* \
  "$programs"/nvidia-cdi-hook* "$programs"/.config/nvidia-container-runtime/config.toml \
  /run/cdi/management.nvidia.com-gpu.yaml; do
  if [ -f "$file" ] || [ -L "$file" ]; then echo "file $file"; fi
done
# Directories that the stack's pods have made where they were not there; what is below comes first.
for folder in "$programs"/.config/nvidia-container-runtime "$programs"/.config "$programs" "$install_dir" \
  /run/nvidia/validations /run/nvidia/toolkit /run/nvidia/mps/shm /run/nvidia/mps /run/nvidia/driver/lib/firmware \
  /run/nvidia/driver/lib /run/nvidia/driver /run/nvidia /run/nvidia-fabricmanager /run/nvidia-topologyd; do
  [ -d "$folder" ] && [ ! -L "$folder" ] && {
    echo "folder $folder"
    # shellcheck disable=SC2012 # names are only compared
    ls -A "$folder" | head -n 200 | sed "s|^|entry |"
  }
done
# Where the toolkit writes by default; also of a runtime that does not run right now.
{
  printf '%s\n' "$configs"
  printf '%s\n' /etc/containerd/config.toml /etc/containerd/conf.d/* /etc/crio/crio.conf /etc/crio/crio.conf.d/* \
    /etc/docker/daemon.json /run/containers/oci/hooks.d/* /usr/share/containers/oci/hooks.d/*
} | while read -r file; do
  grep -qsF "$programs/" "$file" && echo "use $file names them"
done
# Where containerd and its distributions keep what they need of each container that runs.
for bundle in /run/containerd/io.containerd.runtime.v2.task/*/* /run/*/containerd/io.containerd.runtime.v2.task/*/* \
  /run/docker/containerd/daemon/io.containerd.runtime.v2.task/*/*; do
  grep -qsF "$programs/" "$bundle/runtime" "$bundle/options.json" && echo "use container ${bundle##*/} runs with them"
done
for process in /proc/[0-9]*; do
  grep -qsF "$programs/" "$process/cmdline" && echo "use process ${process#/proc/} runs with them"
done
echo 'end '
