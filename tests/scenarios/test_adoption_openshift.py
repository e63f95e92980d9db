"""A GPU Operator on OpenShift is taken over, whose driver a Driver Toolkit has built.

On the sandbox alone. The operator's objects are those of tests/adopt, with names and labels that it has on OpenShift
(transformOpenShiftDriverToolkitContainer in NVIDIA/gpu-operator). The driver's constraints stand for those of all its
accounts.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_provision.sandbox.openshift_releases import RELEASES
from tests.adopt.chart import NAMESPACE, install
from tests.scenarios.on_sandbox import SandboxWorld, sandbox_world

_RELEASE = RELEASES["4.18.13"]
_APP = f"nvidia-driver-daemonset-{_RELEASE.rhcos}"
_OSTREE = "feature.node.kubernetes.io/system-os_release.OSTREE_VERSION"  # of the discovery that OpenShift brings
_SHARED = "/mnt/shared-nvidia-driver-toolkit"
_GPU_NODES = ["gpu-0", "gpu-1"]
_NODES: list[dict[str, Any]] = [
    {"name": "master-0", "roles": ["control-plane"]},
    *({"name": name, "gpu": {"model": "Tesla T4", "count": 1}} for name in _GPU_NODES),
]
_ANY = {"type": "RunAsAny"}
_CONSTRAINTS: dict[str, Any] = {
    "apiVersion": "security.openshift.io/v1",
    "kind": "SecurityContextConstraints",
    "metadata": {"name": "nvidia-driver"},
    **dict.fromkeys(("fsGroup", "runAsUser", "seLinuxContext", "supplementalGroups"), _ANY),
    **{f"allowHost{name}": True for name in ("DirVolumePlugin", "IPC", "Network", "PID", "Ports")},
    "allowPrivilegeEscalation": True,
    "allowPrivilegedContainer": True,
    "allowedCapabilities": ["*"],
    "readOnlyRootFilesystem": False,
    "defaultAddCapabilities": None,
    "requiredDropCapabilities": None,
    "priority": None,
    "volumes": ["*"],
    "seccompProfiles": ["*"],
    "users": [],
    "groups": [f"system:serviceaccounts:{NAMESPACE}"],
}


@pytest.mark.real  # for the time it takes
def test_drivers_of_the_operator_keep_running(tmp_path: Path) -> None:
    """No pod of a driver is replaced, no node reboots, and a plan is empty afterwards."""
    with sandbox_world(tmp_path, nodes=_NODES, openshift={"version": _RELEASE.version}) as world:
        world.submit(_CONSTRAINTS)
        world.api.label("nodes", *_GPU_NODES, labels={_OSTREE: _RELEASE.rhcos}, manager="nfd")
        install(world, _GPU_NODES, on_openshift)
        in_use = {"spec": {"operator": {"use_ocp_driver_toolkit": True}}}
        world.api.patch("clusterpolicy", "cluster-policy", patch=in_use)
        policy = world.json("clusterpolicy", "cluster-policy")
        owner = {"apiVersion": policy["apiVersion"], "kind": policy["kind"], **_named(policy)}
        world.api.patch(*_DRIVERS, patch={"metadata": {"ownerReferences": [owner]}})
        before, boots = drivers(world), {name: world.boot(name) for name in _GPU_NODES}
        inventory = world.folder / "gpu.yaml"
        world.cli("adopt", "--inventory-out", str(inventory), "--kubeconfig", str(world.kubeconfig), check=True)
        written = yaml.safe_load(inventory.read_text())
        assert written["pools"] == {"t4": {"gpu": {"model": "T4", "count": 1}}}, "an update changes the system"
        assert (written["cluster"]["platform"], written["host_prerequisites"]) == ("openshift", {"enabled": False})
        words = ("-i", str(inventory), "--kubeconfig", str(world.kubeconfig))
        world.cli("adopt", *words, "--yes", check=True)
        assert drivers(world) == before
        names = {item["metadata"]["name"] for item in world.json("daemonsets", "-n", NAMESPACE)["items"]}
        assert {name for name in names if "driver" in name} == {f"nvidia-driver-daemonset-rhcos4.18-{_RELEASE.rhcos}"}
        constraints = world.json(*_DRIVERS)
        assert not constraints.get("groups")
        assert "ownerReferences" not in constraints["metadata"]
        assert {name: world.boot(name) for name in _GPU_NODES} == boots
        assert not world.api.exists("machineconfig", "99-worker-gpu-provision")
        planned = world.cli("plan", "--json", *words).document
        assert (planned["changes"], planned["errors"]) == ([], [])


_DRIVERS = ("securitycontextconstraints", "nvidia-driver")


def _named(item: dict[str, Any]) -> dict[str, Any]:
    return {key: item["metadata"][key] for key in ("name", "uid")}


def on_openshift(item: dict[str, Any]) -> dict[str, Any]:
    """Return an object of the operator as it is on OpenShift: the driver's is for one release of CoreOS."""
    if (item["kind"], item["metadata"]["name"]) != ("DaemonSet", "nvidia-driver-daemonset"):
        return item
    made = copy.deepcopy(item)
    spec, labels = made["spec"], {"app": _APP, "openshift.driver-toolkit": "true"}
    made["metadata"] |= {"name": _APP, "labels": {**made["metadata"]["labels"], **labels}}
    spec["selector"]["matchLabels"]["app"] = _APP
    spec["template"]["metadata"]["labels"] |= labels
    pod = spec["template"]["spec"]
    pod["nodeSelector"][_OSTREE] = _RELEASE.rhcos
    [driver] = pod["containers"]
    driver |= {"image": driver["image"].replace("ubuntu24.04", _RELEASE.os), "command": ["ocp_dtk_entrypoint"]}
    driver |= {"args": ["nv-ctr-run-with-dtk"]}
    driver["env"].append({"name": "OPENSHIFT_VERSION", "value": _RELEASE.minor})
    toolkit = {
        "name": "openshift-driver-toolkit-ctr",
        "image": _RELEASE.toolkit_image,
        "command": ["bash", "-c"],
        "args": [
            f"until [ -f {_SHARED}/dir_prepared ]; do sleep 1; done; exec {_SHARED}/ocp_dtk_entrypoint dtk-build-driver"
        ],
        "env": [{"name": "RHCOS_VERSION", "value": _RELEASE.rhcos}],
        "securityContext": {"privileged": True},
        "volumeMounts": [],
    }
    pod["containers"].append(toolkit)
    pod["volumes"].append({"name": "shared-nvidia-driver-toolkit", "emptyDir": {}})
    for container in (driver, toolkit):
        container["volumeMounts"].append({"name": "shared-nvidia-driver-toolkit", "mountPath": _SHARED})
    return made


def drivers(world: SandboxWorld) -> dict[str, str]:
    """Return the uid of each node's driver pod."""
    component = ("-l", "app.kubernetes.io/component=nvidia-driver")
    pods = world.json("pods", "-n", NAMESPACE, *component)["items"]
    assert sorted(pod["spec"]["nodeName"] for pod in pods) == _GPU_NODES
    return {pod["spec"]["nodeName"]: pod["metadata"]["uid"] for pod in pods}
