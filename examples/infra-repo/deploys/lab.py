"""Our own operations and the GPU stack, in one pyinfra run: pyinfra inventories/lab.py deploys/lab.py."""

from pyinfra import host
from pyinfra.operations import files

from gpu_provision.deploys import gpu_stack, host_prerequisites, hosts_ready

if "gpu" in host.groups:
    files.line(name="Say who looks after this machine", path="/etc/motd", line="Looked after by the lab repository.")

host_prerequisites()
hosts_ready()
gpu_stack()
