"""One reading of a cluster: one LIST per kind, at the same time, whatever the number of nodes; and what a Node says.

Where a stack has no objects yet, its kinds are listed whole, as metadata: what a plan creates then needs no dry run to
say whether something stands in its way.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from collections.abc import Iterable, Mapping
from functools import partial
from typing import NamedTuple

from gpu_provision.components.labels import NOT_VALIDATED
from gpu_provision.kube import lock, records
from gpu_provision.kube.client import KubeClient, ObjectList
from gpu_provision.kube.errors import NotFoundError
from gpu_provision.kube.lock import LockState
from gpu_provision.kube.resources import KINDS, path_to
from gpu_provision.kube.transport import RequestPool
from gpu_provision.kube.trim import trim
from gpu_provision.model.cluster import ClusterFacts, Kind, Manifest, NodeFacts, ObjectRef, ObservedState, ref_of
from gpu_provision.model.findings import ForbiddenError
from gpu_provision.model.inventory import Inventory, OperatingSystem
from gpu_provision.planning.applyset import PART_OF, STACK, applyset_id, group_kind, kinds_of
from gpu_provision.rollout.states import writer_of

_OS_ID, _OS_VERSION = (
    "feature.node.kubernetes.io/system-os_release.ID",
    "feature.node.kubernetes.io/system-os_release.VERSION_ID",
)
_MICROK8S = "microk8s.io/cluster"

# How status.nodeInfo.osImage (PRETTY_NAME of /etc/os-release) begins, and the ID that goes with it.
_OS_IMAGES: tuple[tuple[str, str], ...] = (
    (r"Ubuntu (\d+\.\d+)", "ubuntu"),
    (r"Debian GNU/Linux (\d+)", "debian"),
    (r"Red Hat Enterprise Linux CoreOS (\d+)", "rhcos"),
    (r"Red Hat Enterprise Linux (\d+\.\d+)", "rhel"),
    (r"Rocky Linux (\d+\.\d+)", "rocky"),
    (r"Oracle Linux Server (\d+\.\d+)", "ol"),
    (r"CentOS (?:Linux|Stream) (\d+)", "centos"),
    (r"SUSE Linux Enterprise Server (\d+) SP(\d+)", "sles"),
    (r"Flatcar Container Linux by Kinvolk (\d+\.\d+\.\d+)", "flatcar"),
    (r"Amazon Linux (\d+)", "amzn"),
)


def node_facts(node: Manifest) -> NodeFacts:
    """Return what a Node object says about its machine."""
    metadata, status = node["metadata"], node.get("status", {})
    info = status.get("nodeInfo", {})
    runtime, _, runtime_version = info.get("containerRuntimeVersion", "").partition("://")
    found = metadata.get("labels") or {}
    named = found.get(_OS_ID, ""), found.get(_OS_VERSION, "")
    unschedulable = bool(node.get("spec", {}).get("unschedulable"))
    cordoned_by, cordoned_at = writer_of(metadata) if unschedulable else ("", "")
    gpus = str(status.get("allocatable", {}).get("nvidia.com/gpu", ""))
    taints = tuple(node.get("spec", {}).get("taints") or ())
    is_tainted = any(each.get("key") == NOT_VALIDATED for each in taints)
    return NodeFacts(
        name=metadata["name"],
        uid=metadata.get("uid", ""),
        labels=found,
        annotations=metadata.get("annotations") or {},
        os=OperatingSystem(*named) if all(named) else os_of_image(info.get("osImage", "")),
        kernel=info.get("kernelVersion", ""),
        architecture=info.get("architecture", ""),
        container_runtime=runtime,
        container_runtime_version=runtime_version,
        distribution=_distribution(info.get("kubeletVersion", ""), found),
        boot_id=info.get("bootID", ""),
        ready=any(each["type"] == "Ready" and each["status"] == "True" for each in status.get("conditions", ())),
        unschedulable=unschedulable,
        cordoned_by=cordoned_by,
        cordoned_at=cordoned_at,
        gpus_allocatable=int(gpus) if gpus.isdecimal() else None,
        taints=taints,
        revision=metadata.get("resourceVersion", "") if is_tainted else "",
    )


def os_of_image(text: str) -> OperatingSystem | None:
    """Return the operating system that ``status.nodeInfo.osImage`` names, or None if it is not known."""
    for pattern, name in _OS_IMAGES:
        match = re.match(pattern, text)
        if match:
            return OperatingSystem(name, ".".join(match.groups()))
    return None


def _distribution(version: str, labels: dict[str, str]) -> str:
    """Return what the kubelet's version ends in, as in ``v1.31.5+rke2r1``; MicroK8s says it by a label."""
    if _MICROK8S in labels:
        return "microk8s"
    found = re.search(r"\+(k3s|rke2|k0s)", version)
    return found[1] if found else ""


