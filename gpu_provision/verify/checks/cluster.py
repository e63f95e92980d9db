"""What the cluster has to offer once everything runs."""

from __future__ import annotations

import re

import pytest

from gpu_provision.components.gpu_resources import count_problem, declared_devices, read_devices
from gpu_provision.components.labels import DRIVER_VERSION, GPU_PRESENT, GPU_PRODUCT, INVENTORY, PLUGIN_CONFIG
from gpu_provision.components.sharing import expected_replicas
from gpu_provision.components.targets import choose_driver
from gpu_provision.kube.errors import NotFoundError, UnavailableError
from gpu_provision.model.cluster import Manifest
from gpu_provision.model.findings import ForbiddenError
from gpu_provision.model.inventory import Inventory
from gpu_provision.planning.applyset import PART_OF, applyset_id
from gpu_provision.verify.cluster import DeclaredNode, GpuCluster, validation_problem

_NO_SUCH_PATH = "could not find the requested resource"  # the API server's own word, not the exporter's
_EXPORTER, _EXPORTER_PORT = {"app": "nvidia-dcgm-exporter"}, 9400


def test_the_node_is_ready(inventory_node: DeclaredNode, gpu_cluster: GpuCluster) -> None:
    """Every declared node is in the cluster, and its kubelet says so."""
    try:
        node = gpu_cluster.node(inventory_node.name)
    except NotFoundError:
        pytest.fail("the cluster has no node of this name")
    ready: dict[str, str] = next((each for each in node["status"].get("conditions", ()) if each["type"] == "Ready"), {})
    assert ready.get("status") == "True", f"not Ready: {ready.get('message') or 'its kubelet has not said so'}"


def test_the_node_carries_the_labels_of_its_pool(
    gpu_node: DeclaredNode, gpu_inventory: Inventory, gpu_cluster: GpuCluster
) -> None:
    """Those by which components and workloads find it."""
    own = gpu_node.node.labels if gpu_node.node else {}
    wanted = {GPU_PRESENT: "true", INVENTORY: gpu_inventory.name, **gpu_node.pool.labels, **own}
    live = gpu_cluster.node(gpu_node.name)["metadata"].get("labels") or {}
    differing = [
        f"{key} is {live.get(key, 'missing')}, not {value}" for key, value in wanted.items() if live.get(key) != value
    ]
    assert not differing, "; ".join(differing)


def test_the_driver_is_of_the_declared_version(
    gpu_node: DeclaredNode, gpu_inventory: Inventory, gpu_cluster: GpuCluster
) -> None:
    """As GPU Feature Discovery reads it off the loaded driver."""
    driver, live = gpu_node.pool.driver, gpu_cluster.node(gpu_node.name)["metadata"].get("labels") or {}
    if choose_driver(driver, read=None, labels=live).on_host:
        pytest.skip("the driver belongs to the host, and the inventory says no version")
    if not gpu_inventory.specs.gfd.enabled:
        pytest.skip("gfd is off: the version is not read")
    if driver.image.version.startswith("sha256:"):
        pytest.skip("the driver is declared by digest, which says no version")
    if not re.match(r"\d{3}([.-]|$)", driver.image.version):
        pytest.skip(f"the driver is declared by the tag {driver.image.version}, which says no version")
    found = live.get(DRIVER_VERSION, "missing")
    # A suffix of the user's image may follow the version; precompiled drivers are declared by their branch.
    same = driver.image.version == found or driver.image.version.startswith(f"{found}-")
    same = same or (driver.use_precompiled and found.startswith(f"{driver.image.version}."))
    assert same, f"{DRIVER_VERSION} is {found}, not {driver.image.version}"


def test_kubernetes_offers_the_declared_gpus(
    gpu_node: DeclaredNode, gpu_inventory: Inventory, gpu_cluster: GpuCluster
) -> None:
    """Each as often as the configuration of the device plugin says; a MIG configuration says which devices."""
    plugin, gpu = gpu_inventory.specs.device_plugin, gpu_node.pool.gpu
    if not plugin.enabled or gpu is None:
        pytest.skip("device_plugin is off")
    node = gpu_cluster.node(gpu_node.name)
    devices, labels = read_devices(node["status"].get("allocatable", {})), node["metadata"].get("labels") or {}
    replicas = expected_replicas(plugin, labels.get(PLUGIN_CONFIG, ""))
    problem = count_problem(gpu, labels, devices, replicas=replicas)
    assert not problem, problem
    offered = {name.removesuffix(".shared"): count for name, count in devices.items() if count}
    declared = declared_devices(gpu_node.pool, labels.get(GPU_PRODUCT, ""), gpu_inventory, replicas)
    assert declared in ({}, offered), f"allocatable are {offered}, the MIG configuration makes {declared}"


