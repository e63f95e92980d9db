
# Share what the kernel can do, unless the user has said otherwise.
if [ -d /sys/module/gdrdrv ]; then
    export GDRCOPY_ENABLED="${GDRCOPY_ENABLED:-true}"
fi
if [ -d /sys/module/nvidia_fs ]; then
    export GDS_ENABLED="${GDS_ENABLED:-true}"
    export MOFED_ENABLED="${MOFED_ENABLED:-true}"
fi
exec nvidia-device-plugin "$@"
