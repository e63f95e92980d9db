"""Declares a setting once, where its type and default are.

The schema of inventories, docs/inventory.md and the CustomResourceDefinition are generated from these declarations
(`tools/inventory_schema.py`). The import of a ClusterPolicy reads the reference's names from them
(`adopt/reference.py`), and the components the fields of their pods (`components/operands.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, field, fields
from typing import Any, Final, TypeVar

REQUIRED: Final[Any] = MISSING
"""In place of a default: the inventory has to have the key."""

_T = TypeVar("_T")


def setting(  # noqa: PLR0913  all but three are rare, and have names
    default: _T,
    description: str = "",
    kind: str = "",
    *,
    reference: str | None = "",
    pod: Mapping[str, Any] | None = None,
    image: str = "",
    required: bool | None = None,
    secret: bool = False,
    shown: bool = True,
    **keywords: Any,
) -> _T:
    """Return a dataclass field that is a key of the inventory.

    Args:
        default: Value without the key. The schema has none for an empty text or None, which mean: not set.
        description: For people. Empty: that of the kind, or the docstring of the field's own class.
        kind: Name of a definition in ``inventory/value_types.yaml``. Empty: the type of the field is enough.
        reference: Path in the section of a ClusterPolicy. Empty: the name in camelCase. None: there is no such field.
        pod: Fields of the component's pod while the setting is on.
        image: Kind of the version. The keys of this image are keys of the section itself.
        required: Whether the inventory has to have the key; as a rule, if there is no default.
        secret: Whether the value may hold a secret, so that no repr() shows it.
        shown: Whether the schema has the default.
        keywords: Keywords of JSON Schema. They override those that follow from the type.
    """
    metadata = {
        "description": description,
        "kind": kind,
        "reference": reference,
        "pod": pod,
        "image": image,
        "required": default is REQUIRED if required is None else required,
        "shown": shown,
        "keywords": keywords,
    }
    if isinstance(default, dict):
        return field(default_factory=default.copy, repr=not secret, metadata=metadata)  # type: ignore[return-value]
    return field(default=default, repr=not secret, metadata=metadata)


def settings_of(record: type[Any]) -> Iterator[Field[Any]]:
    """Yield the fields of a record that are settings."""
    return (each for each in fields(record) if "kind" in each.metadata)


def reference_of(each: Field[Any]) -> str | None:
    """Return the GPU Operator's name of a setting; None if the GPU Operator has no such setting."""
    reference: str | None = each.metadata["reference"]
    return camel_case(each.name) if reference == "" else reference


def camel_case(name: str) -> str:
    """Return ``host_network`` as ``hostNetwork``."""
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def pod_fields(record: object) -> dict[str, Any]:
    """Return the pod fields that the settings of a record turn on."""
    active = (each for each in settings_of(type(record)) if each.metadata["pod"] and getattr(record, each.name))
    return {key: value for each in active for key, value in each.metadata["pod"].items()}
