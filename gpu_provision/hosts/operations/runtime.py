"""What a host's container runtime reads: the toolkit's drop-in, proxies and certificates, decided from its record."""

from __future__ import annotations

import hashlib
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import PurePosixPath

from pyinfra.api.command import StringCommand
from pyinfra.context import host

from gpu_provision.components.toolkit_runtimes import RUNTIMES
from gpu_provision.hosts import errors, scripts
from gpu_provision.hosts.background_script import runtime_variables, script_problem, start_script, wait_for_result
from gpu_provision.hosts.facts.host import HostFacts
from gpu_provision.hosts.facts.runtime import CONTAINERD, ContainerRuntime, TrustStore
from gpu_provision.hosts.facts.system import without_credentials
from gpu_provision.hosts.operations import (
    Commands,
    add_finding,
    fail_host,
    host_operation,
    record_changes,
    require_host,
    show_diff,
)
from gpu_provision.hosts.scripts import CERTIFICATE_PREFIX, ENVIRONMENT_DROP_IN, PROXY_FILE
from gpu_provision.model.findings import Finding
from gpu_provision.model.hosts import KUBEADM, OTHER, Expectation, paths_of

_DEFAULT_UNITS = {CONTAINERD: "containerd.service", "cri-o": "crio.service", "docker": "docker.service"}

_OWN_PREFIX = ("k3s", "rke2", "k0s")
"""Beginnings of the units that hand variables with the prefix on to their containerd, and no others: their kubelet is
not to be sent through a proxy (https://github.com/k3s-io/k3s/pull/4009, k0s' documentation, environment variables)."""

_DROP_IN_TEXT = f"""# Written by gpu-provision: the proxies that images are pulled through.
[Service]
EnvironmentFile={PROXY_FILE}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proxy:
    """Proxies that images are pulled through; their text shows no credentials."""

    http_proxy: str = ""  # address for plain HTTP; empty for none
    https_proxy: str = ""  # likewise, for HTTPS, which registries speak
    no_proxy: str = ""  # what is reached without, separated by commas

    @property
    def is_declared(self) -> bool:
        """Whether there is a proxy at all."""
        return bool(self.http_proxy or self.https_proxy)

    def __repr__(self) -> str:
        """Return the addresses without credentials."""
        return ", ".join(f"{name}={without_credentials(value)}" for name, value in asdict(self).items() if value)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFile:
    """A file as desired."""

    text: str  # what it holds; ends with a newline
    mode: str = "644"  # its permissions, such as ``600``

    @property
    def digest(self) -> str:
        """SHA-256 of its bytes."""
        return hashlib.sha256(self.text.encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentChange:
    """What has to change; nothing if there are no files."""

    files: Mapping[str, HostFile | None]  # path -> the desired file, of those that differ; None for no file
    runtime: ContainerRuntime | None  # what has to be restarted; None for nothing
    trust: TrustStore | None  # the store that has to be rebuilt; None for none
    description: tuple[str, ...]  # every change in words

    @property
    def units(self) -> bool:
        """Whether systemd has to reload its units."""
        return any(path.endswith(f"/{ENVIRONMENT_DROP_IN}") for path in self.files)


def environment_change(record: HostFacts, proxy: Proxy, certificates: Sequence[str]) -> EnvironmentChange:
    """Return what has to change. gpu-provision's files that are no longer declared are removed."""
    wanted = {**_proxy_files(record, proxy), **_certificate_files(record, certificates)}
    known = record.environment.files
    files: dict[str, HostFile | None] = {path: None for path in known if path not in wanted}
    if proxy.is_declared and not _unit_of(used_runtime(record)):  # such as one that is down just now
        files = {path: file for path, file in files.items() if _is_anchor(path)}
    files |= {path: file for path, file in wanted.items() if known.get(path) != file.digest}
    anchors = [path for path in files if _is_anchor(path)]
    runtime = used_runtime(record) if files else None
    return EnvironmentChange(
        files=files,
        runtime=runtime,
        trust=record.environment.trust if anchors else None,
        description=tuple(_describe(files, proxy, len(certificates), runtime)),
    )


def used_runtime(record: HostFacts) -> ContainerRuntime | None:
    """Return the runtime that the kubelet uses, or without a kubelet the only one that runs; None for none."""
    running = [runtime for runtime in record.runtimes if runtime.running]
    alone = running[0] if len(running) == 1 and not record.kubernetes.distribution else None
    return record.cri or alone


