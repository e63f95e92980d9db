"""What an adoption found, kept in a file before anything is changed: the way back."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_provision import files
from gpu_provision.cli import codes
from gpu_provision.model.findings import Finding, UsageError
from gpu_provision.report import yaml_text

if TYPE_CHECKING:
    from gpu_provision.adoption.plan import Adoption

# What the server fills in. An owner that is gone would have the garbage collector take what is back at once.
_SERVERS = frozenset(
    {"creationTimestamp", "generation", "managedFields", "ownerReferences", "resourceVersion", "selfLink", "uid"}
)


def keep(found: Adoption) -> Path:
    """Write every object of the operator and its chart, as ``kubectl apply`` takes it; return the file.

    Only its owner may read it. Raises UsageError if it cannot be written.
    """
    now = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    file = files.state_folder() / "adoptions" / f"{found.inventory}-{now}.yaml"
    try:
        files.make_state_folder(file.parent)
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "w", encoding="utf-8") as stream:  # noqa: PTH123 - a descriptor with its own mode
            stream.write(yaml_text.stream(_objects(found)))
    except OSError as error:
        raise UsageError(
            Finding(
                code=codes.NOT_WRITABLE,
                where=str(file),
                what="what the adoption would change cannot be kept, so nothing was changed",
                evidence=error.strerror or str(error),
                fix="set XDG_STATE_HOME to a directory that you may write to",
            )
        ) from error
    return file


def _objects(found: Adoption) -> Iterator[dict[str, Any]]:
    for item in (*found.policies, *(each.live for each in found.objects)):
        yield {**_without(item, {"status"}), "metadata": _without(item["metadata"], _SERVERS)}


def _without(value: Mapping[str, Any], keys: frozenset[str] | set[str]) -> dict[str, Any]:
    return {key: item for key, item in value.items() if key not in keys}
