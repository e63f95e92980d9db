"""The Driver Toolkit of OpenShift, which builds the driver on CoreOS without a Red Hat entitlement.

A container beside the driver runs the toolkit's image, which has the kernel headers of one release of CoreOS. Both
containers share a volume: the driver's copies its sources there, the toolkit's builds, and the driver's loads the
modules. The steps are those of `ocp_dtk_entrypoint` in NVIDIA/gpu-driver-container; containers, variables and labels
those of `transformOpenShiftDriverToolkitContainer` in the GPU Operator 26.7.
"""

from __future__ import annotations

from typing import Any

from gpu_provision.components import labels, pods
from gpu_provision.model.cluster import Target

ENTRYPOINT = "ocp_dtk_entrypoint"
"""Program of the images of driver, nvidia-fs and gdrdrv that takes part in the build."""

BUILD_DRIVER = "nv-ctr-run-with-dtk"
"""Argument of `ENTRYPOINT` in the driver container."""

CONTAINER = "openshift-driver-toolkit-ctr"

_SHARED, _SHARED_DIRECTORY = "shared-nvidia-driver-toolkit", "/mnt/shared-nvidia-driver-toolkit"
VOLUME: dict[str, Any] = {"name": _SHARED, "emptyDir": {}}
MOUNT = pods.mount(_SHARED, _SHARED_DIRECTORY)

# Written by the driver container once its sources are there.
_PREPARED = f"{_SHARED_DIRECTORY}/dir_prepared"
_SCRIPT = (
    f"until [ -f {_PREPARED} ]; do echo waiting for {_PREPARED}; sleep 10; done\n"
    f"exec {_SHARED_DIRECTORY}/{ENTRYPOINT} dtk-build-driver\n"
)

_MOUNTS = [
    MOUNT,
    pods.mount("var-log", "/var/log"),
    pods.mount("mlnx-ofed-usr-src", "/run/mellanox/drivers/usr/src", pods.TO_CONTAINER),
    pods.mount("host-os-release", "/host-etc/os-release", read_only=True),
    pods.mount("firmware-search-path", "/sys/module/firmware_class/parameters/path"),
    pods.mount("nv-firmware", "/lib/firmware"),
]


def pod_labels(target: Target) -> dict[str, str]:
    """Return the labels of the DaemonSet and its pods; none without a Driver Toolkit."""
    if not target.toolkit_release:
        return {}
    missing = {"openshift.driver-toolkit.rhcos-image-missing": "true"} if target.lacks_toolkit else {}
    return {"openshift.driver-toolkit": "true", "openshift.driver-toolkit.rhcos": target.toolkit_release, **missing}


def node_labels(target: Target) -> dict[str, str]:
    """Return the label in the node selector, so that a pod leaves a node that boots another release."""
    return {labels.NFD_OSTREE: target.toolkit_release} if target.toolkit_release else {}


def missing_environment(target: Target) -> dict[str, str]:
    """Return the variables with which the driver container builds by itself, since its release has no toolkit image.

    Such a build needs a Red Hat entitlement on the node.
    """
    missing = {"RHCOS_IMAGE_MISSING": "true", "RHCOS_VERSION": target.toolkit_release}
    return missing if target.lacks_toolkit else {}


def container(target: Target, driver_image: str) -> dict[str, Any]:
    """Return the container that builds; without a toolkit image it runs that of the driver, and builds nothing."""
    spec = target.pool.driver
    declared = {
        "RHCOS_VERSION": target.toolkit_release,
        "NVIDIA_VISIBLE_DEVICES": "void",
        **missing_environment(target),
        **{f"{name.upper()}_ENABLED": "true" for name in target.pool.module_builders},
    }
    return pods.container(
        CONTAINER,
        spec,
        image=target.toolkit_image or driver_image,
        imagePullPolicy="IfNotPresent",
        **pods.shell(_SCRIPT),
        env=pods.environment(declared),
        securityContext=pods.PRIVILEGED_S0,
        resources=dict(spec.resources),
        volumeMounts=_MOUNTS,
    )
