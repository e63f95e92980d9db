"""Persistence, order, and the window of watches."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gpu_provision.sandbox.apiserver.errors import StatusError
from gpu_provision.sandbox.apiserver.store import ChangeRecord, Store, StoredObject, WatchCache
from tests.sandbox.apiserver.conftest import eventually


def _object(name: str, node: str = "", namespace: str = "default") -> dict[str, object]:
    return {"metadata": {"name": name, "namespace": namespace, "uid": name}, "spec": {"nodeName": node}}


def test_objects_survive_and_versions_are_never_used_twice(tmp_path: Path) -> None:
    """Including the version of a deletion."""
    store = Store(tmp_path / "db")
    store.put("/pods", _object("a"))
    store.put("/pods", _object("b"))
    store.remove("/pods", "b", "default")
    last = store.version
    store.close()
    again = Store(tmp_path / "db")
    assert [item.object["metadata"]["name"] for item in again.select("/pods")] == ["a"]
    assert again.put("/pods", _object("c")).version > last
    again.close()


WRITER = """
import sys
from gpu_provision.sandbox.apiserver.store import Store
store = Store(sys.argv[1])
number = 0
while True:
    number += 1
    store.put("/pods", {"metadata": {"name": f"p{number}", "namespace": "default", "uid": str(number)}})
    print(number, flush=True)
"""


def test_kill_9_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    """A killed writer leaves all acknowledged objects."""
    environment = {**os.environ, "PYTHONPATH": str(Path.cwd())}
    log = tmp_path / "acknowledged"
    with log.open("wb") as out:
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path / "db")], stdout=out, env=environment)
        try:
            eventually(lambda: log.read_bytes().count(b"\n") > 200, "the writer writes")
        finally:
            writer.send_signal(signal.SIGKILL)
            writer.wait(60)
    acknowledged = log.read_bytes().count(b"\n")
    store = Store(tmp_path / "db")
    names = {item.object["metadata"]["name"] for item in store.select("/pods")}
    store.close()
    assert {f"p{number}" for number in range(1, acknowledged + 1)} <= names


def test_pods_are_found_by_node_and_namespace() -> None:
    store = Store()
    store.put("/pods", _object("a", "n1"))
    store.put("/pods", _object("b", "n2"))
    store.put("/pods", _object("c", "n1", "other"))
    store.put("/pods", _object("b", "n1"))
    assert [item.object["metadata"]["name"] for item in store.select("/pods", node="n1")] == ["a", "b", "c"]
    assert [item.object["metadata"]["name"] for item in store.select("/pods", "other", "n1")] == ["c"]
    store.remove("/pods", "a", "default")
    assert [item.object["metadata"]["name"] for item in store.select("/pods", "default")] == ["b"]
    assert store.select("/pods", node="n2") == []
    store.close()


def _change(version: int) -> ChangeRecord:
    return ChangeRecord(version, "ADDED", StoredObject({}, version), None)


def test_a_watch_that_falls_behind_the_window_expires() -> None:
    """With 410 Expired, without a gap."""
    cache = WatchCache(floor=10, window=3)
    for version in range(11, 15):
        cache.add(_change(version))
    assert [change.version for change in cache.changes_since(11)] == [12, 13, 14]
    for too_old in (9, 10):
        with pytest.raises(StatusError, match="410 Expired: too old resource version"):
            cache.changes_since(too_old)
