"""One reading of a cluster: one LIST per kind, at the same time, whatever the number of nodes; and what a Node says.

Where a stack has no objects yet, its kinds are listed whole, as metadata: a plan then needs no dry run to detect
conflicting objects.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from operator import attrgetter

import msgspec

from gpu_provision.components import labels
from gpu_provision.components.gpu_resources import GPU, read_devices
from gpu_provision.components.labels import NOT_VALIDATED
from gpu_provision.components.machine_config import MACHINE_CONFIG
from gpu_provision.components.security_constraints import CONSTRAINTS
from gpu_provision.kube import lock
from gpu_provision.kube.client import KubeClient, ObjectList, path_to
from gpu_provision.kube.errors import NotFoundError
from gpu_provision.kube.lock import LockState
from gpu_provision.kube.openshift import CONFIG_GROUP, needed_resources, read_openshift
from gpu_provision.kube.transport import RequestPool
from gpu_provision.kube.trim import trim
from gpu_provision.model.cluster import ClusterFacts, Kind, Manifest, NodeFacts, ObjectRef, ObservedState, ref_of
from gpu_provision.model.extra_objects import EXTRA_KINDS
from gpu_provision.model.findings import ForbiddenError
from gpu_provision.model.inventory import Inventory, OperatingSystem
from gpu_provision.model.openshift_specs import OPENSHIFT
from gpu_provision.planning.applyset import STACK, group_kind, kinds_of, member_selector
from gpu_provision.rollout.states import writer_of

NODE, POD, NAMESPACE = Kind("v1", "Node"), Kind("v1", "Pod"), Kind("v1", "Namespace")
CONFIG_MAP, SECRET = Kind("v1", "ConfigMap"), Kind("v1", "Secret")
CRD = Kind("apiextensions.k8s.io/v1", "CustomResourceDefinition")
GPU_STACKS = "gpustacks.gpu-provision.io"
_MONITORING = "monitoring.coreos.com/v1"
_MICROK8S = "microk8s.io/cluster"

MEMBER_KINDS = frozenset(
    Kind(api_version, kind)
    for api_version, kinds in {
        CRD.api_version: CRD.kind,
        "apps/v1": "DaemonSet Deployment",
        _MONITORING: "PrometheusRule ServiceMonitor",
        "node.k8s.io/v1": "RuntimeClass",
        "rbac.authorization.k8s.io/v1": "ClusterRole ClusterRoleBinding Role RoleBinding",
        "v1": "ConfigMap Namespace Service ServiceAccount",
    }.items()
    for kind in kinds.split()
)
"""Kinds of which the components of a stack have objects."""

OPENSHIFT_KINDS = frozenset({CONSTRAINTS, MACHINE_CONFIG})
"""Kinds of which they have objects on OpenShift alone."""

_KNOWN_KINDS = MEMBER_KINDS.union(EXTRA_KINDS, OPENSHIFT_KINDS)
_FROM_NOW = "0"  # a watch from this version begins with all that there is
ListedObjects = dict[Kind, ObjectList]  # what was listed of kinds that a run follows: it goes on from there

# How status.nodeInfo.osImage (PRETTY_NAME of /etc/os-release) begins, and the ID that goes with it.
_OS_IMAGES: tuple[tuple[str, str], ...] = (
    (r"Ubuntu (\d+\.\d+)", "ubuntu"),
    (r"Debian GNU/Linux (\d+)", "debian"),
    (r"Red Hat Enterprise Linux CoreOS (4)(\d\d)\.", "rhcos"),  # up to OpenShift 4.18; its ID is rhel afterwards
    (r"Red Hat Enterprise Linux CoreOS (\d+\.\d+)", "rhel"),
    (r"Red Hat Enterprise Linux (\d+\.\d+)", "rhel"),
    (r"Rocky Linux (\d+\.\d+)", "rocky"),
    (r"Oracle Linux Server (\d+\.\d+)", "ol"),
    (r"CentOS (?:Linux|Stream) (\d+)", "centos"),
    (r"SUSE Linux Enterprise Server (\d+) SP(\d+)", "sles"),
    (r"Flatcar Container Linux by Kinvolk (\d+\.\d+\.\d+)", "flatcar"),
    (r"Amazon Linux (\d+)", "amzn"),
)

# Only what a label can hold: DaemonSets of drivers select it.
_OSTREE = re.compile(r"Red Hat Enterprise Linux CoreOS ([A-Za-z0-9](?:[\w.-]{0,61}[A-Za-z0-9])?)(?:\s|$)", re.ASCII)


def node_facts(node: Manifest) -> NodeFacts:
    """Return what a Node object says about its machine."""
    metadata, status = node["metadata"], node.get("status", {})
    info = status.get("nodeInfo", {})
    runtime, _, runtime_version = info.get("containerRuntimeVersion", "").partition("://")
    found = metadata.get("labels") or {}
    named = found.get(labels.NFD_OS_ID, ""), found.get(labels.NFD_OS_VERSION, "")
    unschedulable = bool(node.get("spec", {}).get("unschedulable"))
    cordoned_by, cordoned_at = writer_of(metadata) if unschedulable else ("", "")
    devices = read_devices(status.get("allocatable", {}))
    ostree = _OSTREE.match(info.get("osImage", ""))
    taints = tuple(node.get("spec", {}).get("taints") or ())
    is_tainted = any(each.get("key") == NOT_VALIDATED for each in taints)
    named_distribution = re.search(r"(?<=\+)(k3s|rke2|k0s)|(?<=-)gke", info.get("kubeletVersion", ""))  # v1.31.5+rke2r1
    return NodeFacts(
        name=metadata["name"],
        uid=metadata.get("uid", ""),
        labels=found,
        annotations=metadata.get("annotations") or {},
        os=OperatingSystem(*named) if all(named) else os_of_image(info.get("osImage", "")),
        kernel=info.get("kernelVersion", ""),
        ostree=ostree[1] if ostree else "",
        architecture=info.get("architecture", ""),
        container_runtime=runtime,
        container_runtime_version=runtime_version,
        distribution="microk8s" if _MICROK8S in found else named_distribution[0] if named_distribution else "",
        boot_id=info.get("bootID", ""),
        ready=any(each["type"] == "Ready" and each["status"] == "True" for each in status.get("conditions", ())),
        unschedulable=unschedulable,
        cordoned_by=cordoned_by,
        cordoned_at=cordoned_at,
        gpus_allocatable=devices.pop(GPU, None),
        other_devices=devices,
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


def ready_message(node: Manifest) -> str:
    """Return what a kubelet says about the readiness of its node."""
    conditions = node.get("status", {}).get("conditions", ())
    return next((str(each.get("message", "")) for each in conditions if each["type"] == "Ready"), "")


def member_kinds(inventory: Inventory) -> frozenset[Kind]:
    """Return the kinds of which a stack can have objects: those of components, and of ``extra_objects``."""
    of_platform = OPENSHIFT_KINDS if inventory.cluster.platform == OPENSHIFT else frozenset[Kind]()
    return MEMBER_KINDS | of_platform | {Kind(each["apiVersion"], each["kind"]) for each in inventory.extra_objects}


def earlier_kinds(parent: Manifest) -> frozenset[Kind]:
    """Return the kinds of earlier runs of a stack that its parent names."""
    named = kinds_of(parent)
    return frozenset(kind for kind in _KNOWN_KINDS if group_kind(kind) in named)


def observe_facts(cluster: KubeClient, inventory: Inventory, listed: ListedObjects | None = None) -> ClusterFacts:
    """Read version, nodes, served resources, and the inventory's ConfigMaps and Secrets; nodes go to ``listed``."""
    get = cluster.get
    with RequestPool(cluster) as pool:
        version = pool.submit(cluster.version)
        listing = pool.submit(cluster.list, NODE, keep=trim)
        serving = pool.submit(_read_served, cluster)
        told, nodes = version.result(), listing.result()
        found = tuple(node_facts(node) for node in nodes.items)
        served, resources = serving.result()
        needed = needed_resources(inventory, ClusterFacts(nodes=found)) if CONFIG_GROUP in served else ()
        openshift = read_openshift(cluster, served, found, needed)
        names, secret_names = sorted(named_config_maps(inventory)), sorted(named_secrets(inventory))
        # Read here: a pool that is left waits for its threads, and Ctrl-C does not reach them any more.
        config_maps = [*pool.map(lambda name: get(_input(inventory, CONFIG_MAP, name)), names)]
        secrets = [*pool.map(lambda name: get(_input(inventory, SECRET, name)), secret_names)]
    if listed is not None:
        listed[NODE] = nodes
    return ClusterFacts(
        version=told,
        nodes=tuple(sorted(found, key=lambda node: node.name)),
        resources=resources,
        config_maps=config_maps_of(filter(None, config_maps)),
        secrets=secrets_of(filter(None, secrets)),
        secret_keys={item["metadata"]["name"]: frozenset(item.get("data") or {}) for item in filter(None, secrets)},
        unverified="" if cluster.api.configuration.verify_ssl else cluster.server,
        openshift=openshift,
    )


