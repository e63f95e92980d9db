"""Whether a host's container runtime has to be told of the drop-in that the toolkit writes, from its record alone.

Since 1.18 the toolkit writes a file of its own and has containerd's root configuration import it. It edits the root
unasked, restarts containerd, and leaves a node whose containerd then fails as it is; a root that has the import
already is left alone by it (https://github.com/NVIDIA/nvidia-container-toolkit/releases/tag/v1.18.0). CRI-O reads
its drop-in directory by default, and Docker is set up in one file.
"""

from __future__ import annotations

import posixpath
import re
from functools import partial
from pathlib import PurePosixPath

from pyinfra.api.command import StringCommand
from pyinfra.context import host

from gpu_provision.components.toolkit_runtimes import RUNTIMES
from gpu_provision.hosts import scripts
from gpu_provision.hosts.background_script import (
    longest_seconds,
    runtime_variables,
    script_problem,
    start_script,
    wait_for_result,
)
from gpu_provision.hosts.facts.host import HostRecord
from gpu_provision.hosts.facts.runtime import CONTAINERD, ContainerRuntime
from gpu_provision.hosts.operations.base import Commands, add_finding, host_operation, record_changes, require_host
from gpu_provision.model import codes
from gpu_provision.model.findings import Finding, Severity
from gpu_provision.model.hosts import KUBEADM, OTHER, Expectation, paths_of

_FIRST_WITH_DROP_IN = (1, 18)

_FIRST_WITH_IMPORTS = 2
"""Schema of containerd's configuration in which plugins have the names that the toolkit writes."""


def wanted_pattern(wish: bool | str, expected: Expectation | None) -> str:  # noqa: FBT001 - as YAML has it
    """Return the pattern of files for containerd to import; empty for none.

    Args:
        wish: The inventory's ``host_prerequisites.runtime_imports``: ``auto`` wants it where our toolkit writes a
            drop-in, so that a bad configuration is found and taken back.
        expected: What the inventory expects of the host; None without one.
    """
    wanted = str(wish).lower()
    if wanted == "false" or (wanted == "auto" and not (expected and _writes_drop_in(expected))):
        return ""
    drop_in = (expected.toolkit_drop_in if expected else "") or RUNTIMES[CONTAINERD].drop_in
    return f"{posixpath.dirname(drop_in)}/*.toml"


def _writes_drop_in(expected: Expectation) -> bool:
    """Return whether our toolkit does; a version that says nothing, such as a digest, counts as new."""
    said = re.match(r"v?(\d+)\.(\d+)", expected.toolkit_version)
    is_new = said is None or (int(said[1]), int(said[2])) >= _FIRST_WITH_DROP_IN
    return bool(expected.toolkit and expected.gpu_count and is_new)


def runtime_to_change(record: HostRecord, pattern: str) -> ContainerRuntime | None:
    """Return the kubelet's containerd if it does not import files yet, and can be told to; else None."""
    runtime = _own_containerd(record)
    return None if runtime is None or _imports(runtime, pattern) or _is_old(runtime) else runtime


def unsupported_reason(record: HostRecord, host: str, pattern: str) -> Finding | None:
    """Return the warning about a containerd that cannot be told to import files; None if there is none."""
    runtime, kubernetes = record.cri, record.kubernetes
    if runtime is None or runtime.kind != CONTAINERD or _imports(runtime, pattern):
        return None
    if runtime is not _own_containerd(record):
        evidence = f"{runtime.config} is written by {kubernetes.distribution} at each start"
        fix = (
            f"nothing while the toolkit is ours: it changes {kubernetes.places.toolkit_config}, which lasts; else"
            f" import {pattern} there"
        )
    elif _is_old(runtime):
        evidence = f"{runtime.config} is of schema {runtime.schema}"
        fix = f"containerd config migrate > {runtime.config}.new, look at it, put it in place, restart containerd"
    else:
        return None
    return Finding(
        code=codes.RUNTIME_LEFT,
        what="containerd's imports are left as they are",
        where=host,
        evidence=evidence,
        fix=fix,
        severity=Severity.WARNING,
    )


def _own_containerd(record: HostRecord) -> ContainerRuntime | None:
    """Return the kubelet's containerd if it is the system's; one of a distribution has a template."""
    runtime, distribution = record.cri, record.kubernetes.distribution
    if runtime is None or runtime.kind != CONTAINERD or not runtime.binary or not runtime.socket:
        return None
    has_template = distribution not in {KUBEADM, OTHER} and runtime.config == paths_of(distribution).containerd_config
    return None if has_template else runtime


def _is_old(runtime: ContainerRuntime) -> bool:
    return runtime.has_config and runtime.schema < _FIRST_WITH_IMPORTS


def _imports(runtime: ContainerRuntime, pattern: str) -> bool:
    """Return whether a configuration imports what lies beside a file that the pattern stands for."""
    file = PurePosixPath(pattern.replace("*", "99-nvidia"))
    base = posixpath.dirname(runtime.config)
    return any(file.match(posixpath.normpath(posixpath.join(base, known))) for known in runtime.imports)


@host_operation
def runtime_imports(pattern: str, insist: bool = True, patience: int = 60) -> Commands:  # noqa: FBT001, FBT002 - pyinfra operations take their state so
    """Have the kubelet's containerd import files, such as the toolkit's drop-in; it is restarted if that is new.

    Its root configuration is changed in that alone, after the node's own containerd has accepted the result. If
    containerd does not answer after its restart, the host puts the old configuration back by itself, even if the
    connection is lost, and the operation fails (GP672). What was there before the first change is kept for teardown.
    Left alone: hosts without a kubelet, other runtimes, and the containerd of a distribution that writes its
    configuration at each start.

    Args:
        pattern: Absolute pattern of files.
        insist: Whether to warn where this cannot be done (GP670).
        patience: Seconds that a restarted containerd may take to answer.

    Example::

        runtime_imports(name="Drop-ins of the toolkit", pattern="/etc/containerd/conf.d/*.toml", _sudo=True)
    """
    record = require_host(("system", "kernel", "runtimes", "kubernetes"))
    left = unsupported_reason(record, host.name, pattern) if insist else None
    if left:
        add_finding(left)
    runtime = runtime_to_change(record, pattern)
    if runtime is None:
        host.noop("the container runtime needs no import")
        return
    new = "" if runtime.has_config else ", which is new"
    record_changes([f"{pattern} imported in {runtime.config}{new}", "containerd restarted"])
    yield StringCommand(start(runtime, pattern, patience))
    remedy = f"look at the files that {pattern} takes in, or set host_prerequisites.runtime_imports: false"
    problem = partial(script_problem, kind=CONTAINERD, change=f"{pattern} imported", remedy=remedy)
    yield wait_for_result(problem, longest_seconds(patience))


def start(runtime: ContainerRuntime, pattern: str, patience: int) -> str:
    """Return the command that starts the script."""
    variables = {"pattern": pattern, "edit": scripts.load("imports.awk")}
    return start_script("backups.sh", "runtime.sh", "imports.sh", **runtime_variables(runtime, patience), **variables)
