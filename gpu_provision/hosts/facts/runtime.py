"""Container runtimes, their limits and environment, and the kubelet that uses them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

from gpu_provision.hosts.facts import Section, SectionOutput, lines_by_path, number, part
from gpu_provision.model.hosts import DISTRIBUTIONS, KUBEADM, OTHER, DistributionPaths, paths_of

_OWNERS = {
    **dict.fromkeys(("k3s", "k3s-server", "k3s-agent"), "k3s"),
    **dict.fromkeys(("rke2", "rke2-server", "rke2-agent"), "rke2"),
    "kubelite": "microk8s",
    "k0s": "k0s",
}
"""Process -> the distribution that it belongs to."""

_SNAP = {"SNAP_COMMON": "/var/snap/microk8s/common", "SNAP_DATA": "/var/snap/microk8s/current"}
"""Variables in MicroK8s' files of arguments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kubernetes(Section):
    """The node's side of Kubernetes."""

    # ``kubeadm``, ``k3s``, ``rke2``, ``microk8s``, ``k0s``; ``other`` for a kubelet of unknown origin; empty for no
    # Kubernetes
    distribution: str = ""
    running: bool = False  # whether its kubelet, or the process that holds it, runs
    runtime_endpoint: str = ""  # path of the socket in the kubelet's settings; empty if they name none
    cgroup_driver: str = ""  # ``systemd`` or ``cgroupfs`` in the kubelet's settings; empty if they name none
    node_name: str = ""  # name of the node in the kubelet's settings; empty for the host's own
    refuses_swap: bool | None = None  # whether the kubelet does not start on a host that swaps; None if unknown

    @classmethod
    def read(cls, output: SectionOutput) -> Self:
        """Read the section: a running process tells more than files that an earlier installation left."""
        processes = output.all("process")
        distribution = _distribution(output, processes)
        variable = re.compile(r"\$\{?(SNAP_COMMON|SNAP_DATA)\}?")
        lines = [variable.sub(lambda found: _SNAP[found[1]], line) for line in output.all("flag")]
        pairs = (line.partition(" ")[2].removeprefix("--").partition("=") for line in reversed(lines))
        flags = {name: value.strip("\"'") for name, _, value in pairs if value}  # the process comes first, and wins
        settings = dict(re.findall(r"^(\w+):\s*\"?([^\"\s]+)", "\n".join(output.all("setting")), re.MULTILINE))
        endpoint = flags.get("container-runtime-endpoint") or settings.get("containerRuntimeEndpoint", "")
        # Without a setting it refuses to swap, but distributions other than kubeadm set one.
        told = flags.get("fail-swap-on") or settings.get("failSwapOn", "")
        by_default = True if distribution in {KUBEADM, OTHER} and output.has("configured") else None
        return cls(
            distribution=distribution,
            running=bool(processes),
            runtime_endpoint=endpoint.removeprefix("unix://"),
            cgroup_driver=flags.get("cgroup-driver") or settings.get("cgroupDriver", ""),
            node_name=flags.get("hostname-override") or flags.get("node-name", ""),
            refuses_swap=told != "false" if told else by_default,
        )

    @property
    def paths(self) -> DistributionPaths:
        """Where this distribution keeps its files."""
        return paths_of(self.distribution)

    @property
    def socket(self) -> str:
        """The runtime's socket that the kubelet uses; empty without Kubernetes."""
        return self.runtime_endpoint or (self.paths.socket if self.distribution else "")


def _distribution(output: SectionOutput, processes: list[str]) -> str:
    by_process = next((_OWNERS[name] for name in processes if name in _OWNERS), "")
    marks = [line.partition(" ")[0] for line in output.all("mark")]
    if by_process or (KUBEADM in marks and "kubelet" in processes):
        return by_process or KUBEADM
    unknown = OTHER if processes or output.has("kubelet") else ""
    return next((name for name in DISTRIBUTIONS if name in marks), unknown)


CONTAINERD = "containerd"