def ready_message(node: Manifest) -> str:
    """Return what a kubelet says about the readiness of its node."""
    conditions = node.get("status", {}).get("conditions", ())
    return next((str(each.get("message", "")) for each in conditions if each["type"] == "Ready"), "")


NODE, POD, NAMESPACE = Kind("v1", "Node"), Kind("v1", "Pod"), Kind("v1", "Namespace")
SERVICE_MONITORS = "servicemonitors.monitoring.coreos.com"
_MONITORING = "monitoring.coreos.com/v1"
GPU_STACKS = "gpustacks.gpu-provision.io"

_NEVER_MEMBERS = frozenset({
    "ClusterPolicy", "ControllerRevision", "Event", "GPUStack", "Lease", "NVIDIADriver", "NetworkPolicy", "Node",
    "NodeFeature", "Pod", "PodDisruptionBudget", "ResourceClaim", "Secret",
})  # fmt: skip
MEMBER_KINDS = frozenset(kind for kind in KINDS if kind.kind not in _NEVER_MEMBERS)
"""Kinds of which a stack can have objects."""


_FROM_NOW = "0"  # a watch from this version begins with all that there is
Listed = dict[Kind, ObjectList]
"""What was listed of kinds that a run follows: it goes on from there."""


def observe_facts(cluster: KubeClient, inventory: Inventory, listed: Listed | None = None) -> ClusterFacts:
    """Read version, nodes, served resources, and the ConfigMaps and Secrets that the inventory names.

    Args:
        listed: Where the nodes go.
    """
    settings = cluster.api.configuration
    get = cluster.get
    with RequestPool(cluster) as pool:
        version = pool.submit(cluster.version)
        listing = pool.submit(cluster.list, NODE, keep=trim)
        served = pool.submit(_resources, cluster)
        told, nodes = version.result(), listing.result()
        found = tuple(node_facts(node) for node in nodes.items)
        resources = served.result()
        names, secret_names = sorted(named_config_maps(inventory)), sorted(named_secrets(inventory))
        config_maps = config_maps_of(filter(None, pool.map(lambda name: get(_config_map(inventory, name)), names)))
        secrets = secrets_of(filter(None, pool.map(lambda name: get(_secret(inventory, name)), secret_names)))
    if listed is not None:
        listed[NODE] = nodes
    return ClusterFacts(
        version=told,
        nodes=tuple(sorted(found, key=lambda node: node.name)),
        resources=resources,
        config_maps=config_maps,
        secrets=secrets,
        unverified="" if settings.verify_ssl else cluster.server,
    )


def _resources(cluster: KubeClient) -> frozenset[str]:
    """Return which resources of others, and of the controller, the server has: one request where it has none."""
    groups = cluster.groups()
    monitoring, stacks = _MONITORING.partition("/")[0], GPU_STACKS.partition(".")[2]
    monitors = cluster.served(_MONITORING) if monitoring in groups else ()
    return frozenset((*(f"{name}.{monitoring}" for name in monitors), *((GPU_STACKS,) if stacks in groups else ())))


