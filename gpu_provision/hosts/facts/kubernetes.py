"""Which distribution of Kubernetes runs here, and how its kubelet is set up."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gpu_provision.hosts.facts.section import Said, Section
from gpu_provision.model.hosts import DISTRIBUTIONS, KUBEADM, OTHER, DistributionPaths, paths_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Kubernetes:
    """The node's side of Kubernetes.

    Attributes:
        distribution: ``kubeadm``, ``k3s``, ``rke2``, ``microk8s``, ``k0s``; ``other`` for a kubelet of unknown
            origin; empty for no Kubernetes.
        running: Whether its kubelet, or the process that holds it, runs.
        kubelet_root: Root directory of the kubelet.
        runtime_endpoint: Path of the socket that the kubelet is told to use; empty if it is told nothing.
        cgroup_driver: ``systemd`` or ``cgroupfs``, as the kubelet is told; empty if it is told nothing.
        node_name: Name that the kubelet is told to register under; empty for the host's own.
        refuses_swap: Whether the kubelet does not start on a host that swaps; None if unknown.
    """

    distribution: str = ""
    running: bool = False
    kubelet_root: str = ""
    runtime_endpoint: str = ""
    cgroup_driver: str = ""
    node_name: str = ""
    refuses_swap: bool | None = None

    @property
    def places(self) -> DistributionPaths:
        """Where this distribution keeps its files."""
        return paths_of(self.distribution)

    @property
    def socket(self) -> str:
        """The runtime's socket that the kubelet uses; empty without Kubernetes."""
        return self.runtime_endpoint or (self.places.socket if self.distribution else "")


_MARKS = " ".join(f"{name}:{mark}" for name, places in DISTRIBUTIONS.items() for mark in places.marks)
_FLAGS = "config|root-dir|container-runtime-endpoint|cgroup-driver|hostname-override|node-name|data-dir"
_SWITCH = "fail-swap-on"
_KEYS = "cgroupDriver|containerRuntimeEndpoint|failSwapOn"

# Of command lines only the flags that matter are read: others may hold tokens.
SCRIPT = rf"""
for mark in {_MARKS}; do [ -e "${{mark#*:}}" ] && echo "mark ${{mark%%:*}} ${{mark#*:}}"; done
flags() {{ tr '\0 ' '\n\n' | sed -nE '/^--({_FLAGS})$/{{N; s/\n/=/; p; }}; /^--({_FLAGS}|{_SWITCH})=/p'; }}
for process in /proc/[0-9]*; do
  read -r name <"$process/comm" || continue
  case $name in
    kubelet | kubelite | k0s | k3s | k3s-server | k3s-agent | rke2 | rke2-server | rke2-agent)
      by_root "$process" || continue
      echo "process $name"
      flags <"$process/cmdline" | sed "s/^/flag $name /" ;;
  esac
done
for file in /var/lib/kubelet/kubeadm-flags.env /etc/default/kubelet /etc/sysconfig/kubelet \
  /var/snap/microk8s/current/args/kubelet; do
  [ -r "$file" ] && tr ' "' '\n\n' <"$file" | flags | sed 's/^/flag file /'
done
root=$(for process in /proc/[0-9]*; do
  read -r name <"$process/comm" && [ "$name" = kubelet ] && by_root "$process" &&
    flags <"$process/cmdline" | sed -n 's/^--config=//p'
done | head -n 1)
for file in "$root" /var/lib/kubelet/config.yaml; do
  [ -r "$file" ] && {{ echo "configured $file"; grep -E '^({_KEYS}):' "$file" | sed 's/^/setting /'; break; }}
done
[ -e /var/lib/kubelet/kubeconfig ] || [ -e /etc/systemd/system/kubelet.service ] || command -v kubelet >/dev/null &&
  echo kubelet
true
"""

_OWNERS = {
    **dict.fromkeys(("k3s", "k3s-server", "k3s-agent"), "k3s"),
    **dict.fromkeys(("rke2", "rke2-server", "rke2-agent"), "rke2"),
    "kubelite": "microk8s",
    "k0s": "k0s",
}
"""Process -> the distribution that it belongs to."""


def read(said: Said) -> Kubernetes:
    """Read the section: a running process tells more than files that an earlier installation left."""
    processes = said.all("process")
    distribution = _distribution(said, processes)
    flags = _flags(said)
    settings = dict(re.findall(r"^(\w+):\s*\"?([^\"\s]+)", "\n".join(said.all("setting")), re.MULTILINE))
    root = flags.get("root-dir") or (paths_of(distribution).kubelet_root if distribution else "")
    endpoint = flags.get("container-runtime-endpoint") or settings.get("containerRuntimeEndpoint", "")
    return Kubernetes(
        distribution=distribution,
        running=bool(processes),
        kubelet_root=root,
        runtime_endpoint=endpoint.removeprefix("unix://"),
        cgroup_driver=flags.get("cgroup-driver") or settings.get("cgroupDriver", ""),
        node_name=flags.get("hostname-override") or flags.get("node-name", ""),
        refuses_swap=_refuses_swap(distribution, said, flags.get(_SWITCH) or settings.get("failSwapOn", "")),
    )


def _refuses_swap(distribution: str, said: Said, told: str) -> bool | None:
    """Read what the kubelet is told of swap; it refuses unless told otherwise, as all but kubeadm do."""
    if told:
        return told != "false"
    return True if distribution in {KUBEADM, OTHER} and said.has("configured") else None


def _distribution(said: Said, processes: list[str]) -> str:
    by_process = next((_OWNERS[name] for name in processes if name in _OWNERS), "")
    if by_process:
        return by_process
    marks = [line.partition(" ")[0] for line in said.all("mark")]
    if KUBEADM in marks and "kubelet" in processes:
        return KUBEADM
    unknown = OTHER if processes or said.has("kubelet") else ""
    return next((name for name in DISTRIBUTIONS if name in marks), unknown)


def _flags(said: Said) -> dict[str, str]:
    """Return the flags that are set, without dashes; a running process counts more than a file."""
    lines = (_without_variables(line) for line in said.all("flag"))
    pairs = (line.partition(" ")[2].removeprefix("--").partition("=") for line in reversed(list(lines)))
    return {name: value.strip("\"'") for name, _, value in pairs if value}


_SNAP = {"SNAP_COMMON": "/var/snap/microk8s/common", "SNAP_DATA": "/var/snap/microk8s/current"}


def _without_variables(line: str) -> str:
    """Write out the variables that MicroK8s' files of arguments hold."""
    return re.sub(r"\$\{?(SNAP_COMMON|SNAP_DATA)\}?", lambda found: _SNAP[found[1]], line)


KUBERNETES_SECTION = Section("kubernetes", SCRIPT, read)
