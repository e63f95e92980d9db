#!/bin/sh
# The driver validation before 24.6.0 says by the name of an empty file where this node has its driver.
validations=/run/nvidia/validations
until [ -f "$validations/host-driver-ready" ] || [ -f "$validations/driver-ready" ]; do
    echo "waiting for $validations/driver-ready"
    sleep 5
done
if [ -f "$validations/host-driver-ready" ]; then
    export IS_HOST_DRIVER=true NVIDIA_DRIVER_ROOT=/ DRIVER_ROOT_CTR_PATH=/host
else
    export IS_HOST_DRIVER=false NVIDIA_DRIVER_ROOT=/run/nvidia/driver DRIVER_ROOT_CTR_PATH=/driver-root
fi
export CONTAINER_DRIVER_ROOT="$DRIVER_ROOT_CTR_PATH" # the name in device plugins before 0.15
