"""The lab's own operations and the GPU stack, in one run: pyinfra inventories/lab.py deploys/lab.py."""

from pyinfra import host
from pyinfra.operations import files

from gpu_provision.deploys import gpu_stack, host_prerequisites, hosts_ready

# The cluster is a host of its own, and has no shell.
if "cluster" not in host.groups:
    files.line(name="Say who looks after this machine", path="/etc/motd", line="Looked after by the lab repository.")

host_prerequisites()

# Between the phases: after a reboot of the host, if it needs one, and before any pod of the stack.
if "gpu" in host.groups:
    files.file(name="Mark GPU machines as prepared", path="/etc/lab-gpu-prepared")

hosts_ready()
gpu_stack()
