"""Container runtimes: which are there, which run, and what their configuration says."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gpu_provision.hosts.facts.parser import SectionOutput, number

CONTAINERD = "containerd"
CRIO = "cri-o"
DOCKER = "docker"


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerRuntime:
    """One container runtime of a host; there may be several of a kind.

    Attributes:
        kind: ``containerd``, ``cri-o`` or ``docker``.
        running: Whether a process of it runs.
        binary: Path of its program; empty if unknown.
        version: Such as ``1.7.27``; empty if it would not say.
        config: Path of its configuration.
        target: The file that this path leads to; empty if it is that file, or leads nowhere.
        has_config: Whether that file is there and readable.
        schema: ``version`` of containerd's configuration file; 1 where it names none, 0 without a file.
        imports: Patterns of files that the configuration takes in.
        drop_ins: Files that these patterns find, or that lie in the runtime's drop-in directory.
        socket: Path of its socket; empty if there is none.
        unit: Unit of systemd that it runs in, such as ``containerd.service``; empty if it does not run in one.
        cgroup_driver: ``systemd`` or ``cgroupfs``, as far as the configuration says; else empty.
        default_runtime: Name of the default runtime handler; empty if the configuration names none.
        disabled_plugins: Plugins that containerd's configuration disables.
    """

    kind: str
    running: bool = False
    binary: str = ""
    version: str = ""
    config: str = ""
    target: str = ""
    has_config: bool = False
    schema: int = 0
    imports: tuple[str, ...] = ()
    drop_ins: tuple[str, ...] = ()
    socket: str = ""
    unit: str = ""
    cgroup_driver: str = ""
    default_runtime: str = ""
    disabled_plugins: tuple[str, ...] = ()

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
    keys = [_key(line) for line in block.all("key")]
    has_config = block.has("readable")
    return ContainerRuntime(
        kind=kind,
        running=running,
        binary=block.first("binary"),
        version=_version(block.all("version")),
        config=block.first("config"),
        target=block.first("target"),
        has_config=has_config,
        schema=_schema(keys) if has_config and kind == CONTAINERD else 0,
        imports=_listed(block.all("imports")),
        drop_ins=tuple(dict.fromkeys(block.all("drop-in"))),
        socket=block.first("socket"),
        unit=block.first("unit"),
        cgroup_driver=_cgroup_driver(keys, block.all("json")),
        default_runtime=_default_runtime(keys, block.all("json")),
        disabled_plugins=tuple(re.findall(r'"([^"]+)"', _last(keys, "disabled_plugins"))),
    )


def _key(line: str) -> tuple[str, str]:
    name, _, value = line.partition("=")
    return name.strip(), re.sub(r"\s+#.*$", "", value).strip()


def _last(keys: Sequence[tuple[str, str]], *names: str) -> str:
    return next((value for name, value in reversed(keys) if name in names), "")


def _version(lines: list[str]) -> str:
    """Read what the programs print: ``containerd github.com/... v1.7.27 05044ec``, ``Docker version 27.3.1, ...``."""
    found = re.search(r"(?:^|[\sv])(\d+\.\d+\.\d+[^\s,]*)", " ".join(lines))
    return found[1] if found else ""


def _schema(keys: Sequence[tuple[str, str]]) -> int:
    value = number(next((value for name, value in keys if name == "version"), ""))
    return 1 if value is None else value


def _listed(lines: list[str]) -> tuple[str, ...]:
    return tuple(re.findall(r"[\"']([^\"']+)[\"']", " ".join(lines)))


def _cgroup_driver(keys: Sequence[tuple[str, str]], json: list[str]) -> str:
    crio = _last(keys, "cgroup_manager").strip('"')
    docker = next((match[1] for line in json if (match := re.search(r"native\.cgroupdriver=(\w+)", line))), "")
    containerd = {"true": "systemd", "false": "cgroupfs"}.get(_last(keys, "SystemdCgroup", "systemd_cgroup"), "")
    return crio or docker or containerd


def _default_runtime(keys: Sequence[tuple[str, str]], json: list[str]) -> str:
    docker = next((match[1] for line in json if (match := re.search(r'"default-runtime"\s*:\s*"([^"]+)', line))), "")
    return docker or _last(keys, "default_runtime_name", "default_runtime").strip('"')


@dataclass(frozen=True, slots=True)
class TrustStore:
    """Where certificates are put, and what makes the system trust them.

    Attributes:
        anchors: Directory for certificates, one a file.
        command: What has to run after a change.
        suffix: Of the files.
    """

    anchors: str
    command: str
    suffix: str

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
class Environment:
    """What a container runtime is started with.

    Attributes:
        files: SHA-256 of each file of gpu-provision's that is there, by its path.
        trust: The system's store of trusted certificates; None if there is none that is known.
    """

    files: Mapping[str, str] = field(default_factory=dict)
    trust: TrustStore | None = None


def read_environment(output: SectionOutput) -> Environment:
    """Read the section's lines."""
    files = (rest.partition(" ") for rest in output.all("file"))
    return Environment(
        files={path: digest for digest, _, path in files},
        trust=_BY_ANCHORS.get(output.first("trust")),
    )


NAMES: Mapping[str, str] = {
    "memlock": "Max locked memory",
    "stack": "Max stack size",
    "core": "Max core file size",
    "nproc": "Max processes",
    "rtprio": "Max realtime priority",
}
"""Names of limits as ulimits and inventories have them -> as the kernel prints them."""

UNLIMITED = "unlimited"


@dataclass(frozen=True, slots=True)
class ProcessLimits:
    """A process of a container runtime.

    Attributes:
        pid: Its process id.
        name: ``containerd``, ``crio`` or ``dockerd``.
        unit: Unit of systemd that it belongs to, with ``.service``; empty for none.
        limits: Name -> (soft, hard), each a number or ``unlimited``.
    """

    pid: int
    name: str
    unit: str
    limits: Mapping[str, tuple[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeLimits:
    """What is limited.

    Attributes:
        runtimes: Processes of container runtimes.
        files: Our drop-ins of units: path -> lines.
    """

    runtimes: tuple[ProcessLimits, ...] = ()
    files: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def read_limits(output: SectionOutput) -> RuntimeLimits:
    """Read the section's lines."""
    return RuntimeLimits(runtimes=tuple(_limited_runtimes(output.all("limit"))), files=output.files())


def _limited_runtimes(lines: list[str]) -> list[ProcessLimits]:
    found: dict[int, ProcessLimits] = {}
    for line in lines:
        match line.split():
            case [word, name, unit, limit, soft, hard] if (pid := number(word)) and limit in NAMES:
                known = found.get(pid, ProcessLimits(pid, name, unit.strip("-"), {}))
                found[pid] = ProcessLimits(known.pid, known.name, known.unit, {**known.limits, limit: (soft, hard)})
    return list(found.values())
