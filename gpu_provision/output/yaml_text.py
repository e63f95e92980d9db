"""Manifests as YAML that people like to read: block text for scripts, the usual order of keys."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import yaml

_FIRST = ("apiVersion", "kind", "metadata")


try:
    from yaml import CSafeDumper as _Fastest  # several times as fast, where it was built
except ImportError:
    from yaml import SafeDumper as _Fastest  # type: ignore[assignment]


class _Dumper(_Fastest):
    """Writes multi-line strings as block text and repeats what occurs twice instead of aliasing it."""

    def ignore_aliases(self, data: Any) -> bool:
        del data
        return True


def _string(dumper: _Fastest, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _string)


def one(manifest: dict[str, Any]) -> str:
    """Return one object as a YAML document, without a document marker."""
    first = {key: manifest[key] for key in _FIRST if key in manifest}
    return yaml.dump(
        first | {key: value for key, value in manifest.items() if key not in first},
        Dumper=_Dumper,
        sort_keys=False,
        default_flow_style=False,
        width=1000,
    )


def stream(manifests: Iterable[dict[str, Any]]) -> str:
    """Return objects as a stream of YAML documents."""
    return "".join(f"---\n{one(manifest)}" for manifest in manifests)
