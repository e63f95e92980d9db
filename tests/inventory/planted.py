"""Records that someone has edited who may patch the ConfigMap of the history and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gpu_provision.history.restore import VERSIONS
from gpu_provision.inventory.document import KeyPath
from gpu_provision.inventory.json_schema import ANY, resolve_ref, schema

EVIL = "evil.example.com/$(id)\nx\x1b]0;\x07"

VALID = Path(__file__).with_suffix(".yaml").read_text()


def plant_strings(part: dict[str, Any] | None = None, path: KeyPath = ()) -> Any:
    """Return an inventory in which every setting of the schema but versions has a hostile value, pool ``t4`` too."""
    result = resolve_ref(part or schema())
    inner = result.get("items") or result.get("additionalProperties")
    entry = resolve_ref(inner if isinstance(inner, dict) else {})
    if "properties" in result:
        below = {key: (each, (*path, key)) for key, each in result["properties"].items()}
        return {key: plant_strings(each, here) for key, (each, here) in below.items() if here not in VERSIONS}
    if "properties" in entry:
        value = plant_strings(entry, (*path, ANY))
        return [value] if result["type"] == "array" else {"t4": value, "evil": value}
    return {"array": [EVIL], "object": {EVIL: EVIL}, "integer": 999}.get(str(result.get("type")), EVIL)
