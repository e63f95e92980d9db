"""What the containers of each operand, of Node Feature Discovery and of common workloads do on a machine.

A container is recognised by its program: the command line it has, or the one its image is known to have.
Programs read the pod as it is, so a mistake in a manifest shows as it would on a real node.
"""

from __future__ import annotations

import fnmatch
import posixpath

from gpu_provision.sandbox.nodes.behaviours import (
    device_plugin,
    driver,
    gfd,
    monitoring,
    nfd,
    shell,
    toolkit,
    validator,
    workloads,
)
from gpu_provision.sandbox.nodes.behaviours.behaviour import Behaviour
from gpu_provision.sandbox.nodes.container import Container

__all__ = ["PROGRAMS", "Behaviour", "behaviour_of"]

PROGRAMS: dict[str, Behaviour] = {
    "nfd-worker": nfd.WORKER,
    "nfd-master": nfd.MASTER,
    "nfd-gc": nfd.GARBAGE_COLLECTOR,
    "driver-manager": driver.DRIVER_MANAGER,
    "nvidia-driver": driver.DRIVER,
    "nvidia-toolkit": toolkit.TOOLKIT,
    "nvidia-ctk-installer": toolkit.TOOLKIT,
    "nvidia-validator": validator.VALIDATOR,
    "nvidia-device-plugin": device_plugin.DEVICE_PLUGIN,
    "config-manager": device_plugin.CONFIG_MANAGER,
    "gpu-feature-discovery": gfd.GFD,
    "nv-hostengine": monitoring.DCGM,
    "dcgm-exporter": monitoring.DCGM_EXPORTER,
    "vectorAdd": workloads.VECTOR_ADD,
    "nvidia-smi": workloads.NVIDIA_SMI,
    "start-notebook.sh": workloads.NOTEBOOK,
    "start-notebook.py": workloads.NOTEBOOK,
    "jupyter": workloads.NOTEBOOK,
    "jupyter-lab": workloads.NOTEBOOK,
    "jupyter-notebook": workloads.NOTEBOOK,
    "sleep": workloads.SLEEP,
    "echo": workloads.ECHO,
    "true": workloads.SUCCESS,
    "false": workloads.FAILURE,
    "pause": workloads.SLEEPER,
    "tail": workloads.SLEEPER,
}

IMAGES: tuple[tuple[str, str], ...] = (
    ("gpu-operator-validator:*", "nvidia-validator"),
    ("k8s-driver-manager:*", "driver-manager"),
    ("driver:*", "nvidia-driver"),
    ("container-toolkit:*", "nvidia-toolkit"),
    ("gpu-feature-discovery:*", "gpu-feature-discovery"),
    ("k8s-device-plugin:*", "nvidia-device-plugin"),
    ("dcgm-exporter:*", "dcgm-exporter"),
    ("dcgm:*", "nv-hostengine"),
    ("*vectoradd*", "vectorAdd"),
    ("*vector-add*", "vectorAdd"),
    ("*jupyter*", "jupyter"),
    ("*notebook*", "jupyter"),
)
"""What an image runs when the pod gives no command; patterns for ``<last part of the name>:<tag>``."""


def behaviour_of(container: Container) -> Behaviour:
    """Return what a container does. Raises CannotStart if the container runtime could not start it."""
    if container.script:
        return shell.script_behaviour(container, PROGRAMS)
    for word in container.argv[:2]:
        known = PROGRAMS.get(posixpath.basename(word))
        if known is not None:
            return known
    whole = f"{container.image_name}:{container.tag}"
    program = next((program for pattern, program in IMAGES if fnmatch.fnmatchcase(whole, pattern)), "")
    return PROGRAMS.get(program, workloads.UNKNOWN)
