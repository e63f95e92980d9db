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
    """Write one file per component; return them in order. Raises UsageError as `write_texts`."""
    texts = {
        f"{number:02}-{component.replace('_', '-')}.yaml": yaml_text.stream(group)
        for number, (component, group) in enumerate(manifests.items(), start=1)
        if group
    }
    return write_texts(folder, texts)


def write_texts(folder: Path, named: Mapping[str, str]) -> tuple[Path, ...]:
    """Write YAML files by name, and remove those of an earlier render that are no longer wanted.

    Raises UsageError if the folder cannot be written. Files that we did not write are left alone.
    """
    texts = {folder / name: HEADER + text for name, text in named.items()}
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
