"""Switches that pyinfra's ``--data`` sets, as options of gpu-provision do."""

from __future__ import annotations

from pyinfra import host

_ON = frozenset({"1", "true", "yes"})


def is_set(key: str) -> bool:
    """Whether a key of the host's data is switched on."""
    return str(host.data.get(key, "")).lower() in _ON
