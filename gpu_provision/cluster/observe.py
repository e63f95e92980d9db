"""One reading of a cluster: one LIST per kind, at the same time, whatever the number of nodes."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Iterable
from functools import partial
from typing import NamedTuple

from gpu_provision.cluster import leases, records
from gpu_provision.cluster.client import Cluster
from gpu_provision.cluster.facts import node_facts
from gpu_provision.cluster.paths import KINDS
from gpu_provision.cluster.pool import RequestPool
from gpu_provision.cluster.slim import slim
from gpu_provision.model.cluster import ClusterFacts, Kind, Manifest, ObjectRef, ref_of
from gpu_provision.model.findings import Refused
from gpu_provision.model.inventory import Inventory
from gpu_provision.planning.membership import PART_OF, STACK, applyset_id, group_kind, kinds_of
from gpu_provision.planning.observed import Observed

NODE, POD, NAMESPACE = Kind("v1", "Node"), Kind("v1", "Pod"), Kind("v1", "Namespace")
SERVICE_MONITORS = "servicemonitors.monitoring.coreos.com"
_MONITORING = "monitoring.coreos.com/v1"
_NEVER_MEMBERS = frozenset(
    {
        "ClusterPolicy",
        "ControllerRevision",
        "Event",
        "GPUStack",
        "Lease",
        "NVIDIADriver",
        "NetworkPolicy",
        "Node",
        "NodeFeature",
        "Pod",
        "PodDisruptionBudget",
        "ResourceClaim",
        "Secret",
    }
)
MEMBER_KINDS = frozenset(kind for kind in KINDS if kind.kind not in _NEVER_MEMBERS)
"""Kinds of which a stack can have objects."""
_PARALLEL = 12


def observe_facts(cluster: Cluster, inventory: Inventory) -> ClusterFacts:
    """Read version, nodes, served resources, and the ConfigMaps and Secrets that the inventory names."""
    settings = cluster._client.client.configuration  # noqa: SLF001 - of the same package
    version = cluster.version()
    with RequestPool(cluster, _PARALLEL) as pool:
        nodes = pool.submit(cluster.list, NODE, keep=slim)
        monitors = pool.submit(cluster.served, _MONITORING)
        found = tuple(node_facts(node) for node in nodes.result().items)
        resources = frozenset(f"{name}.{_MONITORING.partition('/')[0]}" for name in monitors.result())
        names = sorted(named_config_maps(inventory))
        contents = pool.map(lambda name: cluster.get(_config_map(inventory, name)), names)
        config_maps = config_maps_of(filter(None, contents))
        secret_names = sorted(named_secrets(inventory))
        secrets = secrets_of(filter(None, pool.map(lambda name: cluster.get(_secret(inventory, name)), secret_names)))
    return ClusterFacts(
        version=version,
        nodes=tuple(sorted(found, key=lambda node: node.name)),
        resources=resources,
        config_maps=config_maps,
        secrets=secrets,
        unverified="" if settings.verify_ssl else cluster.server,
    )


class Absent(NamedTuple):
    """Of some objects, those that do not exist, and those that our user may not read."""

    missing: frozenset[ObjectRef]
    unread: frozenset[ObjectRef]


def absent(cluster: Cluster, inventory: Inventory, facts: ClusterFacts, wanted: Iterable[ObjectRef]) -> Absent:
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
        with RequestPool(cluster, _PARALLEL) as pool:
            found |= zip(asked, pool.map(partial(_exists, cluster), asked), strict=True)
    missing = frozenset(ref for ref in refs if found[ref] is False)
    return Absent(missing, unread=frozenset(ref for ref in refs if found[ref] is None))


def _exists(cluster: Cluster, ref: ObjectRef) -> bool | None:
    """Return None for an object that our user may not read."""
    try:
        return cluster.exists(ref)
    except Refused:
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
    """Return a digest of a Secret's content that tells nobody what it is.

    The key is the Secret's uid, which only those can read who may read its content: whoever sees the digest, which
    ends up in a DaemonSet, cannot try values out. A Secret that is deleted and made anew is another one.
    """
    content = json.dumps(secret.get("data") or {}, sort_keys=True).encode()
    return hmac.new(secret["metadata"]["uid"].encode(), content, hashlib.sha256).hexdigest()[:32]


def _config_map(inventory: Inventory, name: str) -> ObjectRef:
    return ObjectRef("v1", "ConfigMap", inventory.cluster.namespace, name)


def observe(
    cluster: Cluster, inventory: Inventory, facts: ClusterFacts, wanted: Iterable[Kind], parent: ObjectRef
) -> Observed:
    """Read everything that planning compares with.

    Args:
        facts: From `observe_facts`.
        wanted: Kinds of the desired manifests.
        parent: The stack's own ConfigMap, which names the kinds of earlier runs.
    """
    set_label = f"{PART_OF}={applyset_id(inventory.name, inventory.cluster.namespace)}"
    stack = f"{STACK}={inventory.name}"
    with RequestPool(cluster, _PARALLEL) as pool:
        top = pool.submit(cluster.get, parent)
        pods = pool.submit(cluster.list, POD, label_selector=stack, keep=slim)
        namespaces = pool.submit(cluster.list, NAMESPACE)
        record = pool.submit(records.read, cluster, inventory)
        lease = pool.submit(leases.read, cluster, inventory)
        kinds = (frozenset(wanted) | _earlier_kinds(top.result())) & MEMBER_KINDS
        lists = list(pool.map(lambda kind: cluster.list(kind, label_selector=set_label).items, sorted(kinds)))
    members = {ref_of(item): item for items in lists for item in items}
    if live_parent := top.result():
        members[parent] = {"apiVersion": parent.api_version, "kind": parent.kind, **live_parent}
    return Observed(
        cluster=f"{cluster.name} ({facts.version})",
        facts=facts,
        members=members,
        namespaces=frozenset(item["metadata"]["name"] for item in namespaces.result().items),
        pods={ref_of(pod): pod for pod in pods.result().items},
        passed=record.result(),
        lock=lease.result().lock,
        lock_version=lease.result().version,
    )


def _earlier_kinds(parent: Manifest | None) -> frozenset[Kind]:
    named = kinds_of(parent) if parent else frozenset()
    return frozenset(kind for kind in KINDS if group_kind(kind) in named)