def served_groups(cluster: KubeClient) -> frozenset[str]:
    """Return the API groups that the server has."""
    return frozenset(group["name"] for group in cluster.get_path("/apis").get("groups") or ())


def _read_served(cluster: KubeClient) -> tuple[frozenset[str], frozenset[str]]:
    """Return the API groups that the server has, and its resources of others, and of the controller.

    A group that the server does not have costs no request.
    """
    groups = served_groups(cluster)
    monitoring, stacks = _MONITORING.partition("/")[0], GPU_STACKS.partition(".")[2]
    monitors = cluster.served_resources(_MONITORING) if monitoring in groups else ()
    own = (GPU_STACKS,) if stacks in groups else ()
    return groups, frozenset((*(f"{name}.{monitoring}" for name in monitors), *own))


def find_absent(
    cluster: KubeClient, inventory: Inventory, facts: ClusterFacts, wanted: Iterable[ObjectRef]
) -> tuple[frozenset[ObjectRef], frozenset[ObjectRef]]:
    """Return which ConfigMaps and Secrets do not exist, and which of them our user may not read.

    Each costs a request, but those that `observe_facts` has read.
    """
    refs = frozenset(wanted)
    found: dict[ObjectRef, bool | None] = {
        **{_input(inventory, CONFIG_MAP, name): name in facts.config_maps for name in named_config_maps(inventory)},
        **{_input(inventory, SECRET, name): name in facts.secrets for name in named_secrets(inventory)},
    }

    def exists(ref: ObjectRef) -> bool | None:
        try:
            return cluster.exists(ref)
        except ForbiddenError:
            return None

    if asked := sorted(refs - found.keys()):
        with RequestPool(cluster) as pool:
            found |= zip(asked, pool.map(exists, asked), strict=True)
    return frozenset(ref for ref in refs if found[ref] is False), frozenset(ref for ref in refs if found[ref] is None)


