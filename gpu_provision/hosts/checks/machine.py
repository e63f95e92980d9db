"""The machine itself: its name, its system, its disk, its clock, its way to the network."""

from __future__ import annotations

import re
from collections.abc import Iterator
from posixpath import dirname

from gpu_provision.components.toolkit_runtimes import RUNTIMES
from gpu_provision.hosts.checks.findings import CheckedHost
from gpu_provision.hosts.facts.runtime import CONTAINERD
from gpu_provision.model import codes
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
    host, expected = subject.host, subject.expected
    name = host.kubernetes.node_name or host.system.hostname.lower()
    if not (host.kubernetes.running and name) or name == expected.node:
        return
    told = bool(host.kubernetes.node_name)
    tell = subject.error if told else subject.warning
    yield tell(
        codes.NODE_NAME,
        f"the machine at the address of {expected.node} is {'' if told else 'probably '}node {name}",
        evidence=f"kubelet --hostname-override={name}" if told else f"hostname: {host.system.hostname}",
        consequence="one machine is prepared, and another one gets the pods",
        fix=f"correct the address of {expected.node}, or write its name as kubectl get nodes has it: {name}",
    )


def other_system(subject: CheckedHost) -> Iterator[Finding]:
    """Yield another operating system than declared."""
    declared, seen = OperatingSystem.parse(subject.expected.os), subject.host.system.name
    if declared and seen and declared.tag != seen.tag:
        yield subject.warning(
            codes.OTHER_SYSTEM,
            f"the host runs {seen.tag}, and pool {subject.expected.pool} declares {declared.tag}",
            evidence=f"/etc/os-release: {subject.host.system.title or seen.tag}",
            consequence=f"until the node itself reports its system, the driver image for {declared.tag} is chosen",
            fix=f"correct pools.{subject.expected.pool}.os, or leave it out: every node then says so itself",
        )


def disk(subject: CheckedHost) -> Iterator[Finding]:
    """Yield too little room where images are unpacked."""
    host = subject.host
    place = host.storage.place(host.kubernetes.places.images)
    if place is None or place.free >= LITTLE:
        return
    tell = subject.error if place.free < TOO_LITTLE else subject.warning
    yield tell(
        codes.DISK_SMALL,
        f"{_gib(place.free)} are free where images go, and the GPU software needs about {_gib(LITTLE)}",
        evidence=f"df {place.path}: {_gib(place.free)} of {_gib(place.size)} free on {place.mount}",
        consequence="the kubelet evicts pods and deletes images, or a pull fails with: no space left on device",
        fix=f"make room on {place.mount}: crictl rmi --prune, journalctl --vacuum-size=500M; or a larger disk",
    )


def swap(subject: CheckedHost) -> Iterator[Finding]:
    """Yield a host that swaps, where the kubelet does not put up with it. One that runs already looks no more."""
    swapped, kubernetes = subject.host.storage.swap, subject.host.kubernetes
    if swapped and kubernetes.refuses_swap:
        yield subject.warning(
            codes.SWAP_ON,
            "the host swaps, and its kubelet is not told to put up with that",
            evidence=f"/proc/swaps: {', '.join(swapped)}; failSwapOn is not false",
            consequence='the kubelet ends at its next start: "running with swap on is not supported"',
            fix="swapoff -a, and take it out of /etc/fstab; or failSwapOn: false in the kubelet's configuration",
        )


def clock(subject: CheckedHost) -> Iterator[Finding]:
    """Yield a clock that is wrong by more than a round trip explains."""
    seen = subject.host.clock
    if not seen.compared or abs(seen.skew) < SKEWED:
        return
    tell = subject.error if abs(seen.skew) >= WRONG else subject.warning
    direction = "ahead" if seen.skew > 0 else "behind"
    yield tell(
        codes.CLOCK_SKEW,
        f"the host's clock is {abs(seen.skew):.0f} seconds {direction}",
        evidence=f"date: {subject.host.system.time}; asked and answered within {seen.round_trip:.1f} seconds",
        consequence="certificates are not valid yet or no longer, leases and events are out of order",
        fix="timedatectl set-ntp true (or chronyc makestep), and see that the time servers can be reached",
    )


def proxy(subject: CheckedHost) -> Iterator[Finding]:
    """Yield a host behind a proxy whose driver container knows none."""
    expected, proxies = subject.expected, subject.host.proxies
    addresses = proxies.of("https_proxy", "http_proxy")
    if not (expected.driver_container and addresses) or expected.driver_has_proxy:
        return
    files = [path for path, settings in proxies.settings.items() if any(settings.values())]
    no_proxy = next(iter(proxies.of("no_proxy")), "")
    more = f", NO_PROXY: '{no_proxy}'" if no_proxy else ""
    yield subject.warning(
        codes.PROXY_UNKNOWN,
        "the host reaches the network through a proxy that the driver container does not know",
        evidence=f"{addresses[0]} in {', '.join(files)}",
        consequence="the container waits for kernel headers from archives that it cannot reach",
        fix=f"{subject.driver_key}.env: {{HTTP_PROXY: '{addresses[0]}', HTTPS_PROXY: '{addresses[0]}'{more}}}",
    )


def _gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB"


