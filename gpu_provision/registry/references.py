"""Image references as container runtimes read them, in the parts that a registry's API wants."""

from __future__ import annotations

from dataclasses import dataclass

_HUB = "docker.io"
_HUB_API = "registry-1.docker.io"


@dataclass(frozen=True, slots=True)
class Reference:
    """An image in a registry.

    Attributes:
        registry: Host, with a port if there is one: ``nvcr.io``.
        name: ``nvidia/driver``.
        version: A tag or a digest.
    """

    registry: str
    name: str
    version: str

    @property
    def host(self) -> str:
        """The host that answers for the registry."""
        return _HUB_API if self.registry == _HUB else self.registry

    @property
    def manifest(self) -> str:
        """The URL of its manifest."""
        return f"https://{self.host}/v2/{self.name}/manifests/{self.version}"


def parse(text: str) -> Reference:
    """Read ``nvcr.io/nvidia/driver:580-ubuntu22.04``, ``busybox``, ``registry:5000/x@sha256:...``."""
    name, at, digest = text.partition("@")
    head, slash, rest = name.partition("/")
    is_host = bool(slash) and ("." in head or ":" in head or head == "localhost")
    registry, path = (head, rest) if is_host else (_HUB, name)
    path, _, tag = path.partition(":")
    if registry == _HUB and "/" not in path:
        path = f"library/{path}"
    return Reference(registry, path, digest if at else tag or "latest")
