"""Errors that block an adoption, and warnings before it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from gpu_provision.adopt.discovery import OperatorInstall, labels_of
from gpu_provision.adopt.inventory import settings_of_install
from gpu_provision.adopt.unsupported import unsupported_settings
from gpu_provision.model import codes
from gpu_provision.model.cluster import RenderContext, ref_of
from gpu_provision.model.findings import Finding, Severity
from gpu_provision.model.text import MAX_NODES, nodes_at
from gpu_provision.planning.diff import FIELD_MANAGER
from gpu_provision.planning.managed_fields import managers_of
from gpu_provision.rollout.states import STATE, UpgradeState

if TYPE_CHECKING:
    from gpu_provision.adopt.plan import RunningDriver

_IDLE = frozenset({UpgradeState.UNKNOWN.value, UpgradeState.DONE.value})


def check_cluster(install: OperatorInstall, context: RenderContext) -> Iterator[Finding]:
    """Yield the findings about the operator, its ClusterPolicy and the inventory."""
    if not install.policies:
        yield nothing_to_adopt_finding(install.cluster)
        return
    yield from _check_upgrades(install)
    yield from _check_installer(install)
    yield from check_policy(install)
    yield from _check_inventory(install, context)


def nothing_to_adopt_finding(cluster: str) -> Finding:
    """Return the warning that the cluster has no ClusterPolicy."""
    return Finding(
        code=codes.NOTHING_TO_ADOPT,
        what="there is nothing to take over: the cluster has no ClusterPolicy, or the adoption is complete",
        where=cluster,
        fix="compare the cluster with the inventory: gpu-provision plan",
        severity=Severity.WARNING,
    )


def check_policy(install: OperatorInstall) -> Iterator[Finding]:
    """Yield the ClusterPolicy settings that an inventory lacks: an error for those that workloads may need."""
    policy = install.policy
    settings = tuple(unsupported_settings(settings_of_install(install)))
    for severity, what, fix in (
        (
            Severity.ERROR,
            "workloads may need ClusterPolicy settings that an inventory does not have",
            "stay with the GPU Operator, or turn these settings off in the ClusterPolicy once no workload needs them",
        ),
        (
            Severity.WARNING,
            "these ClusterPolicy settings are not carried over, since an inventory does not have them",
            "nothing, if no workload needs it",
        ),
    ):
        reported = [setting for setting in settings if setting.is_needed == (severity is Severity.ERROR)]
        if policy and reported:
            evidence = "".join(f"\n    {setting.path}: {setting.value}  ({setting.meaning})" for setting in reported)
            where = str(ref_of(policy))
            yield Finding(
                code=codes.NOT_EXPRESSIBLE, what=what, where=where, evidence=evidence, fix=fix, severity=severity
            )


def _check_upgrades(install: OperatorInstall) -> Iterator[Finding]:
    states = {
        node["metadata"]["name"]: state
        for node in install.nodes
        if (state := labels_of(node).get(STATE, "")) not in _IDLE
        # Own writes are from an adoption that was interrupted in its rollout; the next run resumes it.
        and FIELD_MANAGER not in managers_of(node, "metadata", "labels", STATE)
    }
    if states:
        yield Finding(
            code=codes.UPGRADING,
            what="the GPU Operator is in the middle of a driver upgrade",
            where=nodes_at(sorted(states), MAX_NODES),
            evidence="; ".join(f"{node}: {state}" for node, state in sorted(states.items())[:MAX_NODES]),
            fix=f"wait until the label {STATE} of every node says upgrade-done, or repair the nodes that failed",
        )


def _check_installer(install: OperatorInstall) -> Iterator[Finding]:
    for item in install.operators:
        if owners := item["metadata"].get("ownerReferences"):
            yield Finding(
                code=codes.NOT_EXPRESSIBLE,
                what="the operator was not installed by Helm: what owns its Deployment would start it again",
                where=str(ref_of(item)),
                evidence=f"owner: {owners[0]['kind']} {owners[0]['name']}",
                fix="uninstall the operator with the tool that installed it, but keep its ClusterPolicy until then",
            )
    if install.drivers:
        yield Finding(
            code=codes.NOT_EXPRESSIBLE,
            what="NVIDIADriver resources manage the drivers; these cannot be adopted",
            where=f"NVIDIADriver {', '.join(item['metadata']['name'] for item in install.drivers)}",
            fix="switch to driver settings in the ClusterPolicy first (driver.nvidiaDriverCRD.enabled=false)",
        )


def _check_inventory(install: OperatorInstall, context: RenderContext) -> Iterator[Finding]:
    if install.namespace and install.namespace != context.namespace:
        yield Finding(
            code=codes.NOT_AS_INVENTORY,
            what="the operands run in another namespace than the inventory names; pods cannot move",
            where=f"namespace {install.namespace}",
            evidence=f"cluster.namespace of the inventory is {context.namespace}",
            fix=f"set cluster.namespace to {install.namespace}",
        )
    groups = {target.name: target.driver_group for target in context.targets}
    with_driver = {pod["spec"].get("nodeName") for pod in install.driver_pods()} - {None, ""}
    if lost := [node for node in with_driver if not groups.get(node)]:
        yield Finding(
            code=codes.NOT_AS_INVENTORY,
            what="these nodes have a driver of the GPU Operator's, and the inventory has none for them",
            where=nodes_at(sorted(lost), MAX_NODES),
            fix="list them in a pool with a GPU and a driver (gpu-provision adopt --inventory-out writes such a file)",
        )


def check_drivers(drivers: Iterable[RunningDriver]) -> Iterator[Finding]:
    """Yield the warnings about drivers that the apply replaces, with their differences."""
    by_cause: dict[tuple[str, ...], list[str]] = {}
    for each in drivers:
        if not each.is_kept:
            by_cause.setdefault(each.differences, []).append(each.node)
    for differs, nodes in by_cause.items():
        yield Finding(
            code=codes.DRIVER_RESTARTS,
            what="the driver on these nodes is not the declared one; a rollout replaces it",
            where=nodes_at(sorted(nodes), MAX_NODES),
            evidence="; ".join(differs),
            consequence="pods that use GPUs are evicted from each of them",
            fix="declare the running driver to keep it now, and change it later",
            severity=Severity.WARNING,
        )


def check_release(install: OperatorInstall) -> Iterator[Finding]:
    """Yield the warning about Helm's release record: an uninstall would delete adopted objects by name."""
    name, namespace = install.release
    if name:
        yield Finding(
            code=codes.HELM_RECORDS,
            what="Helm keeps its record of the release, which this leaves to you; never run helm uninstall or upgrade",
            where=f"Secrets sh.helm.release.v1.{name}.* in namespace {namespace}",
            consequence="helm uninstall deletes the release's objects by name, and removes the labels of all nodes;"
            " helm upgrade brings the operator back",
            fix="when the adoption is over: remove the release from Argo CD, Flux or similar tools, then"
            f" kubectl -n {namespace} delete secret -l owner=helm,name={name}",
            severity=Severity.WARNING,
        )