def config_maps_of(found: Iterable[Manifest]) -> dict[str, dict[str, str]]:
    """Return what ConfigMaps hold, by name, as ClusterFacts has it."""
    return {item["metadata"]["name"]: item.get("data") or {} for item in found}


def secrets_of(found: Iterable[Manifest]) -> dict[str, str]:
    """Return digests of Secrets, by name, as ClusterFacts has them.

    The key is the uid, which only those can read who may read the content: a reader of the digest, which ends up in a
    DaemonSet, cannot try values out. A Secret that is deleted and created again is another one.
    """

    def digest(secret: Manifest) -> str:
        content = json.dumps(secret.get("data") or {}, sort_keys=True).encode()
        return hmac.new(secret["metadata"]["uid"].encode(), content, hashlib.sha256).hexdigest()[:32]

    return {item["metadata"]["name"]: digest(item) for item in found}


_DRIVER_INPUTS = attrgetter("repo_config", "cert_config", "kernel_module_config", "virtual_topology.config")


def named_config_maps(inventory: Inventory) -> frozenset[str]:
    """Return the names of the ConfigMaps in the operands' namespace that the inventory refers to."""
    drivers = [inventory.specs.driver, *(pool.driver for pool in inventory.pools.values())]
    names = {name for item in drivers for name in _DRIVER_INPUTS(item)}
    plugin, exporter = inventory.specs.device_plugin, inventory.specs.dcgm_exporter
    names |= {"" if plugin.config.data else plugin.config_map, "" if exporter.config.data else exporter.config_map}
    return frozenset(filter(None, names))


def named_secrets(inventory: Inventory) -> frozenset[str]:
    """Return the names of the Secrets in the operands' namespace on whose content an installation depends."""
    drivers = (inventory.specs.driver, *(pool.driver for pool in inventory.pools.values()))
    return frozenset(filter(None, (each.licensing_config for each in drivers)))


def _input(inventory: Inventory, kind: Kind, name: str) -> ObjectRef:
    return ObjectRef(*kind, inventory.cluster.namespace, name)