def test_vector_add_has_passed_with_this_driver_and_toolkit(
    gpu_node: DeclaredNode, gpu_inventory: Inventory, gpu_cluster: GpuCluster
) -> None:
    """In the validator's pod, which asks Kubernetes for no GPU."""
    _require_passed("driver_validation", gpu_node, gpu_inventory, gpu_cluster)


def test_vector_add_has_passed_on_a_gpu_that_kubernetes_granted(
    gpu_node: DeclaredNode, gpu_inventory: Inventory, gpu_cluster: GpuCluster
) -> None:
    """The pod that asked for ``nvidia.com/gpu``, as workloads do."""
    if not gpu_inventory.specs.device_plugin.enabled:
        pytest.skip("device_plugin is off")
    _require_passed("device_plugin_validation", gpu_node, gpu_inventory, gpu_cluster)


def test_dcgm_exporter_answers_for_every_gpu(
    gpu_node: DeclaredNode, gpu_inventory: Inventory, gpu_cluster: GpuCluster
) -> None:
    """Its metrics are read through the API server, as no other way leads from here to a pod."""
    if not gpu_inventory.specs.dcgm_exporter.enabled:
        pytest.skip("dcgm_exporter is off")
    pods = gpu_cluster.pods(node=gpu_node.name, labels=_EXPORTER)
    assert pods, "no pod of DCGM exporter is on this node"
    metrics = _metrics(gpu_cluster, pods[0]["metadata"]["name"])
    counted = len(set(re.findall(r'^DCGM_FI_\w+\{[^}]*\bgpu="(\d+)"', metrics, re.MULTILINE)))
    declared = gpu_node.has_as_declared(counted)
    assert declared, f"its metrics are of {counted} GPUs, declared are {gpu_node.gpus or 'any'}"


def test_every_daemonset_is_complete(gpu_inventory: Inventory, gpu_cluster: GpuCluster) -> None:
    """A pod of the present content is available on every node that needs one."""
    wanted = {PART_OF: applyset_id(gpu_inventory.name, gpu_inventory.cluster.namespace)}
    found = gpu_cluster.daemonsets(labels=wanted)
    assert found, "no DaemonSet of this inventory is there: nothing was applied"
    short = [f"{each['metadata']['name']} {said}" for each in found if (said := _describe_incomplete(each))]
    assert not short, "; ".join(short)


def _describe_incomplete(daemonset: Manifest) -> str:
    """Say how a DaemonSet falls short; empty if it does not.

    A driver's pods outlive changes that do not reach what is installed; its version has a test of its own. Other
    operands' do where daemonsets.update_strategy is OnDelete.
    """
    status = daemonset.get("status", {})
    if status.get("observedGeneration") != daemonset["metadata"].get("generation"):
        return "was changed a moment ago"
    wanted = status.get("desiredNumberScheduled", 0)
    updated, available = status.get("updatedNumberScheduled", 0), status.get("numberAvailable", 0)
    is_on_delete = daemonset["spec"].get("updateStrategy", {}).get("type") == "OnDelete"
    if updated < wanted and not is_on_delete:
        return f"has {updated} of {wanted} pods of its current content"
    return f"has {available} of {wanted} pods available" if available < wanted else ""


def _require_passed(component: str, node: DeclaredNode, inventory: Inventory, cluster: GpuCluster) -> None:
    why = validation_problem(inventory, cluster, component, node.name)
    if why is None:
        pytest.skip("a label of the node keeps validations away")
    assert not why, f"it has not passed with the declared content and today's pods: {why}: run gpu-provision apply"


def _metrics(cluster: GpuCluster, pod: str) -> str:
    """Return what the exporter prints; skips the test if this API server leads to no pod."""
    path = f"/api/v1/namespaces/{cluster.namespace}/pods/{pod}:{_EXPORTER_PORT}/proxy/metrics"
    try:
        return cluster.text(path)
    except ForbiddenError:
        pytest.skip("this account has no permission to get pods/proxy")
    except NotFoundError as error:
        if _NO_SUCH_PATH in error.findings[0].evidence:
            pytest.skip("this API server has no proxy to pods")
        raise
    except UnavailableError as error:
        pytest.fail(f"pod {pod} does not answer: {error.findings[0].evidence}")
