"""nouveau, where nobody is going to remove it."""

from __future__ import annotations

from collections.abc import Iterator

from gpu_provision.model.findings import Finding
from gpu_provision.preflight import codes
from gpu_provision.preflight.subject import Subject


def wanted(subject: Subject) -> Iterator[Finding]:
    """Yield a nouveau that the host phase is told to leave alone; it removes any other."""
    host, expected = subject.host, subject.expected
    if not (expected.gpu_count and host.nouveau_loaded) or expected.blacklist_nouveau:
        return
    users = host.modules.loaded["nouveau"]
    stays = "; it is in the initramfs, too" if host.nouveau.in_initramfs else ""
    yield subject.error(
        codes.NOUVEAU_WANTED,
        "nouveau is loaded, and the inventory leaves it alone",
        evidence=f"/proc/modules: nouveau, used by {max(users, 0)}{stays}",
        consequence="the NVIDIA driver cannot have the GPU",
        fix=f"remove blacklist_nouveau: false from pools.{expected.pool}.host_prerequisites or host_prerequisites",
    )