_CONTAINERD_2 = 2

_SCHEMA_OF_2 = 3

_CRI_PLUGINS = frozenset({"cri", "io.containerd.grpc.v1.cri"})


def runtime_old(subject: CheckedHost) -> Iterator[Finding]:
    """Yield a runtime that does not know CDI where GPUs come through it."""
    runtime = subject.host.cri
    if runtime is None or not subject.expected.cdi:
        return
    first = RUNTIMES[runtime.kind].cdi_since
    if (0, 0) < runtime.branch < first:
        yield subject.error(
            codes.RUNTIME_OLD,
            f"{runtime.kind} {runtime.version} does not know CDI, through which containers get their GPUs",
            evidence=f"{runtime.binary} --version: {runtime.version}",
            consequence="pods that ask for a GPU are not created",
            fix=f"install {runtime.kind} {first[0]}.{first[1]} or newer, or set cdi: {{enabled: false}}",
        )


def runtime_paths(subject: CheckedHost) -> Iterator[Finding]:
    """Yield a runtime that is elsewhere than the toolkit looks.

    A distribution's own places are known; what the inventory says about all nodes at once counts more than that.
    """
    kubernetes, expected = subject.host.kubernetes, subject.expected
    runtime = subject.host.cri
    if not expected.toolkit or runtime is None or runtime.kind != CONTAINERD:
        return
    places = kubernetes.places
    config, socket = expected.toolkit_config or places.toolkit_config, expected.toolkit_socket or places.socket
    # A runtime at home reads its configuration where its distribution keeps it; snaps count revisions.
    at_home = re.sub(r"/microk8s/\d+/", "/microk8s/current/", runtime.config) == places.containerd_config
    known = {runtime.config, *((places.toolkit_config, places.containerd_config) if at_home else ())}
    if dirname(config) in map(dirname, known) and _plain(socket) == _plain(kubernetes.socket):
        return
    yield subject.error(
        codes.RUNTIME_PATHS,
        f"containerd is not where the toolkit looks: {config}, {socket}",
        evidence=f"{kubernetes.distribution or 'kubelet'}: {runtime.config}, {kubernetes.socket}",
        consequence="the toolkit changes a file that containerd does not read, or waits for a socket that is not there",
        fix="remove CONTAINERD_CONFIG and CONTAINERD_SOCKET from toolkit.env: every node's own are used then"
        if at_home
        else f"toolkit: {{env: {{CONTAINERD_CONFIG: {runtime.config}, CONTAINERD_SOCKET: {kubernetes.socket}}}}}",
    )


def _plain(socket: str) -> str:
    """Return a socket's path as it is without the link from /var/run to /run."""
    return socket.removeprefix("/var")


def runtime_schema(subject: CheckedHost) -> Iterator[Finding]:
    """Yield containerd 2 that still reads a configuration of containerd 1."""
    runtime = subject.host.cri
    if runtime is None or runtime.kind != CONTAINERD or runtime.branch[0] < _CONTAINERD_2 or not runtime.has_config:
        return
    if runtime.schema < _SCHEMA_OF_2:
        yield subject.warning(
            codes.RUNTIME_SCHEMA,
            f"containerd {runtime.version} runs with a configuration of schema {runtime.schema}",
            evidence=f"{runtime.config}: version = {runtime.schema}",
            consequence="a toolkit that writes its drop-in for the newer schema keeps containerd from starting",
            fix=f"containerd config migrate > {runtime.config}.new, look at it, put it in place, restart containerd",
        )


def cri_disabled(subject: CheckedHost) -> Iterator[Finding]:
    """Yield a containerd whose CRI, which the kubelet speaks to, is disabled."""
    runtime = subject.host.cri
    if runtime and runtime.kind == CONTAINERD and _CRI_PLUGINS & set(runtime.disabled_plugins):
        yield subject.error(
            codes.RUNTIME_NO_CRI,
            "containerd's CRI, which the kubelet speaks to, is disabled",
            evidence=f"{runtime.config}: disabled_plugins = {list(runtime.disabled_plugins)}",
            consequence="the kubelet creates no pods once containerd restarts, which the toolkit makes it do",
            fix=f"remove it from disabled_plugins in {runtime.config}",
        )


def cgroup_drivers(subject: CheckedHost) -> Iterator[Finding]:
    """Yield a kubelet and a runtime that put containers into different trees."""
    runtime, kubelet = subject.host.cri, subject.host.kubernetes.cgroup_driver
    if runtime and runtime.cgroup_driver and kubelet and runtime.cgroup_driver != kubelet:
        yield subject.warning(
            codes.CGROUP_DRIVERS,
            f"the kubelet's cgroup driver is {kubelet}, that of {runtime.kind} is {runtime.cgroup_driver}",
            evidence=f"kubelet: cgroupDriver {kubelet}; {runtime.config}: {runtime.cgroup_driver}",
            consequence="pods restart for no reason, and lose their GPU on systemctl daemon-reload",
            fix=f"set SystemdCgroup = {str(kubelet == 'systemd').lower()} in {runtime.config}, and restart it"
            if runtime.kind == CONTAINERD
            else f'set cgroup_manager = "{kubelet}" in {runtime.config}, and restart it',
        )
