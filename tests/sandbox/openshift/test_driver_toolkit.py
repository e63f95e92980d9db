"""The driver on RHCOS: the Driver Toolkit of the node's own release builds it, every other one fails as a real one."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gpu_provision.sandbox import objects
from gpu_provision.sandbox.api import CONFIG_MAPS, NODE_FEATURES, PODS, Object
from tests.sandbox.kubelet.conftest import stack
from tests.sandbox.lab import Simulate
from tests.sandbox.openshift.conftest import NEW, OLD, OpenShiftLab, fleet, machine_config, use_binding

DRIVER, TOOLKIT = "nvidia-driver-ctr", "openshift-driver-toolkit-ctr"
SHARED = {"name": "shared", "mountPath": "/mnt/shared-nvidia-driver-toolkit"}
ROOT = {"name": "run-nvidia", "mountPath": "/run/nvidia", "mountPropagation": "Bidirectional"}
SCRIPT = "until [ -f {0}/dir_prepared ]; do echo waiting; sleep 10; done\nexec {0}/ocp_dtk_entrypoint dtk-build-driver"
NO_TAG = [{"name": "RHCOS_IMAGE_MISSING", "value": "true"}, {"name": "RHCOS_VERSION", "value": OLD.rhcos}]
ENTITLEMENT = "RHEL entitlement may be improperly deployed"


def driver_pod(
    image: str = OLD.toolkit_image, *, driver: Object | None = None, toolkit: Object | None = None
) -> Object:
    """Return the pod of a driver with its Driver Toolkit, as far as the simulation reads it."""
    privileged = {"securityContext": {"privileged": True}}
    run = {"command": ["ocp_dtk_entrypoint"], "args": ["nv-ctr-run-with-dtk"], "volumeMounts": [SHARED, ROOT]}
    first = {"name": DRIVER, "image": "nvcr.io/nvidia/driver:580.95.05-rhcos4.18", **privileged, **run}
    build = {"command": ["bash", "-xc"], "args": [SCRIPT.format(SHARED["mountPath"])], "volumeMounts": [SHARED]}
    second = {"name": TOOLKIT, "image": image, **privileged, **build}
    volumes = [{"name": "shared", "emptyDir": {}}, {"name": "run-nvidia", "hostPath": {"path": "/run/nvidia"}}]
    containers = [{**first, **(driver or {})}, {**second, **(toolkit or {})}]
    spec = {"nodeName": "gpu-0", "containers": containers, "volumes": volumes}
    annotations = {"openshift.io/required-scc": "privileged"}
    return {"metadata": {"name": "driver", "labels": {"app": "driver"}, "annotations": annotations}, "spec": spec}


async def start(lab: OpenShiftLab, pod: Object) -> None:
    """Let the default account use the constraint ``privileged``, keep nouveau away, and run the pod."""
    await lab.create(use_binding("privileged"))
    lab.machines["gpu-0"].state.blocked = ["nouveau"]
    await lab.api.create(PODS, pod, "default")


def test_the_toolkit_of_the_nodes_release_builds_the_driver(simulate: Simulate) -> None:
    async def scenario(lab: OpenShiftLab) -> None:
        await start(lab, driver_pod())
        await lab.says("driver", DRIVER, "Done, now waiting for signal")
        pod = await lab.pod("driver")
        assert "Start building nvidia.ko driver" in lab.output(pod, TOOLKIT)
        assert "Executing nvidia-driver load script" in lab.output(pod, DRIVER)
        assert lab.machines["gpu-0"].state.driver == "580.95.05"

    simulate(scenario)


@pytest.mark.parametrize(
    ("pod", "says"),
    [
        (
            driver_pod(NEW.toolkit_image),
            {
                TOOLKIT: f"image detected:\n- Node kernel:    {OLD.kernel}\n- Kernel package: {NEW.kernel}",
                DRIVER: "WARNING: broken driver toolkit detected, using entitlement-based fallback",
            },
        ),
        (driver_pod("quay.io/other:1"), {TOOLKIT: "- Kernel package: package kernel-core is not installed"}),
        (
            driver_pod(driver={"env": NO_TAG}, toolkit={"env": NO_TAG}),
            {
                TOOLKIT: "waiting",
                DRIVER: f"WARNING: RHCOS '{OLD.rhcos}' imagetag missing, using entitlement-based fallback",
            },
        ),
        (driver_pod(driver={"command": ["nvidia-driver"], "args": ["init"]}), {}),
    ],
    ids=["of-another-release", "no-toolkit", "missing-tag", "without-toolkit"],
)
def test_without_that_toolkit_a_build_needs_an_entitlement(
    simulate: Simulate, pod: Object, says: dict[str, str]
) -> None:
    async def scenario(lab: OpenShiftLab) -> None:
        await start(lab, pod)
        for container, text in {**says, DRIVER: says.get(DRIVER, ENTITLEMENT)}.items():
            await lab.says("driver", container, text)
        await lab.says("driver", DRIVER, ENTITLEMENT)
        assert not lab.machines["gpu-0"].state.driver

    simulate(scenario)


def test_an_entitlement_replaces_the_toolkit(simulate: Simulate) -> None:
    entitled = {"name": "key", "mountPath": "/etc/pki/entitlement"}
    pod = driver_pod(driver={"env": NO_TAG, "volumeMounts": [SHARED, ROOT, entitled]}, toolkit={"env": NO_TAG})
    pod["spec"]["volumes"].append({"name": "key", "configMap": {"name": "entitlement"}})

    async def scenario(lab: OpenShiftLab) -> None:
        await lab.api.create(CONFIG_MAPS, {"metadata": {"name": "entitlement"}, "data": {"key.pem": "x"}}, "default")
        await start(lab, pod)
        # The image is for rhcos4.18 as the node is, so its own build succeeds.
        await lab.says("driver", DRIVER, "Done, now waiting for signal")

    simulate(scenario)


@pytest.mark.parametrize("container", ["driver", "toolkit"])
def test_both_containers_need_the_shared_directory(simulate: Simulate, container: str) -> None:
    """Without it, the driver's script ends at once, and the toolkit's waits for ever."""
    pod = driver_pod(**{container: {"volumeMounts": [ROOT]}})  # type: ignore[arg-type]
    says = {"driver": (DRIVER, "must be populated with a valid directory"), "toolkit": (TOOLKIT, "waiting")}

    async def scenario(lab: OpenShiftLab) -> None:
        await start(lab, pod)
        await lab.says("driver", *says[container])
        assert not lab.machines["gpu-0"].state.driver

    simulate(scenario)


def test_a_build_that_fails_crashes_the_toolkit(simulate: Simulate) -> None:
    """The driver waits for it, and loads what a later build makes."""

    async def scenario(lab: OpenShiftLab) -> None:
        await lab.faults({"fault": "driver-build-fails", "node": "gpu-0", "message": "no member named 'dev'"})
        await start(lab, driver_pod())
        await lab.says("driver", TOOLKIT, "no member named 'dev'")
        await lab.says("driver", DRIVER, "to build the precompiled driver")
        await lab.faults()
        await lab.says("driver", DRIVER, "Done, now waiting for signal")

    simulate(scenario)


def test_modules_of_another_kernel_are_not_loaded(simulate: Simulate) -> None:
    """A pod that outlives an upgrade has the modules that it built before."""

    async def scenario(lab: OpenShiftLab) -> None:
        await start(lab, driver_pod())
        await lab.says("driver", DRIVER, "Done, now waiting for signal")
        await lab.faults({"fault": "node-reboots", "node": "gpu-0", "kernel": NEW.kernel})
        await lab.says("driver", DRIVER, "Exec format error")
        await lab.says("driver", TOOLKIT, "broken Driver Toolkit image detected")
        assert not lab.machines["gpu-0"].state.driver

    simulate(scenario)


def test_side_cars_load_what_the_toolkit_builds(simulate: Simulate) -> None:
    pod = driver_pod(toolkit={"env": [{"name": "GDS_ENABLED", "value": "true"}]})
    side_car = {"name": "nvidia-fs-ctr", "image": "nvcr.io/nvidia/cloud-native/nvidia-fs:2.27.3-rhcos4.18"}
    run = {"command": ["ocp_dtk_entrypoint"], "args": ["nv-fs-ctr-run-with-dtk"], "volumeMounts": [SHARED]}
    pod["spec"]["containers"].append({**side_car, **run})

    async def scenario(lab: OpenShiftLab) -> None:
        await start(lab, pod)
        await lab.says("driver", "nvidia-fs-ctr", "successfully loaded nvidia_fs module")
        assert {"nvidia", "nvidia_fs"} <= set(lab.machines["gpu-0"].state.modules)

    simulate(scenario)


def test_nouveau_holds_the_gpu_until_a_machine_config_forbids_it(simulate: Simulate) -> None:
    async def scenario(lab: OpenShiftLab) -> None:
        await start(lab, driver_pod())
        lab.machines["gpu-0"].state.blocked = []
        await lab.says("driver", DRIVER, "the nouveau kernel module is loaded and holds the GPU")
        await lab.create(machine_config("99-worker-nouveau", kernelArguments=["modprobe.blacklist=nouveau"]))
        await lab.rolled("99-worker-nouveau")
        assert not lab.machines["gpu-0"].nouveau_loaded()

    simulate(scenario)


_RANGE = "{{ range .system.osrelease }}feature.node.kubernetes.io/system-os_release.{{ .Name }}={{ .Value }}\n{{ end }}"
_EXISTS = {"feature": "system.osrelease", "matchExpressions": {"OSTREE_VERSION": {"op": "Exists"}}}
_RULE = {"name": "rhcos", "labelsTemplate": _RANGE, "matchFeatures": [_EXISTS]}


@pytest.mark.parametrize(
    ("image", "rules", "labels"),
    [
        ("registry.k8s.io/nfd/node-feature-discovery:v0.19.0", [], set()),
        ("registry.k8s.io/nfd/node-feature-discovery:v0.19.0", [_RULE], {"OSTREE_VERSION"}),
        (
            "registry.redhat.io/openshift4/ose-node-feature-discovery-rhel9:v4.18",
            [],
            {"OSTREE_VERSION", "RHEL_VERSION", "OPENSHIFT_VERSION"},
        ),
    ],
    ids=["upstream", "upstream-with-a-rule", "downstream"],
)
def test_who_labels_the_build_of_rhcos(
    simulate: Simulate, image: str, rules: list[dict[str, Any]], labels: set[str]
) -> None:
    """Only OpenShift's own Node Feature Discovery does so by itself."""
    prefix = "feature.node.kubernetes.io/system-os_release."
    [definition] = (each for each in stack() if each["kind"] == "CustomResourceDefinition")
    node_name = {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}
    mounts = {"/etc/kubernetes/node-feature-discovery": "conf", "/host-etc/os-release": "os"}
    worker = {
        "name": "worker",
        "image": image,
        "command": ["nfd-worker"],
        "env": [node_name],
        "volumeMounts": [{"name": name, "mountPath": path} for path, name in mounts.items()],
    }
    volumes = [{"name": "conf", "configMap": {"name": "conf"}}, {"name": "os", "hostPath": {"path": "/etc/os-release"}}]
    pod = {"nodeName": "gpu-0", "containers": [worker], "volumes": volumes}
    metadata = {"name": "nfd", "annotations": {"openshift.io/required-scc": "hostmount-anyuid"}}

    async def scenario(lab: OpenShiftLab) -> None:
        await lab.create(definition)
        config = {"nfd-worker.conf": json.dumps({"sources": {"custom": rules}})}
        await lab.api.create(CONFIG_MAPS, {"metadata": {"name": "conf"}, "data": config}, "default")
        await lab.create(use_binding("hostmount-anyuid"))
        await lab.api.create(PODS, {"metadata": metadata, "spec": pod}, "default")

        async def published() -> Object | None:
            found, _ = await lab.api.list(NODE_FEATURES, "default")
            return found[0] if found else None

        feature = await lab.until(published, "the NodeFeature")
        found = {key.removeprefix(prefix) for key in feature["spec"]["labels"] if key.startswith(prefix)}
        assert found == {"ID", "VERSION_ID", "VERSION_ID.major", "VERSION_ID.minor", *labels}
        if labels:
            assert feature["spec"]["labels"][f"{prefix}OSTREE_VERSION"] == OLD.rhcos
        assert objects.name(feature) == "gpu-0"

    simulate(scenario, fleet())