class Absent(NamedTuple):
    """Of some objects, those that do not exist, and those that our user may not read."""

    missing: frozenset[ObjectRef]
    unread: frozenset[ObjectRef]


def find_absent(cluster: KubeClient, inventory: Inventory, facts: ClusterFacts, wanted: Iterable[ObjectRef]) -> Absent:
    """Return which ConfigMaps and Secrets do not exist.

    Args:
        facts: From `observe_facts`; what that has read is not asked for again.
        wanted: Each costs a request otherwise.
    """
    refs = frozenset(wanted)
    found: dict[ObjectRef, bool | None] = {
        **{_config_map(inventory, name): name in facts.config_maps for name in named_config_maps(inventory)},
        **{_secret(inventory, name): name in facts.secrets for name in named_secrets(inventory)},
    }
    if asked := sorted(refs - found.keys()):
        with RequestPool(cluster) as pool:
            found |= zip(asked, pool.map(partial(_exists, cluster), asked), strict=True)
    missing = frozenset(ref for ref in refs if found[ref] is False)
    return Absent(missing, unread=frozenset(ref for ref in refs if found[ref] is None))


def _exists(cluster: KubeClient, ref: ObjectRef) -> bool | None:
    """Return None for an object that our user may not read."""
    try:
        return cluster.exists(ref)
    except ForbiddenError:
        return None


def config_maps_of(found: Iterable[Manifest]) -> dict[str, dict[str, str]]:
    """Return what ConfigMaps hold, by name, as ClusterFacts has it."""
    return {item["metadata"]["name"]: item.get("data") or {} for item in found}


def secrets_of(found: Iterable[Manifest]) -> dict[str, str]:
    """Return digests of Secrets, by name, as ClusterFacts has them."""
    return {item["metadata"]["name"]: _digest(item) for item in found}


def named_config_maps(inventory: Inventory) -> frozenset[str]:
    """Return the names of the ConfigMaps in the operands' namespace that the inventory refers to."""
    drivers = [inventory.specs.driver, *(pool.driver for pool in inventory.pools.values())]
    inputs = ((item.repo_config, item.cert_config, item.kernel_module_config) for item in drivers)
    names = {name for found in inputs for name in found}
    names |= {inventory.specs.device_plugin.config_name, inventory.specs.dcgm_exporter.metrics_config}
    return frozenset(filter(None, names))


def named_secrets(inventory: Inventory) -> frozenset[str]:
    """Return the names of the Secrets in the operands' namespace on whose content an installation depends."""
    drivers = (inventory.specs.driver, *(pool.driver for pool in inventory.pools.values()))
    return frozenset(filter(None, (each.licensing_config for each in drivers)))


def _secret(inventory: Inventory, name: str) -> ObjectRef:
    return ObjectRef("v1", "Secret", inventory.cluster.namespace, name)


def _digest(secret: Manifest) -> str:
    """Return a digest of a Secret's content that does not reveal it.

    The key is the Secret's uid, which only those can read who may read its content: a reader of the digest, which
    ends up in a DaemonSet, cannot try values out. A Secret that is deleted and created again is another one.
    """
    content = json.dumps(secret.get("data") or {}, sort_keys=True).encode()
    return hmac.new(secret["metadata"]["uid"].encode(), content, hashlib.sha256).hexdigest()[:32]


def _config_map(inventory: Inventory, name: str) -> ObjectRef:
    return ObjectRef("v1", "ConfigMap", inventory.cluster.namespace, name)


