"""All rules, and what they say about one machine."""

from __future__ import annotations

from gpu_provision.model.findings import Finding
from gpu_provision.preflight.findings import overridden
from gpu_provision.preflight.rules import (
    compatibility,
    driver,
    fabric,
    gpus,
    images,
    kernel,
    machine,
    nouveau,
    runtime,
    signatures,
)
from gpu_provision.preflight.subject import Rule, Subject

RULES: tuple[Rule, ...] = (
    machine.node_name,
    machine.other_system,
    gpus.absent,
    gpus.count,
    gpus.undeclared,
    gpus.model,
    gpus.taken,
    nouveau.wanted,
    signatures.container_driver,
    signatures.host_driver,
    driver.beside_container,
    driver.missing,
    driver.removed,
    driver.waits,
    driver.mixed,
    driver.not_loaded,
    driver.held,
    compatibility.branch,
    compatibility.flavor,
    compatibility.cuda,
    fabric.manager,
    fabric.infiniband,
    kernel.pending,
    kernel.headers,
    kernel.large_pages,
    kernel.unattended,
    runtime.old,
    runtime.paths,
    runtime.schema,
    runtime.without_cri,
    runtime.cgroup_drivers,
    images.driver_image,
    images.unknown_system,
    machine.disk,
    machine.swap,
    machine.clock,
    machine.proxy,
)
"""In the order in which their findings are told."""


def judge(subject: Subject) -> tuple[Finding, ...]:
    """Return all that is to be said about a machine; codes that its inventory ignores stop nothing."""
    ignored = frozenset(subject.expected.ignore)
    return tuple(overridden((finding for rule in RULES for finding in rule(subject)), ignored))
