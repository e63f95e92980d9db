"""Directories of the hosts that operands use: those of ``host_paths``, or of the nodes' Kubernetes distribution.

As in the GPU Operator, one DaemonSet serves all nodes, so a fleet has one value of each.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from typing import Any

from gpu_provision.model.cluster import RenderContext
from gpu_provision.model.hosts import paths_of
from gpu_provision.model.operand_specs import DRIVER_CONTAINER_ROOT

_HOST_ROOT, _HOST_DEV_CHAR, _DRIVER_DIR = "host-root", "host-dev-char", "driver-install-dir"  # names of volumes

# GKE's installer puts its drivers there: https://cloud.google.com/kubernetes-engine/docs/how-to/gpu-operator. Talos
# since 1.13 and Bottlerocket have theirs where a validation of the host finds it.
_HOST_DRIVERS = {"gke": "/home/kubernetes/bin/nvidia"}


def driver_install_dir(context: RenderContext) -> str:
    """Return the root of drivers that are not in the host's own directories.

    A distribution's directory counts if all nodes are of it and have drivers of the host.
    """
    declared = context.inventory.specs.host_paths.driver_install_dir
    if declared != DRIVER_CONTAINER_ROOT or not all(target.driver.on_host for target in context.targets):
        return declared
    return _HOST_DRIVERS.get(_common_distribution(context), DRIVER_CONTAINER_ROOT)


def kubelet_root_dir(context: RenderContext) -> str:
    """Return the kubelet's directory; with several distributions, the default one."""
    return context.inventory.specs.host_paths.kubelet_root_dir or paths_of(_common_distribution(context)).kubelet_root


def _common_distribution(context: RenderContext) -> str:
    found = {target.facts.distribution for target in context.targets if target.facts}
    return found.pop() if len(found) == 1 else ""


def with_host_paths(pod: Mapping[str, Any], context: RenderContext) -> dict[str, Any]:
    """Return a pod spec with these directories in place of the default ones, and variables that name them.

    It changes what transformForHostRoot and transformForDriverInstallDir of the GPU Operator 26.7 change
    (controllers/object_controls.go). A variable that the user has set stays.
    """
    root, driver = context.inventory.specs.host_paths.root_fs, driver_install_dir(context)
    moved = {
        **({_HOST_ROOT: root, _HOST_DEV_CHAR: posixpath.join(root, "dev/char")} if root != "/" else {}),
        **({_DRIVER_DIR: driver} if driver != DRIVER_CONTAINER_ROOT else {}),
    }
    present = moved.keys() & {volume["name"] for volume in pod.get("volumes", ())}
    if not present:
        return dict(pod)
    volumes = [
        {**volume, "hostPath": {**volume["hostPath"], "path": moved[volume["name"]]}}
        if volume["name"] in present
        else volume
        for volume in pod["volumes"]
    ]
    result = {**pod, "volumes": volumes}
    for kind in ("initContainers", "containers"):
        if kind in pod:
            result[kind] = [_with_variables(each, root, driver, present) for each in pod[kind]]
    return result


def _with_variables(container: Mapping[str, Any], root: str, driver: str, present: set[str]) -> dict[str, Any]:
    result, variables = dict(container), dict[str, str]()
    if _HOST_ROOT in present:
        variables["HOST_ROOT"] = root
    # The validation runs the driver's programs, so it has the directory at the same path as the host.
    if _DRIVER_DIR in present and container["name"] == "driver-validation":
        variables |= {"DRIVER_INSTALL_DIR": driver, "DRIVER_INSTALL_DIR_CTR_PATH": driver}
        result["volumeMounts"] = [
            {**mount, "mountPath": driver} if mount["name"] == _DRIVER_DIR else mount
            for mount in container["volumeMounts"]
        ]
    env = list(container.get("env", ()))
    known = {entry["name"] for entry in env}
    env += [{"name": name, "value": value} for name, value in variables.items() if name not in known]
    return {**result, "env": env} if env else result
