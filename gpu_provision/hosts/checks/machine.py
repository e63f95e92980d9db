"""The machine itself: its name, its system, its disk, its clock, its way to the network."""

from __future__ import annotations

from collections.abc import Iterator

from gpu_provision.hosts.checks import codes
from gpu_provision.hosts.checks.subject import CheckedHost
from gpu_provision.inventory import hardware
from gpu_provision.model.findings import Finding

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
    declared, seen = hardware.parse(subject.expected.os), subject.host.system.name
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
    if not subject.expected.gpu_count or place is None or place.free >= LITTLE:
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
    if subject.expected.gpu_count and swapped and kubernetes.refuses_swap:
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
    """Yield a host behind a proxy whose driver container is told of none."""
    expected, proxies = subject.expected, subject.host.proxies
    addresses = proxies.of("https_proxy", "http_proxy")
    if not (expected.gpu_count and expected.driver_container and addresses) or expected.driver_has_proxy:
        return
    files = [path for path, settings in proxies.settings.items() if any(settings.values())]
    no_proxy = next(iter(proxies.of("no_proxy")), "")
    more = f", NO_PROXY: '{no_proxy}'" if no_proxy else ""
    yield subject.warning(
        codes.PROXY_UNKNOWN,
        "the host reaches the network through a proxy, and the driver container is told of none",
        evidence=f"{addresses[0]} in {', '.join(files)}",
        consequence="the container waits for kernel headers from archives that it cannot reach",
        fix=f"{subject.driver_key}.env: {{HTTP_PROXY: '{addresses[0]}', HTTPS_PROXY: '{addresses[0]}'{more}}}",
    )


def _gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB"
