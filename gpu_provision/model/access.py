"""What an account may do at an API server, as RBAC names it."""

from __future__ import annotations

from typing import NamedTuple


class Permission(NamedTuple):
    """The right to do one thing.

    Attributes:
        verb: Such as ``patch``.
        group: API group; empty for the core group.
        resource: Plural name, with a subresource where there is one: ``pods/log``.
        namespace: Empty for the whole cluster.
        name: Of one object; empty for objects of any name.
    """

    verb: str
    group: str
    resource: str
    namespace: str = ""
    name: str = ""
