"""Container images as the inventory and the releases name them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """A container image in three parts, as the GPU Operator's values name them.

    Attributes:
        repository: Registry and path, such as ``nvcr.io/nvidia/k8s``.
        image: Last part of the name, such as ``container-toolkit``.
        version: A tag, or a digest that begins with ``sha256:``.
    """

    repository: str
    image: str
    version: str

    @property
    def reference(self) -> str:
        """The name a container runtime pulls: tags after a colon, digests after an at sign."""
        return self.tagged(self.version)

    def tagged(self, tag: str) -> str:
        """Return the reference with another tag or digest."""
        separator = "@" if tag.startswith("sha256:") else ":"
        return f"{self.repository}/{self.image}{separator}{tag}"
