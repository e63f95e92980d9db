"""GPU nodes of the cluster: which pool each belongs to, and whether its driver is a container's or the host's own."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from gpu_provision.components.labels import (
    DEPLOY_DRIVER,
    DRIVER_GROUP,
    GPU_PRODUCT,
    HOST_DRIVER,
    INVENTORY,
    NFD_KERNEL,
    NFD_OS_ID,
    NFD_OS_VERSION,
    NFD_OSTREE,
    PRE_INSTALLED,
    WORKLOAD,
    has_gpu,
)
from gpu_provision.components.objects import digest
from gpu_provision.model import codes
from gpu_provision.model.cluster import (
    ClusterFacts,
    DriverBasis,
    DriverChoice,
    NodeFacts,
    RenderContext,
    Target,
    openshift_of,
)
from gpu_provision.model.driver_specs import DriverSpec
from gpu_provision.model.findings import Finding, Severity
from gpu_provision.model.inventory import Inventory, NodePool, OperatingSystem
from gpu_provision.model.openshift import OpenShiftFacts
from gpu_provision.model.text import MAX_NODES, join_limited, names_by, nodes_at


def choose_driver(spec: DriverSpec, *, read: str | None, labels: Mapping[str, str]) -> DriverChoice:
    """Decide whether a node uses the host driver; a reading of this run overrides labels of an earlier one.

    ``read`` is the version of a usable driver on the host; empty if it has none, None if the host was not read.
    """
    if not spec.enabled:
        return DriverChoice(on_host=True, basis=DriverBasis.DECLARED)
    if read == "":
        return DriverChoice(on_host=False, basis=DriverBasis.READ)
    if not spec.prefer_host:
        return DriverChoice(on_host=False, basis=DriverBasis.DECLARED)
    if read:
        return DriverChoice(on_host=True, basis=DriverBasis.READ, version=read)
    # Labels of an earlier run or of the driver manager; else a guess.
    if labels.get(DEPLOY_DRIVER) == PRE_INSTALLED or HOST_DRIVER in labels:
        return DriverChoice(on_host=True, basis=DriverBasis.LABEL, version=labels.get(HOST_DRIVER, ""))
    return DriverChoice(on_host=False, basis=DriverBasis.LABEL if DRIVER_GROUP in labels else DriverBasis.GUESS)


_LABEL_LENGTH = 63
COREOS = "rhcos"
"""ID of Red Hat Enterprise Linux CoreOS up to OpenShift 4.18."""


def context(inventory: Inventory, facts: ClusterFacts) -> RenderContext:
    """Return the context of components; empty facts give the context of offline rendering."""
    return RenderContext(inventory=inventory, facts=facts, targets=targets(inventory, facts))


def targets(inventory: Inventory, facts: ClusterFacts) -> tuple[Target, ...]:
    """Return the GPU nodes of this inventory, sorted by name.

    These are the listed nodes of pools with GPUs, also if the cluster does not have them yet, and the nodes of the
    cluster that such a pool claims.
    """
    observed, read = {node.name: node for node in facts.nodes}, facts.host_drivers
    claimed, for_vms = node_pools(inventory, facts), nodes_for_vms(inventory, facts)
    wanted = ((name, pool) for name, pool in sorted(claimed.items()) if pool.gpu and name not in for_vms)
    openshift = openshift_of(inventory, facts)
    return tuple(_target(name, pool, observed.get(name), read.get(name), inventory, openshift) for name, pool in wanted)


def nodes_for_vms(inventory: Inventory, facts: ClusterFacts) -> dict[str, str]:
    """Return the nodes of pools with GPUs whose GPUs are for virtual machines, which get no stack.

    The value is that of the label `WORKLOAD`, on the node or declared for it in the inventory, as with the GPU Operator
    (vm-passthrough, vm-vgpu).
    """
    live = {node.name: node.labels[WORKLOAD] for node in facts.nodes if WORKLOAD in node.labels}
    declared = {node.name: node.labels[WORKLOAD] for node in inventory.nodes if WORKLOAD in node.labels}
    pools = node_pools(inventory, facts).items()
    values = {
        name: declared.get(name, pool.labels.get(WORKLOAD, live.get(name, ""))) for name, pool in pools if pool.gpu
    }
    return {name: value for name, value in values.items() if value.startswith("vm-")}


def node_pools(inventory: Inventory, facts: ClusterFacts) -> dict[str, NodePool]:
    """Return the pool of every node that the inventory lists or that one of its pools claims, with or without a GPU.

    A node that several pools claim belongs to none of them, since the intended one is unknown.
    """
    listed = {node.name: inventory.pool_of(node) for node in inventory.nodes}
    selected = {
        node.name: pools[0]
        for node in facts.nodes
        if node.name not in listed and len(pools := _claiming_pools(inventory, node)) == 1
    }
    return listed | selected


def unassigned_nodes(inventory: Inventory, facts: ClusterFacts) -> tuple[str, ...]:
    """Return the cluster's GPU nodes that no pool claims, sorted; a run does not change them."""
    claimed = node_pools(inventory, facts)
    return tuple(sorted(node.name for node in facts.nodes if has_gpu(node.labels) and node.name not in claimed))


