"""What the containers of each operand, of Node Feature Discovery and of common workloads do on a machine.

A container is recognised by its program: the command line it has, or the one its image is known to have.
Programs read the pod as it is, so a mistake in a manifest shows as it would on a real node.
"""

from __future__ import annotations

import fnmatch
import posixpath

from gpu_provision.sandbox.kubelet.container import Container, Program
from gpu_provision.sandbox.kubelet.programs import device_plugin, driver, driver_toolkit, mig, nfd, operands, shell

PROGRAMS: dict[str, Program] = {
    "nfd-worker": nfd.WORKER,
    "nfd-master": nfd.MASTER,
    "nfd-gc": nfd.GARBAGE_COLLECTOR,
    "driver-manager": driver.DRIVER_MANAGER,
    "nvidia-driver": driver.DRIVER,
    "ocp_dtk_entrypoint": driver_toolkit.ENTRYPOINT,
    "nvidia-gds-driver": driver.GDS,
    "nvidia-gdrcopy-driver": driver.GDRCOPY,
    "nvidia-toolkit": operands.TOOLKIT,
    "nvidia-ctk-installer": operands.TOOLKIT,
    "nvidia-validator": operands.VALIDATOR,
    "nvidia-device-plugin": device_plugin.PLUGIN,
    "config-manager": device_plugin.CONFIG_MANAGER,
    "mps-control-daemon": device_plugin.MPS_CONTROL_DAEMON,
    "gpu-feature-discovery": operands.GFD,
    "nvidia-mig-manager": mig.MANAGER,
    "nv-hostengine": operands.DCGM,
    "dcgm-exporter": operands.DCGM_EXPORTER,
    "vectorAdd": shell.VECTOR_ADD,
    "nvidia-smi": shell.NVIDIA_SMI,
    **dict.fromkeys(("start-notebook.sh", "start-notebook.py", "jupyter", "jupyter-lab"), shell.NOTEBOOK),
    "jupyter-notebook": shell.NOTEBOOK,
    "sleep": shell.SLEEP,
    "echo": shell.ECHO,
    "true": shell.SUCCESS,
    "false": shell.FAILURE,
    "pause": shell.SLEEPER,
    "tail": shell.SLEEPER,
}

IMAGES: tuple[tuple[str, str], ...] = (
    ("gpu-operator-validator:*", "nvidia-validator"),
    ("k8s-driver-manager:*", "driver-manager"),
    ("driver:*", "nvidia-driver"),
    ("container-toolkit:*", "nvidia-toolkit"),
    ("gpu-feature-discovery:*", "gpu-feature-discovery"),
    ("k8s-device-plugin:*", "nvidia-device-plugin"),
    ("k8s-mig-manager:*", "nvidia-mig-manager"),
    ("dcgm-exporter:*", "dcgm-exporter"),
    ("dcgm:*", "nv-hostengine"),
    ("*vectoradd*", "vectorAdd"),
    ("*vector-add*", "vectorAdd"),
    ("*jupyter*", "jupyter"),
    ("*notebook*", "jupyter"),
)
"""What an image runs when the pod gives no command; patterns for ``<last part of the name>:<tag>``."""


def find_program(container: Container) -> Program:
    """Return what a container does. Raises ContainerStartError if the container runtime could not start it."""
    if container.script:
        return shell.script_program(container, PROGRAMS)
    for word in container.argv[:2]:
        known = PROGRAMS.get(posixpath.basename(word))
        if known is not None:
            return known
    whole = f"{container.image_name}:{container.tag}"
    program = next((program for pattern, program in IMAGES if fnmatch.fnmatchcase(whole, pattern)), "")
    return PROGRAMS.get(program, shell.UNKNOWN)
