"""Check the machine: its node name, operating system, disk, swap, clock, proxy and container runtime."""

from __future__ import annotations

import re
from collections.abc import Iterator
from posixpath import dirname

from gpu_provision.components.toolkit_runtimes import RUNTIMES
from gpu_provision.hosts.checks.findings import CheckedHost
from gpu_provision.hosts.facts.runtime import CONTAINERD
from gpu_provision.model.findings import Finding
from gpu_provision.model.inventory import OperatingSystem

GIB = 1 << 30

LITTLE, TOO_LITTLE = 15 * GIB, 5 * GIB
"""Below the first a warning, below the second an error: unpacked, the images of a release take about 8 GiB, and a
driver build 2 more (our own estimate from the images' sizes)."""

SKEWED, WRONG = 30, 300
"""Seconds of skew: below the first nothing is said; from the second on certificates and tokens fail."""


def node_name(subject: CheckedHost) -> Iterator[Finding]:
    """Yield a machine whose kubelet has registered under another name."""
    host = subject.host
    told = host.kubernetes.node_name
    name = told or host.system.hostname.lower()
    if not (host.kubernetes.running and name) or name == subject.expected.node:
        return
    evidence = f"kubelet --hostname-override={name}" if told else f"hostname: {host.system.hostname}"
    severity, probably = ("error", "") if told else ("warning", "probably ")
    yield subject.finding("node_name", evidence, severity=severity, probably=probably, name=name)


def other_system(subject: CheckedHost) -> Iterator[Finding]:
    """Yield another operating system than declared."""
    declared, seen = OperatingSystem.parse(subject.expected.os), subject.host.system.name
    if declared and seen and declared.tag != seen.tag:
        evidence = f"/etc/os-release: {subject.host.system.title or seen.tag}"
        yield subject.finding("other_system", evidence, seen=seen.tag, declared=declared.tag)


def disk(subject: CheckedHost) -> Iterator[Finding]:
    """Yield too little room where images are unpacked."""
    place = subject.host.storage.find_disk(subject.host.kubernetes.paths.images)
    if place and place.free < LITTLE:
        severity = "error" if place.free < TOO_LITTLE else "warning"
        free, size, needed = (f"{each / GIB:.1f} GiB" for each in (place.free, place.size, LITTLE))
        yield subject.finding("disk", severity=severity, place=place, free=free, size=size, needed=needed)


def swap(subject: CheckedHost) -> Iterator[Finding]:
    """Yield a host that swaps, where the kubelet does not put up with it. One that runs already looks no more."""
    swapped = subject.host.storage.swap
    if swapped and subject.host.kubernetes.refuses_swap:
        yield subject.finding("swap", swapped=", ".join(swapped))


def clock(subject: CheckedHost) -> Iterator[Finding]:
    """Yield a clock that is wrong by more than a round trip explains."""
    seen = subject.host.clock
    skew = abs(seen.skew)
    if seen.compared and skew >= SKEWED:
        severity, direction = "error" if skew >= WRONG else "warning", "ahead" if seen.skew > 0 else "behind"
        yield subject.finding("clock", severity=severity, skew=skew, direction=direction)


def proxy(subject: CheckedHost) -> Iterator[Finding]:
    """Yield a host behind a proxy whose driver container knows none."""
    expected, proxies = subject.expected, subject.host.proxies
    addresses = proxies.values_of("https_proxy", "http_proxy")
    if not (expected.builds_driver and addresses) or expected.driver_has_proxy:
        return
    files = ", ".join(path for path, settings in proxies.settings.items() if any(settings.values()))
    no_proxy = next(iter(proxies.values_of("no_proxy")), "")
    more = f", NO_PROXY: '{no_proxy}'" if no_proxy else ""
    yield subject.finding("proxy", address=addresses[0], files=files, more=more)


_CONTAINERD_2 = 2

_SCHEMA_OF_2 = 3

_CRI_PLUGINS = frozenset({"cri", "io.containerd.grpc.v1.cri"})


def runtime_old(subject: CheckedHost) -> Iterator[Finding]:
    """Yield a runtime that does not know CDI where GPUs come through it."""
    runtime = subject.host.cri
    if runtime and subject.expected.cdi:
        first = RUNTIMES[runtime.kind].cdi_since
        if (0, 0) < runtime.branch < first:
            yield subject.finding("runtime_old", runtime=runtime, first=first)


