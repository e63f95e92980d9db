"""All rules, and what they say about one machine."""

from __future__ import annotations

from dataclasses import replace

from gpu_provision.hosts.checks.driver import (
    beside_container,
    branch,
    cuda,
    flavor,
    held,
    missing,
    mixed,
    not_loaded,
    removed,
    waits,
)
from gpu_provision.hosts.checks.findings import apply_ignored
from gpu_provision.hosts.checks.gpus import absent, count, infiniband, manager, model, taken, undeclared
from gpu_provision.hosts.checks.images import driver_image, unknown_system
from gpu_provision.hosts.checks.kernel import (
    container_driver,
    headers,
    host_driver,
    large_pages,
    pending,
    unattended,
    wanted,
)
from gpu_provision.hosts.checks.machine import clock, disk, node_name, other_system, proxy, swap
from gpu_provision.hosts.checks.runtime import cgroup_drivers, old, paths, schema, without_cri
from gpu_provision.hosts.checks.subject import CheckedHost, Rule
from gpu_provision.hosts.facts.host import HostRecord
from gpu_provision.model.expectation import Expectation
from gpu_provision.model.findings import Finding

RULES: tuple[Rule, ...] = (
    node_name,
    other_system,
    absent,
    count,
    undeclared,
    model,
    taken,
    wanted,
    container_driver,
    host_driver,
    beside_container,
    missing,
    removed,
    waits,
    mixed,
    not_loaded,
    held,
    branch,
    flavor,
    cuda,
    manager,
    infiniband,
    pending,
    headers,
    large_pages,
    unattended,
    old,
    paths,
    schema,
    without_cri,
    cgroup_drivers,
    driver_image,
    unknown_system,
    disk,
    swap,
    clock,
    proxy,
)
"""In the order in which their findings are told."""


def check_host(subject: CheckedHost) -> tuple[Finding, ...]:
    """Return all that is to be said about a machine; codes that its inventory ignores stop nothing."""
    ignored = frozenset(subject.expected.ignore)
    return tuple(apply_ignored((finding for rule in RULES for finding in rule(subject)), ignored))


def resolve_driver(expected: Expectation, host: HostRecord) -> Expectation:
    """Return what is expected of this very host: with ``driver.enabled: auto`` its own driver, if that is usable."""
    if not (expected.driver_auto and host.driver.usable):
        return expected
    return replace(expected, driver_container=False, driver_image="")
