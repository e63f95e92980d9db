"""All rules, and what they say about one machine."""

from __future__ import annotations

from dataclasses import replace

from gpu_provision.hosts.checks import driver, gpus, images, kernel, machine
from gpu_provision.hosts.checks.findings import CheckedHost, Rule, apply_ignored
from gpu_provision.hosts.facts.host import HostFacts
from gpu_provision.model.findings import Finding
from gpu_provision.model.hosts import Expectation

RULES: tuple[Rule, ...] = (
    machine.node_name,
    machine.other_system,
    gpus.gpu_absent,
    gpus.gpu_count,
    gpus.gpu_undeclared,
    gpus.gpu_model,
    gpus.gpu_taken,
    kernel.nouveau_allowed,
    kernel.secure_boot,
    kernel.unsigned_module,
    driver.host_driver_conflict,
    driver.no_host_driver,
    driver.host_driver_removed,
    driver.host_driver_waits,
    driver.mixed_versions,
    driver.driver_not_loaded,
    driver.device_held,
    driver.driver_branch,
    driver.module_flavor,
    driver.cuda_minimum,
    gpus.fabric_manager,
    gpus.fabric_modules,
    gpus.no_network_card,
    kernel.kernel_pending,
    kernel.headers_unavailable,
    kernel.large_pages,
    kernel.unattended_upgrades,
    machine.runtime_old,
    machine.runtime_paths,
    machine.runtime_schema,
    machine.config_source,
    machine.runtime_down,
    machine.cri_disabled,
    machine.cgroup_drivers,
    images.driver_image,
    images.no_next_image,
    images.no_images_for_system,
    machine.disk,
    machine.swap,
    machine.clock,
    machine.proxy,
)
"""In the order of their findings."""

_ON_EVERY_MACHINE = frozenset({machine.node_name, machine.other_system, gpus.gpu_undeclared, machine.clock})
"""All others are for machines whose pool declares a GPU."""


def check_host(subject: CheckedHost) -> tuple[Finding, ...]:
    """Return all findings about a machine; codes that its inventory ignores stop nothing."""
    ignored = frozenset(subject.expected.ignore)
    rules = RULES if subject.expected.has_gpu else (rule for rule in RULES if rule in _ON_EVERY_MACHINE)
    return tuple(apply_ignored((finding for rule in rules for finding in rule(subject)), ignored))


def resolve_driver(expected: Expectation, host: HostFacts) -> Expectation:
    """Return what is expected of this very host: with ``driver.enabled: auto`` its own driver, if that is usable."""
    if not (expected.driver_auto and host.driver.usable):
        return expected
    return replace(expected, driver_container=False, driver_image="")
