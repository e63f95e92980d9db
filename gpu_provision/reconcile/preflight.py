"""Preflight: checks of every host, of the cluster's nodes, and of images in the registry."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from gpu_provision import components
from gpu_provision.components.architectures import architecture_of
from gpu_provision.components.driver import image_of
from gpu_provision.components.openshift_problems import next_system, update_finding
from gpu_provision.components.targets import context, nodes_for_vms
from gpu_provision.hosts.checks.findings import CheckedHost, apply_ignored, drop_reported_by_cluster
from gpu_provision.hosts.checks.images import driver_image
from gpu_provision.hosts.facts.host import HostFacts
from gpu_provision.hosts.facts.kernel import Kernel
from gpu_provision.hosts.result import HostOutcome, HostsResult
from gpu_provision.hosts.runner import check_hosts
from gpu_provision.inventory.expectation import expected_of
from gpu_provision.kube.observe import observe_facts
from gpu_provision.model import codes
from gpu_provision.model.cluster import RenderContext
from gpu_provision.model.findings import Finding, ForbiddenError, Severity
from gpu_provision.model.hosts import ImageAvailability
from gpu_provision.model.inventory import Inventory, Node
from gpu_provision.model.progress import Event
from gpu_provision.model.text import MAX_NODES, join_limited, nodes_at
from gpu_provision.planning.prepare import inventory_findings
from gpu_provision.rbac.review import missing_for_reading
from gpu_provision.reconcile.session import Session
from gpu_provision.registry import look_up_image


@dataclass(frozen=True, slots=True, kw_only=True)
class PreflightReport:
    """The result of preflight."""

    hosts: HostsResult  # the hosts that were read, including those without a GPU
    findings: tuple[Finding, ...]  # errors first, then by the inventory's order of nodes

    @property
    def failed(self) -> bool:
        """Whether an error would stop a run."""
        return any(finding.severity is Severity.ERROR for finding in self.findings)


def preflight(inventory: Inventory, *, limit: tuple[str, ...], listen: Callable[[Event], None]) -> PreflightReport:
    """Read and check hosts and cluster without a change. Raises the errors of the cluster and of pyinfra."""
    cluster = Session(inventory).cluster
    try:
        facts = observe_facts(cluster, inventory)
    except ForbiddenError as refusal:
        raise missing_for_reading(cluster, inventory, refusal) from refusal
    for_vms = frozenset(nodes_for_vms(inventory, facts))
    hosts = check_hosts(inventory, limit=limit, listen=listen, for_vms=for_vms)
    known = context(inventory, replace(facts, host_drivers=hosts.drivers))
    known = replace(known, targets=tuple(each for each in known.targets if not limit or each.name in limit))
    read = {host.name for host in hosts.hosts if host.gpus is not None}
    unread = (_unread_host_finding(host) for host in hosts.failed if not host.errors)
    images = (*_image_findings(inventory, known, read), *_next_image_findings(known))
    own = (*unread, *images, *_operand_image_findings(inventory, known))
    of_cluster = inventory_findings(known)
    of_hosts = (*hosts.errors, *hosts.findings)  # without ignored findings already
    found = (
        *drop_reported_by_cluster(of_hosts, of_cluster),
        *of_cluster,
        *apply_ignored(own, frozenset(inventory.preflight.ignore)),
    )
    findings = sorted(found, key=lambda each: each.severity is not Severity.ERROR)
    return PreflightReport(hosts=hosts, findings=tuple(findings))


def _unread_host_finding(host: HostOutcome) -> Finding:
    return Finding(
        code=codes.HOST_UNREAD,
        where=host.name,
        what="the host could not be read",
        evidence=host.reason,
        consequence="a run fails on this host, and does not start the cluster phase",
        fix="check that the host is up and reachable by ssh; to run without SSH: host_prerequisites: {enabled: false}",
    )


def _image_findings(inventory: Inventory, known: RenderContext, read: set[str]) -> Iterator[Finding]:
    """Yield findings about driver images of nodes whose hosts were not read, from the cluster's facts."""
    listed = {node.name: node for node in inventory.nodes}
    for target in known.targets:
        # The inventory may declare a node only through a pool's node_selector.
        expected = expected_of(inventory, listed.get(target.name) or Node(name=target.name, pool=target.pool.name))
        image = image_of(target)
        if target.name in read or not image or not expected.ask_registry:
            continue
        machine = architecture_of(target)
        host = HostFacts(kernel=Kernel(architecture=machine))
        yield from driver_image(CheckedHost(expected, host, look_up_image(image, machine)))


def _next_image_findings(known: RenderContext) -> Iterator[Finding]:
    """Yield nodes of OpenShift whose driver image for the release that they have yet to boot does not exist."""
    openshift, inventory = known.openshift, known.inventory
    if openshift is None or not inventory.preflight.registry or inventory.cluster.sandbox:
        return
    nodes: dict[tuple[str, str], list[str]] = {}
    for target in known.targets:
        following = next_system(target, openshift)
        if following and target.driver_group and not target.pool.driver.use_precompiled:
            image = image_of(replace(target, os=following))
            nodes.setdefault((image, architecture_of(target)), []).append(target.name)
    for (image, architecture), names in nodes.items():
        answer = look_up_image(image, architecture)
        if answer.state in {ImageAvailability.ABSENT, ImageAvailability.OTHER_ARCHITECTURE}:
            fix = "set driver.version to one whose image exists for the new release"
            yield update_finding(names, openshift, f"{image}: {answer.evidence}", fix)


def _operand_image_findings(inventory: Inventory, known: RenderContext) -> Iterator[Finding]:
    """Yield images of operands that lack the architecture of nodes which are not amd64, such as copies in a mirror.

    Each host's driver image is checked for itself.
    """
    if not inventory.preflight.registry or inventory.cluster.sandbox:
        return
    nodes: dict[tuple[str, str], dict[str, str]] = {}
    for target, key, image in components.images_of_other_architectures(known):
        if not key.endswith(".driver"):
            nodes.setdefault((image, architecture_of(target)), {})[target.name] = key
    with ThreadPoolExecutor(max_workers=8) as pool:  # a registry may take its time to say nothing
        answers = pool.map(look_up_image, *zip(*nodes, strict=True)) if nodes else iter(())
    for answer, ((image, architecture), keys) in zip(answers, nodes.items(), strict=True):
        if answer.state is ImageAvailability.OTHER_ARCHITECTURE:
            names = f"{join_limited(keys, MAX_NODES)} {'is' if len(keys) == 1 else 'are'}"
            yield Finding(
                code=codes.OTHER_ARCHITECTURE,
                what=f"the image {image} does not exist for {architecture}, which {names}",
                where=nodes_at([*keys], MAX_NODES),
                evidence=answer.evidence,
                consequence='its containers fail with "no match for platform" or "exec format error"',
                fix="mirror all platforms of the image, as with skopeo copy --all or crane copy; or set "
                f"{next(iter(keys.values()))}.version to one that exists for {architecture}",
            )