def runtime_paths(subject: CheckedHost) -> Iterator[Finding]:
    """Yield a runtime that is elsewhere than the toolkit looks.

    A distribution's own places are known; what the inventory says about all nodes at once counts more than that.
    """
    kubernetes, expected = subject.host.kubernetes, subject.expected
    runtime = subject.host.cri
    if not expected.toolkit or runtime is None or runtime.kind != CONTAINERD:
        return
    places = kubernetes.paths
    config, socket = expected.toolkit_config or places.toolkit_config, expected.toolkit_socket or places.socket
    # A runtime at home reads its configuration where its distribution keeps it; snaps count revisions.
    at_home = re.sub(r"/microk8s/\d+/", "/microk8s/current/", runtime.config) == places.containerd_config
    known = {runtime.config, *((places.toolkit_config, places.containerd_config) if at_home else ())}
    # /var/run is a link to /run
    same_socket = socket.removeprefix("/var") == kubernetes.socket.removeprefix("/var")
    if dirname(config) in map(dirname, known) and same_socket:
        return
    way = f"toolkit: {{env: {{CONTAINERD_CONFIG: {runtime.config}, CONTAINERD_SOCKET: {kubernetes.socket}}}}}"
    if at_home:
        way = "remove CONTAINERD_CONFIG and CONTAINERD_SOCKET from toolkit.env: every node's own are used then"
    evidence = f"{kubernetes.distribution or 'kubelet'}: {runtime.config}, {kubernetes.socket}"
    yield subject.finding("runtime_paths", evidence, config=config, socket=socket, way=way)


def runtime_schema(subject: CheckedHost) -> Iterator[Finding]:
    """Yield containerd 2 that still reads a configuration of containerd 1."""
    runtime = subject.host.cri
    if runtime is None or runtime.kind != CONTAINERD or runtime.branch[0] < _CONTAINERD_2 or not runtime.has_config:
        return
    if runtime.schema < _SCHEMA_OF_2 and runtime.dump_schema <= _SCHEMA_OF_2:  # `config_source` says the others
        yield subject.finding("runtime_schema", runtime=runtime)


def config_source(subject: CheckedHost) -> Iterator[Finding]:
    """Yield containerd whose ``config dump`` has a newer schema than its file: a drop-in made from it is refused."""
    runtime, source = subject.host.cri, subject.expected.toolkit_source
    if runtime is None or runtime.kind != CONTAINERD or not (subject.expected.toolkit and runtime.has_config):
        return
    if runtime.dump_schema <= max(runtime.schema, _SCHEMA_OF_2) or source.startswith("file"):
        return
    severity, why = "warning", "the toolkit reads the file by itself"
    if source:
        severity, why = "error", f"toolkit.env has RUNTIME_CONFIG_SOURCE: {source}, by which the drop-in gets the newer"
    elif not runtime.has_handlers:
        severity, why = "error", "the file has no table of a runtime, from which the toolkit makes its own"
    yield subject.finding("config_source", severity=severity, runtime=runtime, why=why)


def runtime_down(subject: CheckedHost) -> Iterator[Finding]:
    """Yield a node of Kubernetes whose containerd is there and does not run."""
    runtimes = subject.host.runtimes
    dead = next((each for each in runtimes if each.kind == CONTAINERD and each.has_config), None)
    if dead and subject.host.kubernetes.running and not any(each.running for each in runtimes):
        yield subject.finding("runtime_down", runtime=dead, drop_ins=", ".join(dead.drop_ins) or "none")


def cri_disabled(subject: CheckedHost) -> Iterator[Finding]:
    """Yield a containerd whose CRI, which the kubelet speaks to, is disabled."""
    runtime = subject.host.cri
    if runtime and runtime.kind == CONTAINERD and _CRI_PLUGINS & set(runtime.disabled_plugins):
        yield subject.finding("cri_disabled", runtime=runtime, disabled=list(runtime.disabled_plugins))


def cgroup_drivers(subject: CheckedHost) -> Iterator[Finding]:
    """Yield a kubelet and a runtime that put containers into different trees."""
    runtime, kubelet = subject.host.cri, subject.host.kubernetes.cgroup_driver
    if runtime and runtime.cgroup_driver and kubelet and runtime.cgroup_driver != kubelet:
        containerd = f"SystemdCgroup = {str(kubelet == 'systemd').lower()}"
        setting = containerd if runtime.kind == CONTAINERD else f'cgroup_manager = "{kubelet}"'
        yield subject.finding("cgroup_drivers", kubelet=kubelet, runtime=runtime, setting=setting)
