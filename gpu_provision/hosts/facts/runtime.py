"""Container runtimes: which are there, which run, and what their configuration says."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gpu_provision.hosts.facts.section import Said, Section, number
from gpu_provision.model.hosts import DISTRIBUTIONS

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
        disabled_plugins: Plugins that containerd is told to leave off.
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


_INSTALLED = " ".join(
    f"containerd,{places.binary},{places.containerd_config},{places.socket}"
    for places in DISTRIBUTIONS.values()
    if places.binary
)
_KEYS = (
    r"version|imports|disabled_plugins|SystemdCgroup|systemd_cgroup|default_runtime_name|default_runtime|cgroup_manager"
)

# Of configurations only the keys that matter are read: they may hold credentials of registries. Inside blocks of
# docker's, containerd's version 1 and CRI-O's files the same few words are looked for.
_RUNTIMES_SCRIPT = rf"""
describe() {{
  echo "runtime $1 $2"
  [ -n "$3" ] && [ -x "$3" ] && {{
    echo "binary $3"
    $bounded "$3" --version | sed -E 's/^/version /' | head -n 2
  }}
  [ -n "$4" ] && echo "config $4"
  target=$(readlink -f "$4") && [ "$target" != "$4" ] && echo "target $target"
  [ "$1" = run ] && echo "unit $(sed -nE 's|.*/([^/]+\.service)(/.*)?$|\1|p' "$process/cgroup" | head -n 1)"
  [ -r "$4" ] && {{
    echo "readable $4"
    sed -nE '/^[[:space:]]*imports[[:space:]]*=/,/\]/s/^/imports /p' "$4"
    grep -E '^[[:space:]]*({_KEYS})[[:space:]]*=' "$4" | sed 's/^/key /'
    grep -oE '"(default-runtime|native.cgroupdriver)[^,}}]*' "$4" | sed 's/^/json /'
    for pattern in $(sed -nE '/^[[:space:]]*imports[[:space:]]*=/,/\]/p' "$4" | grep -oE '"[^"]+"' | tr -d '"'); do
      case $pattern in /*) ;; *) pattern=${{4%/*}}/$pattern ;; esac
      for file in $pattern; do [ -e "$file" ] && echo "drop-in $file"; done
    done
  }}
  [ -n "$6" ] && for file in "$6"/*.conf "$6"/*.toml; do
    [ -r "$file" ] && {{
      echo "drop-in $file"
      grep -E '^[[:space:]]*({_KEYS})[[:space:]]*=' "$file" | sed 's/^/key /'
    }}
  done
  [ -n "$5" ] && [ -e "$5" ] && echo "socket $5"
  echo "end "
}}
value() {{  # value SHORT LONG: of an option on the command line that is on standard input
  tr '\0' '\n' | sed -nE "/^($1|$2)\$/{{n; p; }}; s/^$2=//p" | head -n 1
}}
for process in /proc/[0-9]*; do
  read -r name <"$process/comm" || continue
  case $name in containerd | crio | dockerd) ;; *) continue ;; esac
  by_root "$process" || continue
  # The program is run: the path of one in a container would be another file here.
  program=
  [ "$(readlink "$process/ns/mnt")" = "$(readlink /proc/self/ns/mnt)" ] && program=$(readlink "$process/exe")
  program=${{program% (deleted)}}
  config=$(value -c --config <"$process/cmdline")
  socket=$(value -a --address <"$process/cmdline")
  # k3s is one program under many names: asked for its version, it would tell that of k3s.
  [ "$name" = containerd ] && [ -x "${{program%/*}}/containerd" ] && program=${{program%/*}}/containerd
  case $name in
    containerd) describe run containerd "$program" "${{config:-/etc/containerd/config.toml}}" \
      "${{socket:-/run/containerd/containerd.sock}}" "" ;;
    crio) describe run cri-o "$program" "${{config:-/etc/crio/crio.conf}}" /run/crio/crio.sock /etc/crio/crio.conf.d ;;
    dockerd) config=$(value --config-file --config-file <"$process/cmdline")
      describe run docker "$program" "${{config:-/etc/docker/daemon.json}}" /run/docker.sock "" ;;
  esac
done
for entry in {_INSTALLED}; do
  old=$IFS; IFS=,; set -- $entry; IFS=$old
  [ -e "$2" ] || [ -e "$3" ] && describe have "$1" "$2" "$3" "$4" ""
done
program=$(command -v containerd) && describe have containerd "$program" /etc/containerd/config.toml \
  /run/containerd/containerd.sock ""
program=$(command -v crio) && describe have cri-o "$program" /etc/crio/crio.conf \
  /run/crio/crio.sock /etc/crio/crio.conf.d
program=$(command -v dockerd) && describe have docker "$program" /etc/docker/daemon.json /run/docker.sock ""
true
"""


def read_runtimes(said: Said) -> tuple[ContainerRuntime, ...]:
    """Read the section; what runs hides what is merely installed with the same configuration.

    Who is not root does not learn which program a process is: then it is the installed one.
    """
    found: dict[tuple[str, str], ContainerRuntime] = {}
    for runtime in _runtimes(said):
        known = found.setdefault((runtime.kind, runtime.config), runtime)
        if not known.binary:
            found[runtime.kind, runtime.config] = replace(known, binary=runtime.binary, version=runtime.version)
    return tuple(found.values())


def _runtimes(said: Said) -> Iterator[ContainerRuntime]:
    """Read blocks from ``runtime run containerd`` to ``end``; one without its end is left out."""
    lines: list[str] = []
    for word, rest in said.lines:
        if word == "runtime":
            lines = []
        if word != "end":
            lines.append(f"{word} {rest}")
            continue
        block = Said(lines)
        match block.first("runtime").split():
            case [("run" | "have") as how, kind] if kind in {CONTAINERD, CRIO, DOCKER}:
                yield _runtime(block, kind, running=how == "run")
        lines = []


def _runtime(block: Said, kind: str, *, running: bool) -> ContainerRuntime:
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


RUNTIMES_SECTION = Section("runtimes", _RUNTIMES_SCRIPT, read_runtimes)

PROXY_FILE = "/etc/gpu-provision/runtime-proxy.env"
"""Holds the proxies, with credentials if they have any: for root alone."""

ENVIRONMENT_DROP_IN = "90-gpu-provision-proxy.conf"
"""Name of the file that has a unit of systemd read the other one."""

PREFIX = "gpu-provision-"
"""Of the names of certificates that are ours."""


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
        files: SHA-256 of each such file of ours that is there, by its path.
        trust: The system's store of trusted certificates; None if there is none that is known.
    """

    files: Mapping[str, str] = field(default_factory=dict)
    trust: TrustStore | None = None


# Of our files only a digest leaves the host: one may hold credentials.
_ENVIRONMENT_SCRIPT = rf"""
for file in {PROXY_FILE} /etc/systemd/system/*.service.d/{ENVIRONMENT_DROP_IN} \
  {" ".join(f"{anchors}/{PREFIX}*" for anchors in _BY_ANCHORS)}; do
  [ -f "$file" ] && echo "file $(sha256sum <"$file" | cut -c 1-64) $file"
done
if command -v update-ca-trust >/dev/null; then echo "trust {RHEL.anchors}"
elif command -v update-ca-certificates >/dev/null; then
  if [ -d {SUSE.anchors} ]; then echo "trust {SUSE.anchors}"; else echo "trust {DEBIAN.anchors}"; fi
fi
"""


def read_environment(said: Said) -> Environment:
    """Read the section."""
    files = (rest.partition(" ") for rest in said.all("file"))
    return Environment(
        files={path: digest for digest, _, path in files},
        trust=_BY_ANCHORS.get(said.first("trust")),
    )


ENVIRONMENT_SECTION = Section("environment", _ENVIRONMENT_SCRIPT, read_environment)

LIMITS_DROP_IN = "90-gpu-provision-limits.conf"
DROP_INS = "/etc/systemd/system"

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
class Limited:
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
class Limits:
    """What is limited.

    Attributes:
        runtimes: Processes of container runtimes.
        files: Our drop-ins of units: path -> lines.
    """

    runtimes: tuple[Limited, ...] = ()
    files: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


_PRINTED = "; ".join(rf"s/^{printed} +([^ ]+) +([^ ]+).*/{name} \1 \2/p" for name, printed in NAMES.items())

_LIMITS_SCRIPT = rf"""
for process in /proc/[0-9]*; do
  read -r name <"$process/comm" || continue
  case $name in containerd | crio | dockerd) by_root "$process" || continue ;; *) continue ;; esac
  unit=$(sed -nE 's/^.*\/([^/]*\.service)(\/.*)?$/\1/p' "$process/cgroup" | head -n 1)
  sed -nE '{_PRINTED}' "$process/limits" | sed "s/^/limit ${{process##*/}} $name ${{unit:--}} /"
done
for file in {DROP_INS}/*.service.d/{LIMITS_DROP_IN}; do
  [ -f "$file" ] && {{ echo "file $file"; sed "s#^#line $file #" "$file"; }}
done
true
"""


def read_limits(said: Said) -> Limits:
    """Read the section."""
    files: dict[str, tuple[str, ...]] = dict.fromkeys(said.all("file"), ())
    for rest in said.all("line"):
        path, _, line = rest.partition(" ")
        files[path] = (*files.get(path, ()), line)
    return Limits(runtimes=tuple(_limited_runtimes(said.all("limit"))), files=files)


def _limited_runtimes(lines: list[str]) -> list[Limited]:
    found: dict[int, Limited] = {}
    for line in lines:
        match line.split():
            case [word, name, unit, limit, soft, hard] if (pid := number(word)) and limit in NAMES:
                known = found.get(pid, Limited(pid, name, unit.strip("-"), {}))
                found[pid] = Limited(known.pid, known.name, known.unit, {**known.limits, limit: (soft, hard)})
    return list(found.values())


LIMITS_SECTION = Section("limits", _LIMITS_SCRIPT, read_limits)
