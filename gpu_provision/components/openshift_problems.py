"""Findings about drivers on OpenShift: another platform, missing Driver Toolkits, nodes that an update leaves out."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from gpu_provision.components.driver_toolkit import ENTRYPOINT
from gpu_provision.components.labels import NFD_OSTREE, has_nfd_labels
from gpu_provision.components.targets import COREOS, is_coreos, observed_ostree
from gpu_provision.model import codes
from gpu_provision.model.cluster import RenderContext, Target
from gpu_provision.model.findings import Finding, Severity
from gpu_provision.model.inventory import OperatingSystem
from gpu_provision.model.openshift import CURRENT_CONFIG, OpenShiftFacts
from gpu_provision.model.openshift_specs import OPENSHIFT
from gpu_provision.model.text import MAX_NODES, join_limited, names_by, nodes_at

_IMAGE_STREAM = "ImageStream openshift/driver-toolkit"
_MAX_TAGS = 5
_LAST_COREOS = (4, 18)  # the last OpenShift whose CoreOS has an ID of its own; the next one is the system below
_RHEL = OperatingSystem("rhel", "9.6")


def problems(context: RenderContext) -> Iterator[Finding]:
    """Yield findings about the platform, and about nodes with a driver container on OpenShift."""
    yield from _platform(context)
    openshift = context.openshift
    if openshift is not None:
        served = [target for target in context.targets if not target.driver.on_host]
        yield from _unknown_releases(served, context)
        yield from _missing_toolkits(served, openshift)
        yield from _arguments(served)
        yield from _update(served, openshift)


def _platform(context: RenderContext) -> Iterator[Finding]:
    """Yield a platform that is not the cluster's, and settings of OpenShift on a cluster that is none."""
    inventory, found = context.inventory, context.facts.openshift
    declared = inventory.cluster.platform
    where, what = "cluster.platform", ""
    if not context.facts.version:  # offline
        return
    if declared == OPENSHIFT and found is None:
        what, fix = "the inventory declares OpenShift, and the cluster is none", "remove cluster.platform"
    elif declared not in {"", OPENSHIFT} and found is not None:
        what, fix = "the cluster is OpenShift, and the inventory declares Kubernetes", "remove cluster.platform"
    elif inventory.openshift is not None and context.openshift is None:
        where, what = "openshift", "the inventory has settings of OpenShift, and the cluster is none"
        fix = "remove the section openshift"
    if what:
        # A run with the wrong platform would remove what the right one needs, also the MachineConfigs, by reboots.
        severity = Severity.ERROR if where == "cluster.platform" else Severity.WARNING
        served = "serves" if found is not None else "does not serve"
        yield Finding(
            code=codes.OTHER_PLATFORM,
            what=what,
            where=where,
            evidence=f"the API server {served} the group config.openshift.io",
            fix=f"{fix}; or check which cluster the kubeconfig's context names",
            severity=severity,
        )


def _unknown_releases(served: Iterable[Target], context: RenderContext) -> Iterator[Finding]:
    """Yield nodes whose release of CoreOS is not known, or has no label that the driver's pods select."""
    is_online, has_own_discovery = bool(context.facts.version), context.inventory.specs.nfd.enabled
    built = [each for each in served if not each.pool.driver.use_precompiled and is_coreos(each.os, each.facts)]
    if not context.inventory.uses_driver_toolkit:
        return
    unknown = [each.name for each in built if not observed_ostree(each.facts) and (each.facts or not is_online)]
    unlabelled = [
        each.name
        for each in built
        if each.name not in unknown and not has_own_discovery and has_nfd_labels(each.labels)
        if NFD_OSTREE not in each.labels
    ]
    if unknown:
        yield _no_release(
            unknown,
            "is not known, so there is no Driver Toolkit for it",
            evidence="neither Node Feature Discovery nor the Node object names it"
            if is_online
            else "no cluster was read",
            fix="wait until the node is Ready" if is_online else "run the command with access to the cluster",
            severity=Severity.ERROR if is_online else Severity.WARNING,
        )
    if unlabelled:
        yield _no_release(
            unlabelled,
            "has no label, so the driver's pods do not run there",
            evidence=f"Node Feature Discovery sets no label {NFD_OSTREE}",
            fix="use the Node Feature Discovery of OpenShift, or set nfd.enabled: true",
            severity=Severity.ERROR,
        )


def _no_release(names: list[str], what: str, *, evidence: str, fix: str, severity: Severity) -> Finding:
    return Finding(
        code=codes.UNKNOWN_RELEASE,
        what=f"the release of CoreOS of {join_limited(names, MAX_NODES)} {what}",
        where=nodes_at(names, MAX_NODES),
        evidence=evidence,
        fix=fix,
        severity=severity,
    )


def _missing_toolkits(served: Iterable[Target], openshift: OpenShiftFacts) -> Iterator[Finding]:
    """Yield releases of CoreOS without a Driver Toolkit image."""
    tags = sorted(openshift.driver_toolkits)
    for release, names in names_by((each.toolkit_release, each.name) for each in served if each.lacks_toolkit):
        image = f"oc adm release info {openshift.version or 'VERSION'} --image-for=driver-toolkit"
        yield Finding(
            code=codes.NO_DRIVER_TOOLKIT,
            what=f"there is no Driver Toolkit image for release {release} of {join_limited(names, MAX_NODES)}",
            where=nodes_at(names, MAX_NODES),
            evidence=f"{_IMAGE_STREAM} has {_tags(tags)}",
            consequence="the driver is built from packages, which fails without a Red Hat entitlement on the node",
            fix=f"oc -n openshift tag $({image}) driver-toolkit:{release}, with the version of OpenShift that has the "
            "release; or delete the ImageStream, which the cluster then makes again",
        )


