# The kubelet shows what is written to this file, up to 4,096 bytes, as the message of the container that ended.
{
    echo "boot $(cat /proc/sys/kernel/random/boot_id)"
    if [ -r /sys/module/nvidia/version ]; then echo "driver $(cat /sys/module/nvidia/version)"; fi
    vectorAdd
} > /dev/termination-log 2>&1
code=$?
cat /dev/termination-log
if [ "$code" -ne 0 ]; then exit "$code"; fi
