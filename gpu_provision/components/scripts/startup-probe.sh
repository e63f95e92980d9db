#!/bin/sh
# Succeeds once the kernel module is loaded and answers, and then tells the validators so.
set -eu
status=/run/nvidia/validations
mkdir -p "$status"

if [ ! -f /sys/module/nvidia/refcnt ]; then
    echo "the nvidia kernel module is not loaded yet" >&2
    exit 1
fi
daemons="$status/.driver-daemons-status"
if [ -f "$daemons" ] && [ "$(cat "$daemons")" != Ready ]; then
    echo "the daemons of the driver are not ready yet: $(cat "$daemons")" >&2
    exit 1
fi
nvidia-smi

# Written beside and then renamed: a reader sees all of it or nothing.
ready="$status/.driver-ctr-ready"
{
    echo "GDRCOPY_ENABLED: ${GDRCOPY_ENABLED:-false}"
    echo "GDS_ENABLED: ${GDS_ENABLED:-false}"
    echo "GPU_DIRECT_RDMA_ENABLED: ${GPU_DIRECT_RDMA_ENABLED:-false}"
} > "$ready.new"
mv "$ready.new" "$ready"
