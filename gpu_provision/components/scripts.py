"""Shell scripts that operands run, written for the smallest shell: POSIX, no tools beyond coreutils.

The steps are those of the GPU Operator's own scripts; the words are ours.
"""

from __future__ import annotations

STARTUP_PROBE = """\
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
"""

_WAIT_FOR_DRIVER = """\
#!/bin/sh
# driver-ready is written by the driver validation; it says where this node has its driver.
ready=/run/nvidia/validations/driver-ready
until [ -f "$ready" ]; do
    echo "waiting for $ready"
    sleep 5
done
set -o allexport
. "$ready"
set +o allexport
"""

TOOLKIT_ENTRYPOINT = (
    _WAIT_FOR_DRIVER
    + """
# The file has just appeared: give the device nodes that its writer makes a moment.
sleep 5
exec nvidia-toolkit "$@"
"""
)

DEVICE_PLUGIN_ENTRYPOINT = (
    _WAIT_FOR_DRIVER
    + """
# Share what the kernel can do, unless the user has said otherwise.
if [ -d /sys/module/gdrdrv ]; then
    export GDRCOPY_ENABLED="${GDRCOPY_ENABLED:-true}"
fi
if [ -d /sys/module/nvidia_fs ]; then
    export GDS_ENABLED="${GDS_ENABLED:-true}"
    export MOFED_ENABLED="${MOFED_ENABLED:-true}"
fi
exec nvidia-device-plugin "$@"
"""
)

VALIDATOR_STAY = "trap 'exit 0' TERM; echo all validations are successful; while true; do sleep 86400 & wait $!; done"
"""A container's first process ignores signals that it does not handle: without, each rollout costs the grace period."""

VECTOR_ADD = """\
# The kubelet shows what is written to this file, up to 4,096 bytes, as the message of the container that ended.
{
    echo "boot $(cat /proc/sys/kernel/random/boot_id)"
    if [ -r /sys/module/nvidia/version ]; then echo "driver $(cat /sys/module/nvidia/version)"; fi
    vectorAdd
} > /dev/termination-log 2>&1
code=$?
cat /dev/termination-log
if [ "$code" -ne 0 ]; then exit "$code"; fi
"""
"""Adds two vectors on a GPU. The termination message names the boot and the driver, and has what the sample printed."""

VALIDATE_CUDA = "rm -f /run/nvidia/validations/cuda-ready\n" + VECTOR_ADD + "touch /run/nvidia/validations/cuda-ready\n"
"""The same for the validator, which leaves the file that the GPU Operator's CUDA validation leaves."""