CRIO = "cri-o"

DOCKER = "docker"


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerRuntime:
    """One container runtime of a host; there may be several of a kind."""

    kind: str  # ``containerd``, ``cri-o`` or ``docker``
    running: bool = False  # whether a process of it runs
    binary: str = ""  # path of its program; empty if unknown
    version: str = ""  # such as ``1.7.27``; empty if it would not say
    config: str = ""  # path of its configuration
    target: str = ""  # the file that this path leads to; empty if it is that file, or leads nowhere
    has_config: bool = False  # whether that file is there and readable
    schema: int = 0  # ``version`` of containerd's configuration file; 1 where it names none, 0 without a file
    dump_schema: int = 0  # ``version`` of ``containerd config dump``; 0 if unknown
    has_handlers: bool = False  # whether containerd's configuration file has tables of runtimes, such as of runc
    imports: tuple[str, ...] = ()  # patterns of files that the configuration takes in
    drop_ins: tuple[str, ...] = ()  # files that these patterns find, or that lie in the runtime's drop-in directory
    socket: str = ""  # path of its socket; empty if there is none
    unit: str = ""  # unit of systemd that it runs in, such as ``containerd.service``; empty if it does not run in one
    cgroup_driver: str = ""  # ``systemd`` or ``cgroupfs``, as far as the configuration says; else empty
    default_runtime: str = ""  # name of the default runtime handler; empty if the configuration names none
    disabled_plugins: tuple[str, ...] = ()  # plugins that containerd's configuration disables

    @property
    def branch(self) -> tuple[int, int]:
        """Major and minor version; (0, 0) if unknown."""
        found = re.match(r"v?([0-9]{1,9})\.([0-9]{1,9})", self.version)
        return (int(found[1]), int(found[2])) if found else (0, 0)


def read_runtimes(output: SectionOutput) -> tuple[ContainerRuntime, ...]:
    """Read the section's lines; what runs hides what is merely installed with the same configuration.

    Who is not root does not learn which program a process is: then it is the installed one.
    """
    found: dict[tuple[str, str], ContainerRuntime] = {}
    for runtime in _runtimes(output):
        known = found.setdefault((runtime.kind, runtime.config), runtime)
        if not known.binary:
            found[runtime.kind, runtime.config] = replace(known, binary=runtime.binary, version=runtime.version)
    return tuple(found.values())


def _runtimes(output: SectionOutput) -> Iterator[ContainerRuntime]:
    """Read blocks from ``runtime run containerd`` to ``end``; one without its end is left out."""
    lines: list[str] = []
    for word, rest in output.lines:
        if word == "runtime":
            lines = []
        if word != "end":
            lines.append(f"{word} {rest}")
            continue
        block = SectionOutput(lines)
        match block.first("runtime").split():
            case [("run" | "have") as how, kind] if kind in {CONTAINERD, CRIO, DOCKER}:
                yield _runtime(block, kind, running=how == "run")
        lines = []


