"""The host phase as one pyinfra deploy, for deploy files and for runs of gpu-provision."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import asdict
from typing import Any

from pyinfra.api.command import FunctionCommand
from pyinfra.api.deploy import deploy
from pyinfra.api.host import Host
from pyinfra.api.operation import operation
from pyinfra.api.state import State
from pyinfra.context import host, state

from gpu_provision.hosts import connection
from gpu_provision.hosts.checks import images
from gpu_provision.hosts.checks.findings import CheckedHost
from gpu_provision.hosts.checks.judge import check_host, resolve_driver
from gpu_provision.hosts.facts.host import ALL, HostFacts
from gpu_provision.hosts.messages import Maintenance
from gpu_provision.hosts.operations import (
    Commands,
    add_finding,
    forget_sections,
    host_operation,
    report_findings,
    require_host,
    run_of,
)
from gpu_provision.hosts.operations.driver import kernel_modules, nouveau, persistence_mode
from gpu_provision.hosts.operations.packages import is_compiled_here, kernel_headers, packages_held
from gpu_provision.hosts.operations.reboot import reboot_if_needed
from gpu_provision.hosts.operations.runtime import Proxy, desired_pattern, runtime_environment, runtime_imports
from gpu_provision.hosts.operations.settings import hugepages, limits, system_settings
from gpu_provision.hosts.operations.teardown import remove_toolkit, restore_originals
from gpu_provision.model import codes
from gpu_provision.model.findings import Finding, RunFailedError, Severity
from gpu_provision.model.hosts import Expectation, HostPrerequisites, Reboot


@deploy("Host prerequisites")
def host_prerequisites(maintenance: Maintenance | None = None, *, workload_known: bool = False) -> None:
    """Prepare a GPU host for the containers of the stack.

    Reads ``host.data.host_prerequisites``, a dict with the keys of the inventory's ``host_prerequisites``;
    without it the defaults apply. With ``host.data.gpu_expected``, which gpu-provision's inventories have, preflight
    checks the host first, and a host with errors is not changed. Settings that are neither declared nor to be reverted
    have no operation.
    Does nothing on clusters and, where pyinfra's inventory has a group ``gpu``, on hosts outside of it; with
    ``host.data.gpu_judge_only`` preflight checks these as well.

    Args:
        maintenance: Cordons and drains nodes around reboots; without it, no host with a kubelet is rebooted.
        workload_known: Whether the cluster was asked, and does not give the host's GPUs to virtual machines; otherwise
            a GPU that is bound to vfio-pci is a warning.
    """
    _isolate_host()
    run_of(host).maintenance = run_of(host).maintenance or maintenance
    settings = HostPrerequisites(**{**asdict(HostPrerequisites()), **declared_prerequisites()})
    judge_only = bool(host.data.get("gpu_judge_only"))
    if not settings.enabled or not (is_gpu_host() or judge_only):
        return
    if expected := host.data.get("gpu_expected"):
        is_asked = workload_known or bool(host.data.get("gpu_workload_known"))
        preflight(name="Preflight", expected={**expected, "workload_known": is_asked})
    if not is_gpu_host():
        return
    kernel_modules(name="Kernel modules loaded now and at boot", modules=tuple(settings.kernel_modules))
    nouveau(name="nouveau kept away", blacklisted=settings.blacklist_nouveau)
    known = run_of(host).record
    if settings.kernel_headers is True or known is None or is_compiled_here(known):
        kernel_headers(name="Kernel headers", mode=settings.kernel_headers, expected=expected)
    packages_held(name="Kernel and driver packages held", held=settings.hold_packages)
    system_settings(name="System settings", sysctls=settings.sysctls, dev_char_symlinks=settings.dev_char_symlinks)
    _resources(settings, known)
    if known is None or known.driver.on_host or known.persistence.enabled:
        persistence_mode(name="Driver stays initialized", on=settings.persistence_mode, expected=expected)
    if settings.proxy or settings.ca_certificates or known is None or known.environment.files:
        runtime_environment(
            name="Container runtime's proxy and trusted certificates",
            proxy=Proxy(**settings.proxy),
            certificates=tuple(settings.ca_certificates),
        )
    if pattern := desired_pattern(settings.runtime_imports, _expectation()):
        runtime_imports(
            name="Container runtime imports the toolkit's drop-in",
            pattern=pattern,
            insist=str(settings.runtime_imports).lower() == "true",
        )
    if settings.reboot == Reboot.IF_REQUIRED and not judge_only:
        reboot_if_needed(  # last, as operations before it may need the reboot
            name="Rebooted where something needs it",
            nouveau_unwanted=settings.blacklist_nouveau,
            max_parallel=settings.max_parallel_reboots,
            patience=settings.reboot_timeout,
            drain=declared_prerequisites().get("drain"),
        )


def _resources(settings: HostPrerequisites, known: HostFacts | None) -> None:
    if settings.hugepages or known is None or known.hugepages.own_file is not None:
        hugepages(name="Huge pages reserved", counts=settings.hugepages)
    if settings.limits or known is None or known.limits.files:
        wanted = _expectation()
        reload = settings.dev_char_symlinks or wanted is None or wanted.cdi  # else containers would lose their GPUs
        limits(name="Limits of containers", values=settings.limits, reload=reload)


@deploy("Host teardown")
def host_teardown() -> None:
    """Restore every file that host operations have changed; kernel modules stay loaded.

    With ``host.data.gpu_expected``, which gpu-provision's inventories have, the deploy also removes the files of the
    container toolkit.
    Does nothing on clusters, and on hosts without changes.
    """
    _isolate_host()
    if GROUP in host.groups:
        return
    restore_originals(name="Files as they were")
    wanted = _expectation()
    if wanted and wanted.toolkit_dir and is_gpu_host():
        remove_toolkit(name="Container toolkit's programs", install_dir=wanted.toolkit_dir)


def _isolate_host() -> None:
    connection.disable_questions_without_terminal()
    connection.isolate_failures(host, host.log)


def _expectation() -> Expectation | None:
    """Return the expectation of the host's inventory; None without an inventory file."""
    data = host.data.get("gpu_expected")
    return Expectation.from_data(data) if data else None


