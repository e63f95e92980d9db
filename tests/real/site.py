"""Where a control plane is reached, and who may come."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tests.real.program_flags import SERVICE_ADDRESS

LOOPBACK = "127.0.0.1"
_IN_CLUSTER = ("kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local")


@dataclass(frozen=True, slots=True)
class Site:
    """Where the API server listens, and who may come.

    Attributes:
        bind: An address of this machine, or 0.0.0.0.
        port: 0 for a free one.
        advertise: The address that the ``kubernetes`` Service leads to; "" for a Service that leads nowhere.
        users: Users besides the administrator and ``gpu-provision``, with their groups, separated by commas.
        flags: Of the API server, over or beside its own.
    """

    bind: str = LOOPBACK
    port: int = 0
    advertise: str = ""
    users: Mapping[str, str] = field(default_factory=dict)
    flags: Mapping[str, object] = field(default_factory=dict)

    @property
    def hosts(self) -> tuple[str, ...]:
        """All names and addresses of the server's certificate."""
        bound = () if self.bind in {"0.0.0.0", LOOPBACK} else (self.bind,)  # noqa: S104 - compared, not bound
        wanted = (LOOPBACK, "localhost", SERVICE_ADDRESS, *_IN_CLUSTER, *bound, self.advertise)
        return tuple(dict.fromkeys(name for name in wanted if name))

    @property
    def reached_at(self) -> str:
        """The address for clients on this machine."""
        return LOOPBACK if self.bind == "0.0.0.0" else self.bind  # noqa: S104 - compared, not bound