def _runtime(block: SectionOutput, kind: str, *, running: bool) -> ContainerRuntime:
    keys = [
        (name.strip(), re.sub(r"\s+#.*$", "", value).strip())
        for name, _, value in (line.partition("=") for line in block.all("key"))
    ]
    json = "\n".join(block.all("json"))
    has_config = block.has("readable")
    schema = number(next((value for name, value in keys if name == "version"), ""))
    default = re.search(r'"default-runtime"\s*:\s*"([^"]+)', json)
    # ``containerd github.com/... v1.7.27 05044ec``, ``Docker version 27.3.1, ...``
    version = re.search(r"(?:^|[\sv])(\d+\.\d+\.\d+[^\s,]*)", " ".join(block.all("version")))
    docker = re.search(r"native\.cgroupdriver=(\w+)", json)
    containerd = {"true": "systemd", "false": "cgroupfs"}.get(_last(keys, "SystemdCgroup", "systemd_cgroup"), "")
    return ContainerRuntime(
        kind=kind,
        running=running,
        binary=block.first("binary"),
        version=version[1] if version else "",
        config=block.first("config"),
        target=block.first("target"),
        has_config=has_config,
        schema=(1 if schema is None else schema) if has_config and kind == CONTAINERD else 0,
        dump_schema=number(block.first("dump")) or 0,
        has_handlers=block.has("handlers"),
        imports=tuple(re.findall(r"[\"']([^\"']+)[\"']", " ".join(block.all("imports")))),
        drop_ins=tuple(dict.fromkeys(block.all("drop-in"))),
        socket=block.first("socket"),
        unit=block.first("unit"),
        cgroup_driver=_last(keys, "cgroup_manager").strip('"') or (docker[1] if docker else "") or containerd,
        default_runtime=default[1] if default else _last(keys, "default_runtime_name", "default_runtime").strip('"'),
        disabled_plugins=tuple(re.findall(r'"([^"]+)"', _last(keys, "disabled_plugins"))),
    )


def _last(keys: Sequence[tuple[str, str]], *names: str) -> str:
    return next((value for name, value in reversed(keys) if name in names), "")


@dataclass(frozen=True, slots=True)
class TrustStore:
    """Where certificates are put, and what makes the system trust them."""

    anchors: str  # directory for certificates, one a file
    command: str  # what has to run after a change
    suffix: str  # of the files

    @property
    def program(self) -> str:
        """The first word of the command."""
        return self.command.split()[0]


DEBIAN = TrustStore("/usr/local/share/ca-certificates", "update-ca-certificates", ".crt")

RHEL = TrustStore("/etc/pki/ca-trust/source/anchors", "update-ca-trust extract", ".pem")

SUSE = TrustStore("/etc/pki/trust/anchors", "update-ca-certificates", ".pem")

STORES = (RHEL, SUSE, DEBIAN)

_BY_ANCHORS = {store.anchors: store for store in STORES}


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment(Section):
    """What a container runtime is started with."""

    # SHA-256 of each file of gpu-provision's that is there, by its path
    files: Mapping[str, str] = part(lambda output: dict(_by_path(output)), empty={})
    # the system's store of trusted certificates; None if there is none that is known
    trust: TrustStore | None = part(lambda output: _BY_ANCHORS.get(output.first("trust")), empty=None)


def _by_path(output: SectionOutput) -> Iterator[tuple[str, str]]:
    for rest in output.all("file"):
        digest, _, path = rest.partition(" ")
        yield path, digest


NAMES: Mapping[str, str] = {
    "memlock": "Max locked memory",
    "stack": "Max stack size",
    "core": "Max core file size",
    "nproc": "Max processes",
    "rtprio": "Max realtime priority",
}
"""Names of limits as ulimits and inventories have them -> as the kernel prints them."""


@dataclass(frozen=True, slots=True)
class ProcessLimits:
    """A process of a container runtime."""

    pid: int  # its process id
    name: str  # ``containerd``, ``crio`` or ``dockerd``
    unit: str  # unit of systemd that it belongs to, with ``.service``; empty for none
    limits: Mapping[str, tuple[str, str]]  # name -> (soft, hard), each a number or ``unlimited``


def _parse_limits(output: SectionOutput) -> tuple[ProcessLimits, ...]:
    found: dict[int, ProcessLimits] = {}
    for line in output.all("limit"):
        match line.split():
            case [word, name, unit, limit, soft, hard] if (pid := number(word)) and limit in NAMES:
                known = found.get(pid, ProcessLimits(pid, name, unit.strip("-"), {}))
                found[pid] = replace(known, limits={**known.limits, limit: (soft, hard)})
    return tuple(found.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeLimits(Section):
    """What is limited."""

    runtimes: tuple[ProcessLimits, ...] = part(_parse_limits, empty=())  # processes of container runtimes
    files: Mapping[str, tuple[str, ...]] = lines_by_path()  # our drop-ins of units
