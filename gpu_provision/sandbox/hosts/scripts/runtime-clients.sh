#!/bin/sh
# Clients of the container runtime, which answers while its unit is active.
tool=${0##*/}
case $tool in ctr) unit=containerd ;; crictl) unit=crio ;; esac
for known in /.sandbox/units/$unit.service /.sandbox/units/k*s*.service /.sandbox/units/rke2*.service; do
  [ -e "$known" ] || continue
  read -r active rest <"$known"
  [ "$active" = active ] || { echo "$tool: connection refused" >&2; exit 1; }
done
case "$tool $*" in
  ctr*plugins*) echo "io.containerd.grpc.v1 cri linux/amd64 ok" ;;
  crictl*version*) echo "RuntimeName: cri-o" ;;
  *) echo "$tool: a simulated host only says whether its runtime answers" >&2; exit 1 ;;
esac
