# nvidia-smi answers before the driver container has started its daemons, such as the fabric manager; its startup probe
# writes this file after them, with the modules that the containers beside it load. The device plugin looks for the
# devices of these when it starts, so it has to start after them. A host driver has no such containers.
status=/run/nvidia/validations
announced="$status/.driver-ctr-ready"
# The driver validation has written one of both; validators before 24.6.0 write the second one.
is_on_host() { grep -q '^IS_HOST_DRIVER=true' "$status/driver-ready" || [ -f "$status/host-driver-ready" ]; }
is_starting() { [ ! -f "$announced" ] && ! is_on_host; }
is_missing() { grep -q "^$1: true" "$announced" && [ ! -d "/sys/module/$2" ] && ! is_on_host; }
while is_starting; do echo "waiting for $announced"; sleep 5; done
while is_missing GPU_DIRECT_RDMA_ENABLED nvidia_peermem; do echo "waiting for module nvidia_peermem"; sleep 5; done
while is_missing GDS_ENABLED nvidia_fs; do echo "waiting for module nvidia_fs"; sleep 5; done
while is_missing GDRCOPY_ENABLED gdrdrv; do echo "waiting for module gdrdrv"; sleep 5; done
echo "the driver and the modules beside it are ready"