def _unit_of(runtime: ContainerRuntime | None) -> str:
    """Return the unit that can be told of a proxy; empty for none. A snap's reads a file of its own."""
    unit = (runtime.unit or _DEFAULT_UNITS[runtime.kind]) if runtime else ""
    return "" if unit.startswith("snap.") else unit


def _proxy_files(record: HostFacts, proxy: Proxy) -> dict[str, HostFile]:
    unit = _unit_of(used_runtime(record))
    if not unit or not proxy.is_declared:
        return {}
    prefix = "CONTAINERD_" if unit.startswith(_OWN_PREFIX) else ""
    quoted = {name: re.sub(r'(["\\$`])', r"\\\1", value) for name, value in asdict(proxy).items() if value}
    lines = [f'{prefix}{name.upper()}="{value}"\n' for name, value in quoted.items()]
    return {
        PROXY_FILE: HostFile(text="".join(lines), mode="600"),
        f"/etc/systemd/system/{unit}.d/{ENVIRONMENT_DROP_IN}": HostFile(text=_DROP_IN_TEXT),
    }


def _certificate_files(record: HostFacts, certificates: Sequence[str]) -> dict[str, HostFile]:
    """Return a file for each certificate, named by what it holds."""
    store = record.environment.trust
    files = [HostFile(text=f"{text.strip()}\n") for text in certificates]
    return (
        {f"{store.anchors}/{CERTIFICATE_PREFIX}{file.digest[:16]}{store.suffix}": file for file in files}
        if store
        else {}
    )


def _is_anchor(path: str) -> bool:
    return path.rpartition("/")[2].startswith(CERTIFICATE_PREFIX)


def _describe(
    files: Mapping[str, HostFile | None], proxy: Proxy, certificates: int, runtime: ContainerRuntime | None
) -> Iterator[str]:
    if PROXY_FILE in files or any(path.endswith(ENVIRONMENT_DROP_IN) for path in files):
        removed = files.get(PROXY_FILE, True) is None
        yield "images no longer pulled through our proxy" if removed else f"images pulled through a proxy: {proxy!r}"
    if any(map(_is_anchor, files)):
        yield f"certificates trusted besides the system's own: {certificates}"
    if runtime:
        yield f"{runtime.kind} restarted"


def redact(path: str, file: HostFile | None) -> tuple[str, ...]:
    """Return a file's lines for people, without credentials and without the body of a certificate."""
    if file is None:
        return ()
    if _is_anchor(path):
        return (f"certificate with SHA-256 {file.digest} (of the file)",)
    lines = file.text.splitlines()
    hidden = (re.sub(r'="(.*)"$', lambda found: f'="{without_credentials(found[1])}"', each) for each in lines)
    return tuple(hidden)


def proxy_unsupported(record: HostFacts, host: str, proxy: Proxy) -> Finding | None:
    """Return the warning about a host whose runtime cannot be told of a proxy; None if it can, or has to know none."""
    runtime = used_runtime(record)
    if _unit_of(runtime) or not proxy.is_declared:
        return None
    evidence = "no container runtime that a kubelet uses was found"
    way = "set host_prerequisites.proxy to {} for this node or its pool, or install the runtime first"
    if runtime:
        evidence = f"it runs in {runtime.unit}"
        way = "sudo editor /var/snap/microk8s/current/args/containerd-env; microk8s stop; microk8s start"
    return errors.finding("proxy", host, evidence, way=way)


SECTIONS = ("system", "kernel", "runtimes", "kubernetes", "environment")


@host_operation
def runtime_environment(proxy: Proxy, certificates: Sequence[str] = (), patience: int = 60) -> Commands:
    """Have the kubelet's container runtime pull images through proxies, and the system trust certificates.

    The runtime is restarted if either is new. If it does not answer within ``patience`` seconds then, the host takes
    all of it back by itself, whatever becomes of the connection, and the operation fails. What is no longer declared
    goes. Neither the kubelet nor containers are sent through the proxy. Certificates are in PEM, one a text.
    """
    record = require_host(SECTIONS)
    if certificates and not record.environment.trust:
        fail_host("trust_store")
    if left := proxy_unsupported(record, host.name, proxy):
        add_finding(left)
    change = environment_change(record, proxy, certificates)
    if not change.files:
        host.noop("proxies and certificates are as declared")
        return
    record_changes(change.description)
    for path, file in change.files.items():
        show_diff(path, ["(not shown)"] if path in record.environment.files else None, redact(path, file) or None)
    yield start_change(change, patience)
    kind = change.runtime.kind if change.runtime else "the system"
    remedy = "correct host_prerequisites.proxy or ca_certificates, or take them off this node"
    problem = partial(script_problem, kind=kind, change="its proxy and certificates", remedy=remedy)
    yield wait_for_result(problem, patience)