def problems(context: RenderContext) -> tuple[Finding, ...]:
    """Return findings about the nodes themselves."""
    return (
        *_unclaimed_nodes(context),
        *virtual_machine_nodes(context.inventory, context.facts),
        *_other_systems(context),
        *_guessed_drivers(context),
    )


def observed_os(node: NodeFacts) -> OperatingSystem | None:
    """Return the operating system a node reports: NFD's labels, else its Node object, else None."""
    name, version = node.labels.get(NFD_OS_ID), node.labels.get(NFD_OS_VERSION)
    return OperatingSystem(name, version) if name and version else node.os


def observed_kernel(node: NodeFacts | None) -> str:
    """Return the kernel a node reports: NFD's label, else its Node object, else an empty text."""
    return (node.labels.get(NFD_KERNEL) or node.kernel) if node else ""


def observed_ostree(node: NodeFacts | None) -> str:
    """Return the release of CoreOS that a node reports: NFD's label, else its Node object, else an empty text."""
    return (node.labels.get(NFD_OSTREE) or node.ostree) if node else ""


def is_coreos(os: OperatingSystem | None, node: NodeFacts | None) -> bool:
    """Whether a node runs Red Hat Enterprise Linux CoreOS, whose ID is that of RHEL since OpenShift 4.19."""
    return bool(observed_ostree(node)) or (os is not None and os.id == COREOS)


def driver_group(  # noqa: PLR0913 - what drivers differ by
    pool: NodePool,
    os: OperatingSystem | None,
    driver: DriverChoice,
    kernel: str = "",
    release: str = "",
    *,
    needs_release: bool = False,
) -> str:
    """Return the name of the driver DaemonSet's group for nodes of ``pool`` that run ``os``.

    It has no version, so that an upgrade changes a DaemonSet instead of replacing it. Precompiled drivers have a group
    for each kernel, and drivers that a Driver Toolkit builds for each ``release`` of CoreOS. Empty if the driver is the
    host's own, or the operating system, such a kernel or such a release is unknown.
    """
    needs_kernel = pool.driver.use_precompiled
    if os is None or driver.on_host or (needs_kernel and not kernel) or (needs_release and not release):
        return ""
    parts = (pool.name if pool.overrides_driver else "", os.tag, kernel if needs_kernel else release)
    return dns_label("-".join(filter(None, parts)))


def dns_label(text: str) -> str:
    """Return ``text`` as a label value that is also safe within a DNS name; long ones end in a digest."""
    safe = re.sub(r"[^a-z0-9.-]+", "-", text.lower()).strip("-.")
    return safe if len(safe) <= _LABEL_LENGTH else f"{safe[: _LABEL_LENGTH - 9].rstrip('-.')}-{digest(text, 8)}"


def _target(  # noqa: PLR0913, PLR0917 - what is known of a node and its cluster
    name: str,
    pool: NodePool,
    facts: NodeFacts | None,
    read: str | None,
    inventory: Inventory,
    openshift: OpenShiftFacts | None,
) -> Target:
    os = (observed_os(facts) if facts else None) or pool.os
    version = None if read is None else dns_label(read)  # as a label value
    driver = choose_driver(pool.driver, read=version, labels=facts.labels if facts else {})
    with_toolkit = openshift is not None and inventory.uses_driver_toolkit
    needs_release = with_toolkit and not pool.driver.use_precompiled and is_coreos(os, facts)
    release = observed_ostree(facts) if needs_release else ""
    group = driver_group(pool, os, driver, observed_kernel(facts), release, needs_release=needs_release)
    built = release if group else ""
    return Target(
        name=name,
        pool=pool,
        os=os,
        facts=facts,
        driver=driver,
        driver_group=group,
        on_openshift=openshift is not None,
        toolkit_release=built,
        toolkit_image=openshift.driver_toolkits.get(built, "") if openshift else "",
    )


def _claiming_pools(inventory: Inventory, node: NodeFacts) -> list[NodePool]:
    """Return the pools that claim a node: those that select it, else the narrowest of those for any GPUs."""
    fitting = [pool for pool in inventory.pools.values() if pool.node_selector.items() <= node.labels.items()]
    selecting = [pool for pool in fitting if pool.node_selector and not pool.takes_any_gpu]
    if selecting or not _may_join(inventory, node):
        return selecting
    open_pools = [pool for pool in fitting if pool.takes_any_gpu]
    selectors = [pool.node_selector.items() for pool in open_pools]
    return [pool for pool in open_pools if not any(pool.node_selector.items() < other for other in selectors)]


def _may_join(inventory: Inventory, node: NodeFacts) -> bool:
    """Whether a pool for any GPUs may claim a node: it has a GPU, and no other inventory has it.

    A node of this inventory stays, so that nothing is removed from a node whose GPU is not seen for a while.
    """
    owner = node.labels.get(INVENTORY, "")
    return owner == inventory.name or (not owner and (has_gpu(node.labels) or GPU_PRODUCT in node.labels))