def observe(  # noqa: PLR0913, PLR0917 - what a reading is about
    cluster: KubeClient,
    inventory: Inventory,
    facts: ClusterFacts,
    wanted: Iterable[ObjectRef],
    parent: ObjectRef,
    listed: ListedObjects | None = None,
) -> ObservedState:
    """Read everything that planning compares with the desired objects; what a run follows goes to ``listed``.

    ``parent`` is the stack's own ConfigMap, which names the kinds of earlier runs.
    """
    listed, refs = {} if listed is None else listed, frozenset(wanted)
    mark = member_selector(inventory)
    top, pods, passed, held = None, ObjectList([], _FROM_NOW), dict[tuple[str, str], str](), LockState(None, "")
    with RequestPool(cluster) as pool:
        namespaces = cluster.list(NAMESPACE).items
        existing = frozenset(item["metadata"]["name"] for item in namespaces)
        if parent.namespace in existing:
            its_top = pool.submit(cluster.get, parent)
            its_pods = pool.submit(cluster.list, POD, label_selector=f"{STACK}={inventory.name}", keep=trim)
            its_record = pool.submit(read_validations, cluster, inventory)
            its_lock = pool.submit(lock.read_lock, cluster, inventory)
            top, pods, passed, held = its_top.result(), its_pods.result(), its_record.result(), its_lock.result()
        kinds = {*(earlier_kinds(top) if top else ()), *(ref.type for ref in refs)}

        def read_kind(kind: Kind) -> tuple[ObjectList, _Names]:
            if top:
                return cluster.list(kind, label_selector=mark), {}
            return _list_names(
                cluster, kind, mark, {ref.namespace for ref in refs if ref.type == kind} & {"", *existing}
            )

        asked = sorted(kinds & (_KNOWN_KINDS - {NAMESPACE}))
        found = dict(zip(asked, pool.map(read_kind, asked), strict=True))
    listed |= {kind: listing for kind, (listing, _) in found.items()} | {POD: pods}
    members = [item for listing, _ in found.values() for item in listing.items]
    members += [item for item in namespaces if _has_label(item, mark)]
    if top:
        members.append({"apiVersion": parent.api_version, "kind": parent.kind, **top})
    return ObservedState(
        cluster=f"{cluster.name} ({facts.version})",
        facts=facts,
        members={ref_of(item): item for item in members},
        namespaces=existing,
        names={place: names for _, all_names in found.values() for place, names in all_names.items()},
        pods={ref_of(pod): pod for pod in pods.items},
        verdicts=passed,
        lock=held.lock,
        lock_version=held.version,
    )


_Names = dict[tuple[Kind, str], frozenset[str]]


def _list_names(cluster: KubeClient, kind: Kind, mark: str, places: Iterable[str]) -> tuple[ObjectList, _Names]:
    """Return what an unfinished removal has left of a new stack, and the names of all objects of a kind by place."""
    names, version = _Names(), _FROM_NOW
    for place in sorted(places):
        try:
            answer = cluster.get_path(path_to(kind, place))
        except NotFoundError:
            continue
        items = answer.get("items") or ()
        if any(_has_label(item, mark) for item in items):
            return cluster.list(kind, label_selector=mark), {}
        names[kind, place] = frozenset(item["metadata"]["name"] for item in items)
        version = version if version != _FROM_NOW else answer["metadata"]["resourceVersion"]
    return ObjectList([], version), names


def _has_label(item: Manifest, mark: str) -> bool:
    key, _, value = mark.partition("=")
    return bool((item["metadata"].get("labels") or {}).get(key) == value)


ValidationVerdicts = Mapping[tuple[str, str], str]
"""(component, node) -> the verdict, see `gpu_provision.planning.verdicts`."""


def validations_ref(inventory: Inventory) -> ObjectRef:
    """Return the ConfigMap that holds the stack's records."""
    return ObjectRef(*CONFIG_MAP, inventory.cluster.namespace, f"{inventory.name}-validations")


def read_validations(cluster: KubeClient, inventory: Inventory) -> dict[tuple[str, str], str]:
    """Return the validations on record; a missing or damaged record is empty: they run again."""
    return validations_of((cluster.get(validations_ref(inventory)) or {}).get("data") or {})


def validations_of(data: Mapping[str, str]) -> dict[tuple[str, str], str]:
    """Return the validations that the data of a record tells of; what is damaged is left out."""
    found: dict[tuple[str, str], str] = {}
    for node, text in data.items():
        with suppress(ValueError):
            passed = msgspec.json.decode(text, type=dict[str, str])
            found |= {(component, node): verdict for component, verdict in passed.items()}
    return found


def write_validations(cluster: KubeClient, inventory: Inventory, passed: ValidationVerdicts) -> None:
    """Replace the record: one request, however many nodes."""
    cluster.apply(validations_manifest(inventory, passed), manager="gpu-provision-records")


def validations_manifest(inventory: Inventory, passed: ValidationVerdicts) -> Manifest:
    """Return the record's manifest: a key per node, up to 85 bytes per validation."""
    by_node: dict[str, dict[str, str]] = {}
    for (component, node), digest in sorted(passed.items()):
        by_node.setdefault(node, {})[component] = digest
    data = {node: json.dumps(entry, sort_keys=True) for node, entry in by_node.items()}
    ref = validations_ref(inventory)
    metadata = {"name": ref.name, "namespace": ref.namespace, "labels": {labels.MANAGED_BY: "gpu-provision"}}
    return {"apiVersion": ref.api_version, "kind": ref.kind, "metadata": metadata, "data": data}