def declared_prerequisites() -> dict[str, Any]:
    """Return the host prerequisites of the host's inventory."""
    return dict(host.data.get("host_prerequisites") or {})


def is_gpu_host() -> bool:
    """Whether this host has GPUs: it is in the group ``gpu``, or pyinfra's inventory has no such group."""
    if GROUP in host.groups:
        return False
    return "gpu" in host.groups or not (host.data.get("gpu_inventory") or "gpu" in state.inventory.groups)


GROUP = "cluster"


@operation()
def hosts_ready() -> Generator[FunctionCommand, None, None]:
    """Fail the hosts of group ``cluster`` unless every other host is ready.

    pyinfra would otherwise continue with the remaining hosts, and not wait under ``--serial`` and ``--no-wait``.
    Every host has to call this operation, so that pyinfra orders it after their operations.
    """
    if GROUP not in host.groups or not state.is_executing:
        return
    if finding := _find_obstacle(state, host):
        yield FunctionCommand(block_cluster_phase, (finding,), {})


def block_cluster_phase(state: State, host: Host, finding: Finding) -> bool:
    """Fail the cluster host, and pyinfra's exit code, which ``--no-wait`` would leave at 0."""
    state.failed_hosts.add(host)
    return report_findings(state, host, finding)


def _find_obstacle(state: State, cluster: Host) -> Finding | None:
    """Return why the cluster phase cannot start; None if it can."""
    others = (other for other in state.active_hosts if other.name != cluster.name)
    if failed := sorted(other.name for other in state.inventory if has_failed(state, other)):
        code, why = codes.HOST_FAILED, f"the host phase failed on {', '.join(failed)}"
        fix = "see the errors of these hosts above, repair them and run again, or exclude them with --exclude"
    elif unfinished := sorted(other.name for other in others if _is_unfinished(state, other, cluster)):
        code, why = codes.HOST_UNFINISHED, f"the host phase is not finished on {', '.join(unfinished)}"
        fix = "run without --serial and --no-wait"
    else:
        return None
    return Finding(code=code, what=f"the cluster phase is held back: {why}", where=cluster.name, fix=fix)


def has_failed(state: State, other: Host) -> bool:
    """Whether a host has failed; under ``--no-wait`` only its results show that."""
    return other in state.failed_hosts or state.get_results_for_host(other).error_ops > 0


def _is_unfinished(state: State, other: Host, cluster: Host) -> bool:
    """Whether a host has an unfinished operation before the cluster's current one."""
    for operation_hash in other.op_hash_order:
        if operation_hash == cluster.executing_op_hash:
            return False
        if not state.ops[other][operation_hash].operation_meta.is_complete():
            return True
    return False


@host_operation
def preflight(expected: Mapping[str, Any]) -> Commands:
    """Check a host before any change; an error fails the host.

    Args:
        expected: The fields of gpu_provision.model.hosts.Expectation, as ``host.data.gpu_expected`` has them.
    """
    wanted = Expectation.from_data(expected)
    if state.is_executing:  # minutes may have passed since the plan
        forget_sections()
    record = require_host(ALL, wanted.kernel_modules)
    run_of(host).record = record
    wanted = resolve_driver(wanted, record)
    answers = images.look_up_driver_image(wanted, record), images.look_up_next_image(wanted, record)
    findings = check_host(CheckedHost(wanted, record, *answers))
    for finding in findings:
        if finding.severity is Severity.WARNING:
            add_finding(finding)
    errors = [finding for finding in findings if finding.severity is Severity.ERROR]
    if errors:
        raise RunFailedError(*errors)
    yield from ()
