"""What a sandbox keeps when it ends, as text: its objects as the API server has them, and its machines."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

_MADE = """
CREATE TABLE objects (
    storage TEXT, namespace TEXT, name TEXT, version INTEGER, body BLOB,
    PRIMARY KEY (storage, namespace, name)) WITHOUT ROWID;
CREATE TABLE facts (name TEXT PRIMARY KEY, value INTEGER);
"""
_WRITTEN = "SELECT storage, body FROM objects WHERE storage != '/events' ORDER BY storage, namespace, name"


def dump(sandbox: Path, target: Path) -> None:
    """Write the state of a sandbox that has ended, but for Events: a line for each object and for each machine."""
    target.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(sandbox / "store.db")) as store:
        rows = [{"resource": resource, "object": json.loads(body)} for resource, body in store.execute(_WRITTEN)]
    _write(target / "objects.jsonl", rows)
    machines = sorted((sandbox / "machines").glob("*.jsonl"))
    _write(target / "machines.jsonl", [{"name": each.stem, "state": _last(each)} for each in machines])


def load(source: Path, sandbox: Path) -> None:
    """Write that as the state of a sandbox which has not begun yet."""
    (sandbox / "machines").mkdir(parents=True)
    for row in _read(source / "machines.jsonl"):
        (sandbox / "machines" / f"{row['name']}.jsonl").write_text(json.dumps(row["state"]) + "\n")
    newest = 0
    with closing(sqlite3.connect(sandbox / "store.db")) as store, store:
        store.executescript(_MADE)
        for row in _read(source / "objects.jsonl"):
            metadata = row["object"]["metadata"]
            version, place = int(metadata["resourceVersion"]), metadata.get("namespace", "")
            key = (row["resource"], place, metadata["name"], version)
            store.execute("INSERT INTO objects VALUES (?, ?, ?, ?, ?)", (*key, json.dumps(row["object"]).encode()))
            newest = max(newest, version)
        store.execute("INSERT INTO facts VALUES ('reserved', ?)", (newest + 1,))


def objects(source: Path) -> list[dict[str, Any]]:
    return [row["object"] for row in _read(source / "objects.jsonl")]


def _write(file: Path, rows: list[dict[str, Any]]) -> None:
    file.write_text("".join(json.dumps(row, sort_keys=True, separators=(",", ":")) + "\n" for row in rows))


def _read(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def _last(file: Path) -> object:
    return json.loads(file.read_text().splitlines()[-1])