def observe(  # noqa: PLR0913, PLR0917 - what a reading is about
    cluster: KubeClient,
    inventory: Inventory,
    facts: ClusterFacts,
    wanted: Iterable[ObjectRef],
    parent: ObjectRef,
    listed: Listed | None = None,
) -> ObservedState:
    """Read everything that planning compares with.

    Args:
        facts: From `observe_facts`.
        wanted: The desired objects.
        parent: The stack's own ConfigMap, which names the kinds of earlier runs.
        listed: Where the objects go that a run follows.
    """
    listed, refs = {} if listed is None else listed, frozenset(wanted)
    with RequestPool(cluster) as pool:
        namespaces = cluster.list(NAMESPACE).items
        existing = frozenset(item["metadata"]["name"] for item in namespaces)
        home = _home(cluster, inventory, parent, pool) if parent.namespace in existing else _NO_HOME
        look = partial(_look, cluster, refs=refs, existing=existing) if home.parent is None else partial(_list, cluster)
        mark = f"{PART_OF}={applyset_id(inventory.name, inventory.cluster.namespace)}"
        kinds = ({ref.type for ref in refs} | _earlier_kinds(home.parent)) & (MEMBER_KINDS - {NAMESPACE})
        found = dict(zip(sorted(kinds), pool.map(lambda kind: look(kind, mark), sorted(kinds)), strict=True))
    listed |= {kind: one.listing for kind, one in found.items()} | {POD: home.pods}
    members = [item for one in found.values() for item in one.listing.items]
    members += [item for item in namespaces if _is_marked(item, mark)]
    if home.parent:
        members.append({"apiVersion": parent.api_version, "kind": parent.kind, **home.parent})
    return ObservedState(
        cluster=f"{cluster.name} ({facts.version})",
        facts=facts,
        members={ref_of(item): item for item in members},
        namespaces=existing,
        names={place: names for one in found.values() for place, names in one.names.items()},
        pods={ref_of(pod): pod for pod in home.pods.items},
        passed=home.passed,
        lock=home.lease.lock,
        lock_version=home.lease.version,
    )


class _Home(NamedTuple):
    """What is in a stack's own namespace, and the pods of the stack."""

    parent: Manifest | None
    pods: ObjectList
    passed: Mapping[tuple[str, str], str]
    lease: LockState


_NO_HOME = _Home(None, ObjectList([], _FROM_NOW), {}, LockState(None, ""))


def _home(cluster: KubeClient, inventory: Inventory, parent: ObjectRef, pool: RequestPool) -> _Home:
    top = pool.submit(cluster.get, parent)
    pods = pool.submit(cluster.list, POD, label_selector=f"{STACK}={inventory.name}", keep=trim)
    record = pool.submit(records.read_validations, cluster, inventory)
    lease = pool.submit(lock.read_lock, cluster, inventory)
    return _Home(top.result(), pods.result(), record.result(), lease.result())


class _Found(NamedTuple):
    """Members of one kind, and the names of all objects of that kind in the namespaces that were listed whole."""

    listing: ObjectList
    names: Mapping[tuple[Kind, str], frozenset[str]]


def _list(cluster: KubeClient, kind: Kind, mark: str) -> _Found:
    return _Found(cluster.list(kind, label_selector=mark), {})


def _look(cluster: KubeClient, kind: Kind, mark: str, *, refs: Iterable[ObjectRef], existing: frozenset[str]) -> _Found:
    """Return all names of a kind where objects of it are wanted; members are what a stack has left that is gone."""
    places = {ref.namespace for ref in refs if ref.type == kind}
    names, version = {}, _FROM_NOW
    for place in sorted(places & {"", *existing}):
        try:
            answer = cluster.ask(path_to(kind, place))
        except NotFoundError:
            continue
        items = answer.get("items") or ()
        if any(_is_marked(item, mark) for item in items):
            return _list(cluster, kind, mark)
        names[kind, place] = frozenset(item["metadata"]["name"] for item in items)
        version = version if version != _FROM_NOW else answer["metadata"]["resourceVersion"]
    return _Found(ObjectList([], version), names)


def _is_marked(item: Manifest, mark: str) -> bool:
    key, _, value = mark.partition("=")
    return bool((item["metadata"].get("labels") or {}).get(key) == value)


def _earlier_kinds(parent: Manifest | None) -> frozenset[Kind]:
    named = kinds_of(parent) if parent else frozenset()
    return frozenset(kind for kind in KINDS if group_kind(kind) in named)