def _unclaimed_nodes(context: RenderContext) -> Iterator[Finding]:
    """Yield nodes that several pools select, and GPU nodes that none does."""
    inventory, facts = context.inventory, context.facts
    listed = {node.name for node in inventory.nodes}
    contested = {
        node.name: tuple(pool.name for pool in pools)
        for node in facts.nodes
        if node.name not in listed and len(pools := _claiming_pools(inventory, node)) > 1
    }
    for selecting, names in names_by((pools, name) for name, pools in sorted(contested.items())):
        nodes = join_limited(names, MAX_NODES)
        are, it = ("is", "it") if len(names) == 1 else ("are", "them")
        selectors = {pool: dict(inventory.pools[pool].node_selector) for pool in selecting}
        yield Finding(
            code="GP404",
            what=f"{nodes} {are} selected by the pools {', '.join(selecting)}, so none of them gets {it}",
            where=nodes_at(names, MAX_NODES),
            evidence="; ".join(f"pools.{pool}.node_selector: {selector}" for pool, selector in selectors.items()),
            fix=f"make the node_selectors exclude one another, or list {it} under nodes",
        )
    known = {node.name for node in facts.nodes if node.labels.get(INVENTORY) == inventory.name} | contested.keys()
    names = [name for name in unassigned_nodes(inventory, facts) if name not in known]
    if names:
        has, it = ("has", "it is") if len(names) == 1 else ("have", "they are")
        yield Finding(
            code="GP405",
            what=f"{join_limited(names, MAX_NODES)} {has} an NVIDIA GPU, but no pool claims it; {it} left alone",
            where=nodes_at(names, MAX_NODES),
            evidence="Node Feature Discovery reports an NVIDIA PCI device",
            fix="list them under nodes, give a pool a node_selector for them, or declare a pool with gpu: {}",
            severity=Severity.WARNING,
        )


def virtual_machine_nodes(inventory: Inventory, facts: ClusterFacts) -> Iterator[Finding]:
    """Yield nodes that get no stack, as their GPUs are for virtual machines."""
    live = {node.name: node.labels.get(WORKLOAD) for node in facts.nodes}
    pools, found = node_pools(inventory, facts), sorted(nodes_for_vms(inventory, facts).items())
    kinds = (((pools[name].name, value, live.get(name) == value), name) for name, value in found)
    for (_, value, is_live), names in names_by(kinds):
        command = f"kubectl label node {names[0] if len(names) == 1 else 'NODE'} {WORKLOAD}-"
        remove = command if is_live else f"remove the label {WORKLOAD} of the inventory"
        gets = "it gets" if len(names) == 1 else "they get"
        yield Finding(
            code="GP413",
            what=f"the GPUs of {join_limited(names, MAX_NODES)} are for virtual machines, which is not supported; "
            f"{gets} no stack",
            where=nodes_at(names, MAX_NODES),
            evidence=f"label {WORKLOAD}={value}",
            fix=f"{remove}, if containers are to use them",
            severity=Severity.WARNING,
        )


def _other_systems(context: RenderContext) -> Iterator[Finding]:
    """Yield nodes that run another system than their pool declares."""
    systems = (
        ((target.pool.name, target.pool.os.tag, target.os.tag), target.name)
        for target in context.targets
        if target.pool.os and target.os and target.pool.os.tag != target.os.tag
    )
    for (pool, declared, observed), names in names_by(systems):
        subject = "the node runs" if len(names) == 1 else "the nodes run"
        yield Finding(
            code=codes.OS_DIFFERS,
            what=f"{subject} {observed}, and pool {pool} declares {declared}",
            where=nodes_at(names, MAX_NODES),
            evidence=f"reported is {observed}; the driver image is chosen for that",
            fix=f"correct pools.{pool}.os, or leave it out: every node then says so itself",
            severity=Severity.WARNING,
        )


def _guessed_drivers(context: RenderContext) -> Iterator[Finding]:
    """Yield nodes that may have a host driver, and get a driver container."""
    names = [target.name for target in context.targets if target.driver.basis is DriverBasis.GUESS]
    reads_hosts = context.openshift is None  # CoreOS is left to the Machine Config Operator
    if names and context.facts.version:  # offline no host is read
        yield Finding(
            code="GP410",
            what="host driver not checked on these nodes; the driver container will be deployed",
            where=nodes_at(names, MAX_NODES),
            evidence="driver.enabled is auto, their hosts were not read, and no label says whose driver they have",
            consequence="on a node with a host driver the container ends, and its manager labels the node so",
            fix=f"{'run without --cluster-only, or ' if reads_hosts else ''}label nodes that have one:"
            f" kubectl label node NODE {DEPLOY_DRIVER}={PRE_INSTALLED}",
            severity=Severity.WARNING,
        )
