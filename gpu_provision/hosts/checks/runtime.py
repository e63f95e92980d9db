"""The container runtime: old, elsewhere, or configured in a way that the toolkit trips over."""

from __future__ import annotations

import re
from collections.abc import Iterator
from posixpath import dirname

from gpu_provision.components.toolkit_runtimes import RUNTIMES
from gpu_provision.hosts.checks import codes
from gpu_provision.hosts.checks.subject import CheckedHost
from gpu_provision.hosts.facts.runtime import CONTAINERD, ContainerRuntime
from gpu_provision.model.distributions import Places
from gpu_provision.model.findings import Finding

_CONTAINERD_2 = 2
_SCHEMA_OF_2 = 3
_CRI_PLUGINS = frozenset({"cri", "io.containerd.grpc.v1.cri"})


def old(subject: CheckedHost) -> Iterator[Finding]:
    """Yield a runtime that does not know CDI where GPUs come through it."""
    runtime = _used(subject)
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


def paths(subject: CheckedHost) -> Iterator[Finding]:
    """Yield a runtime that is elsewhere than the toolkit looks.

    A distribution's own places are known; what the inventory says about all nodes at once counts more than that.
    """
    kubernetes, expected = subject.host.kubernetes, subject.expected
    runtime = subject.host.cri
    if not (expected.gpu_count and expected.toolkit) or runtime is None or runtime.kind != CONTAINERD:
        return
    places = kubernetes.places
    config, socket = expected.toolkit_config or places.toolkit_config, expected.toolkit_socket or places.socket
    at_home = _is_at_home(runtime, places)
    known = {runtime.config, *((places.toolkit_config, places.containerd_config) if at_home else ())}
    if dirname(config) in map(dirname, known) and _plain(socket) == _plain(kubernetes.socket):
        return
    yield subject.error(
        codes.RUNTIME_PATHS,
        f"containerd is not where the toolkit looks: {config}, {socket}",
        evidence=f"{kubernetes.distribution or 'kubelet'}: {runtime.config}, {kubernetes.socket}",
        consequence="the toolkit changes a file that nobody reads, or waits for a socket that is not there",
        fix="remove CONTAINERD_CONFIG and CONTAINERD_SOCKET from toolkit.env: every node's own are used then"
        if at_home
        else f"toolkit: {{env: {{CONTAINERD_CONFIG: {runtime.config}, CONTAINERD_SOCKET: {kubernetes.socket}}}}}",
    )


def _is_at_home(runtime: ContainerRuntime, places: Places) -> bool:
    """Return whether a runtime reads its configuration where its distribution keeps it; snaps count revisions."""
    return re.sub(r"/microk8s/\d+/", "/microk8s/current/", runtime.config) == places.containerd_config


def _plain(socket: str) -> str:
    """Return a socket's path as it is without the link from /var/run to /run."""
    return socket.removeprefix("/var")


def schema(subject: CheckedHost) -> Iterator[Finding]:
    """Yield containerd 2 that still reads a configuration of containerd 1."""
    runtime = _used(subject)
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


def without_cri(subject: CheckedHost) -> Iterator[Finding]:
    """Yield a containerd that is told to leave off what the kubelet speaks to."""
    runtime = _used(subject)
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
    runtime, kubelet = _used(subject), subject.host.kubernetes.cgroup_driver
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


def _used(subject: CheckedHost) -> ContainerRuntime | None:
    """Return the runtime of the kubelet; None on machines that get no GPU software."""
    return subject.host.cri if subject.expected.gpu_count else None