def _arguments(served: Iterable[Target]) -> Iterator[Finding]:
    """Yield arguments of programs that take none where a Driver Toolkit builds, in the order of pools."""
    built = {target.pool.name: target.pool for target in served if target.toolkit_release}
    for name, pool in sorted(built.items()):
        programs = {"driver": pool.driver, **pool.module_builders}
        keys = [f"{key}.args" for key, program in programs.items() if program.args]
        if keys:
            yield Finding(
                code=codes.ARGUMENTS_IGNORED,
                what=f"{', '.join(keys)} of the pool {name} have no effect: the Driver Toolkit builds the modules",
                where=f"pools.{name}",
                evidence=f"{ENTRYPOINT}, which starts these programs, passes no arguments on",
                fix="remove them, or set openshift.use_ocp_driver_toolkit: false, which needs entitled nodes",
                severity=Severity.WARNING,
            )


def _tags(tags: list[str]) -> str:
    return f"the tags {join_limited(tags, _MAX_TAGS)}" if tags else "no tags, or does not exist"


def pending_version(target: Target, openshift: OpenShiftFacts) -> str:
    """Return the version of OpenShift whose CoreOS a node has yet to boot; empty if there is none.

    An update is complete before the last pools are, and a paused pool stays behind: then the MachineConfigs that the
    node has and is to get name different images of CoreOS.
    """
    pool = openshift.pool_of(target.name)
    if openshift.update or pool is None or target.facts is None:
        return openshift.update
    names = (pool.wanted, target.facts.annotations.get(CURRENT_CONFIG, ""))
    images = {openshift.rendered[name].os_image for name in names if name in openshift.rendered}
    return openshift.version if len(images) > 1 and all(images) else ""


def _update(served: Iterable[Target], openshift: OpenShiftFacts) -> Iterator[Finding]:
    """Yield nodes that stay without a driver once they boot the release to which the cluster is updating."""
    behind = [target for target in served if pending_version(target, openshift)]
    built = [target for target in behind if target.toolkit_release]
    newest = max(map(_date, openshift.driver_toolkits), default="")
    lacking = [target.name for target in built if newest <= _date(target.toolkit_release)]
    # While the cluster updates, these may be the nodes that have booted the new release.
    if lacking and (len(lacking) == len(built) or not openshift.update):
        yield update_finding(
            lacking,
            openshift,
            f"{_IMAGE_STREAM} has {_tags(sorted(openshift.driver_toolkits))}, none newer than the nodes' releases",
            "wait until oc -n openshift get imagestream driver-toolkit shows the tag of the new release",
        )
    precompiled = [target.name for target in behind if target.pool.driver.use_precompiled]
    if precompiled:
        yield update_finding(
            precompiled,
            openshift,
            "their drivers are precompiled for the kernels that they run now",
            "check that the registry has the image for the kernel of the new release, or set use_precompiled: false",
        )


def update_finding(names: list[str], openshift: OpenShiftFacts, evidence: str, fix: str) -> Finding:
    """Return the warning that nodes may stay without a driver after the update."""
    pools = {pool.name: pool for pool in map(openshift.pool_of, names) if pool}
    listed, are_paused = ", ".join(pools), bool(pools) and all(pool.paused for pool in pools.values())
    pause = 'oc patch machineconfigpool NAME --type merge -p \'{"spec":{"paused":true}}\''
    nodes, version = join_limited(names, MAX_NODES), openshift.update or openshift.version
    return Finding(
        code=codes.WITHOUT_DRIVER_AFTER_UPDATE,
        what=f"the cluster is updating to {version}, for which {nodes} may have no driver"
        if openshift.update
        else f"{nodes} will boot CoreOS of {version}, for which there may be no driver",
        where=nodes_at(names, MAX_NODES),
        evidence=evidence,
        consequence="a node that boots another release of CoreOS stays without a driver",
        fix=f"{fix}; until then, keep {listed} paused"
        if are_paused
        else f"{fix}; until then, pause {listed or 'their MachineConfigPool'}: {pause}",
        severity=Severity.WARNING,
    )


def _date(release: str) -> str:
    """Return when a release of CoreOS was built, such as ``20250312``; versions before and after 4.19 do not compare.

    Empty for a tag such as ``latest``.
    """
    found = re.search(r"\.(20\d{6})", release)
    return found[1] if found else ""


def next_system(target: Target, openshift: OpenShiftFacts) -> OperatingSystem | None:
    """Return the system of a CoreOS node after the update, if its driver image will be another one.

    Since OpenShift 4.19, the ID is that of RHEL, and images are for a major version of RHEL.
    """
    found = re.match(r"(\d+)\.(\d+)", pending_version(target, openshift))
    if not found or target.os is None or not is_coreos(target.os, target.facts) or target.os.id != COREOS:
        return None
    version = int(found[1]), int(found[2])
    after = OperatingSystem(COREOS, f"{version[0]}.{version[1]}") if version <= _LAST_COREOS else _RHEL
    return None if after.tag == target.os.tag else after
