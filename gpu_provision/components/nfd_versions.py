"""How command lines and health checks of Node Feature Discovery changed, read off its charts 0.14 to 0.19."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from gpu_provision.components import pods


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """Versions of Node Feature Discovery that are started alike.

    Attributes:
        since: The first one, as (major, minor).
        flags: Command line of master and worker.
        worker_flags: What the worker gets besides.
        ports: Ports of master and worker, by name.
        gc_ports: Ports of the garbage collector, by name.
        health: How to ask master and worker whether they live; None if there is no way.
        gc_health: Likewise for the garbage collector.
    """

    since: tuple[int, int]
    flags: tuple[str, ...]
    worker_flags: tuple[str, ...] = ()
    ports: tuple[tuple[str, int], ...]
    gc_ports: tuple[tuple[str, int], ...] = (("metrics", 8081),)
    health: dict[str, Any] | None
    gc_health: dict[str, Any] | None = None


_HTTP = {"httpGet": {"path": "/healthz", "port": "http"}}

# Newest first. Up to 0.17 the health service speaks gRPC, for which API servers before 1.24 know no probe: that its
# port answers is all that is asked.
GENERATIONS = (
    Generation(
        since=(0, 19),
        flags=("-port=8080",),
        worker_flags=("-owner-refs=pod,ds",),
        ports=(("http", 8080),),
        gc_ports=(("http", 8080),),
        health=_HTTP,
        gc_health=_HTTP,
    ),
    Generation(
        since=(0, 18),
        flags=("-port=8080",),
        ports=(("http", 8080),),
        gc_ports=(("http", 8080),),
        health=_HTTP,
        gc_health=_HTTP,
    ),
    Generation(
        since=(0, 16),
        flags=("-metrics=8081", "-grpc-health=8082"),
        ports=(("metrics", 8081), ("health", 8082)),
        health={"tcpSocket": {"port": "health"}},
    ),
    Generation(since=(0, 0), flags=("-metrics=8081",), ports=(("metrics", 8081),), gc_ports=(), health=None),
)


def generation(version: str) -> Generation:
    """Return the generation of an image version such as ``v0.19.0``; the newest for digests and names."""
    match = re.match(r"v?(\d+)\.(\d+)", version)
    if match is None:
        return GENERATIONS[0]
    number = (int(match[1]), int(match[2]))
    return next(candidate for candidate in GENERATIONS if number >= candidate.since)


def probe(health: dict[str, Any] | None, **fields: int) -> dict[str, Any] | None:
    """Return a probe, or None where nothing can be asked."""
    return health | fields if health else None


def container_ports(ports: tuple[tuple[str, int], ...]) -> list[dict[str, Any]]:
    """Return container ports."""
    return [pods.port(name, number) for name, number in ports]
