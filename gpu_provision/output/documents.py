"""The JSON documents of ``--json``: one per command, described by output.schema.json."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from gpu_provision.model.findings import Finding
from gpu_provision.output import findings as findings_view

VERSION = 1


def document(command: str, findings: Iterable[Finding] = (), **parts: Any) -> dict[str, Any]:
    """Return the document of a command: what all have in common, and its own parts."""
    return {"schema": VERSION, "command": command, **findings_view.split(findings), **parts}


def output_schema() -> Mapping[str, Any]:
    """Return the JSON Schema (draft 2020-12) that every document fits."""
    schema: Mapping[str, Any] = json.loads(Path(__file__).with_name("output.schema.json").read_text(encoding="utf-8"))
    return schema
