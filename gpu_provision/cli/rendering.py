"""Rendered manifests as files in a folder."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from gpu_provision.cli import codes
from gpu_provision.model.cluster import Manifest
from gpu_provision.model.findings import Finding, UsageError
from gpu_provision.report import yaml_text

HEADER = "# Rendered by gpu-provision; the next render writes over it.\n"


def write_files(folder: Path, manifests: Mapping[str, list[Manifest]]) -> tuple[Path, ...]:
    """Write one file per component and remove files of an earlier render that are no longer wanted.

    Raises UsageError if the folder cannot be written. Files that we did not write are left alone.
    """
    texts = {
        folder / f"{number:02}-{component.replace('_', '-')}.yaml": HEADER + yaml_text.stream(group)
        for number, (component, group) in enumerate(manifests.items(), start=1)
        if group
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _remove_stale(folder, texts)
        for path, text in texts.items():
            path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(
            Finding(
                code=codes.NOT_WRITABLE,
                where=str(error.filename or folder),
                what="cannot be written",
                evidence=error.strerror or str(error),
                fix="name another folder with --output",
            )
        ) from error
    return tuple(texts)


def _remove_stale(folder: Path, wanted: Iterable[Path]) -> None:
    keep = set(wanted)
    for path in folder.glob("*.yaml"):
        if path not in keep and path.read_bytes().startswith(HEADER.encode()):
            path.unlink()