def start_change(change: EnvironmentChange, patience: int) -> StringCommand:
    """Return the command that starts the script, which reads files and their content from standard input."""
    variables = {
        **runtime_variables(change.runtime, patience),
        "units": "yes" if change.units else "",
        "trust": change.trust.command if change.trust else "",
    }
    script = start_script("backups.sh", "runtime.sh", "environment.sh", takes_stdin="yes", **variables)
    lines = []  # for each file one that says where to, then what it holds behind bars
    for path, file in change.files.items():
        lines += [f"+ {file.mode} {path}", *(f"|{line}" for line in file.text.splitlines())] if file else [f"- {path}"]
    return StringCommand(script, _stdin="".join(f"{line}\n" for line in lines))


# https://github.com/NVIDIA/nvidia-container-toolkit/releases/tag/v1.18.0
_FIRST_WITH_DROP_IN = (1, 18)

_FIRST_WITH_IMPORTS = 2
"""Schema of containerd's configuration in which plugins have the names that the toolkit writes."""


def desired_pattern(wish: bool | str, expected: Expectation | None) -> str:  # noqa: FBT001 - as YAML has it
    """Return the pattern of files for containerd to import; empty for none.

    Args:
        wish: The inventory's ``host_prerequisites.runtime_imports``: ``auto`` wants it where our toolkit writes a
            drop-in, so that a bad configuration is found and taken back.
        expected: What the inventory expects of the host; None without one.
    """
    wanted = str(wish).lower()
    if wanted == "auto" and expected and expected.toolkit and expected.has_gpu:
        # a version that says nothing, such as a digest, counts as new
        said = re.match(r"v?(\d+)\.(\d+)", expected.toolkit_version)
        wanted = str(said is None or (int(said[1]), int(said[2])) >= _FIRST_WITH_DROP_IN).lower()
    if wanted in {"false", "auto"}:
        return ""
    drop_in = (expected.toolkit_drop_in if expected else "") or RUNTIMES[CONTAINERD].drop_in
    return f"{posixpath.dirname(drop_in)}/*.toml"


def runtime_to_change(record: HostFacts, pattern: str) -> ContainerRuntime | None:
    """Return the kubelet's containerd if it does not import files yet, and can be told to; else None."""
    runtime = _own_containerd(record)
    return None if runtime is None or _imports(runtime, pattern) or _is_old(runtime) else runtime


def unsupported_reason(record: HostFacts, host: str, pattern: str) -> Finding | None:
    """Return the warning about a containerd that cannot be told to import files; None if there is none."""
    runtime, kubernetes = record.cri, record.kubernetes
    if runtime is None or runtime.kind != CONTAINERD or _imports(runtime, pattern):
        return None
    if runtime is not _own_containerd(record):
        evidence = f"{runtime.config} is written by {kubernetes.distribution} at each start"
        fix = (
            f"nothing while the toolkit is ours: it changes {kubernetes.paths.toolkit_config}, which lasts; else"
            f" import {pattern} there"
        )
    elif _is_old(runtime):
        evidence = f"{runtime.config} is of schema {runtime.schema}"
        fix = f"containerd config migrate > {runtime.config}.new, look at it, put it in place, restart containerd"
    else:
        return None
    return errors.finding("imports", host, evidence, way=fix)


def _own_containerd(record: HostFacts) -> ContainerRuntime | None:
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
    yield StringCommand(start_import(runtime, pattern, patience))
    remedy = f"look at the files that {pattern} takes in, or set host_prerequisites.runtime_imports: false"
    problem = partial(script_problem, kind=CONTAINERD, change=f"{pattern} imported", remedy=remedy)
    yield wait_for_result(problem, patience)


def start_import(runtime: ContainerRuntime, pattern: str, patience: int) -> str:
    """Return the command that starts the script."""
    variables = {**runtime_variables(runtime, patience), "pattern": pattern, "edit": scripts.load("imports.awk")}
    return start_script("backups.sh", "runtime.sh", "imports.sh", **variables)
