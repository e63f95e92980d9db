"""A record of every run that wrote something, in a local folder: results and the validations' own logs.

``$XDG_STATE_HOME/gpu-provision/runs/<inventory>/<time>.json``, the newest fifty.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gpu_provision.model.findings import Finding
from gpu_provision.model.inventory import Inventory
from gpu_provision.model.progress import RunResult

_KEPT = 50


def folder(inventory: Inventory) -> Path:
    """Return where the records of an inventory's runs are."""
    state = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(state) / "gpu-provision" / "runs" / inventory.name


def record(inventory: Inventory, cluster: str, result: RunResult, findings: Sequence[Finding]) -> Path | None:
    """Write a run down and return the file; None where the folder cannot be written, which fails no run."""
    path = folder(inventory) / f"{datetime.now(UTC).strftime('%Y%m%dT%H%M%S.%fZ')}.json"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(_document(inventory, cluster, result, findings), indent=2, sort_keys=True) + "\n")
        for old in sorted(path.parent.glob("*.json"))[:-_KEPT]:
            old.unlink(missing_ok=True)
    except OSError:
        return None
    return path


def _document(inventory: Inventory, cluster: str, result: RunResult, findings: Sequence[Finding]) -> Mapping[str, Any]:
    return {
        "inventory": inventory.name,
        "inventory_sha256": inventory.digest,
        "release": inventory.release,
        "cluster": cluster,
        **asdict(result),
        "findings": [asdict(finding) for finding in findings],
    }
