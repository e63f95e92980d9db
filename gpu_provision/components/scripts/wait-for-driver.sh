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
