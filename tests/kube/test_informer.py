"""Live copies stay true through expired versions, lost connections and the end of the server."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpu_provision.kube import informer
from gpu_provision.kube.client import KubeClient, ObjectList, connect
from gpu_provision.kube.informer import InformerCache, Scope
from gpu_provision.kube.transport import WatchEvent
from gpu_provision.kube.trim import keep_all
from gpu_provision.model.cluster import Kind, Manifest, ref_of
from gpu_provision.model.findings import Finding, ForbiddenError, ProvisionError, UnreachableError
from tests.kube.conftest import added, config_map, fault
from tests.sandbox.apiserver.conftest import Running, eventually

CONFIG_MAP = Kind("v1", "ConfigMap")


def names(cache: InformerCache) -> set[str]:
    return {ref.name for ref in cache.list(CONFIG_MAP)}


@pytest.fixture
def following(cluster: KubeClient, request: pytest.FixtureRequest) -> Iterator[Callable[..., InformerCache]]:
    opened: list[InformerCache] = []

    def follow(*, patience: float = 60.0) -> InformerCache:
        cache = InformerCache(cluster, [Scope(CONFIG_MAP, f"test={request.node.name}")], patience=patience)
        opened.append(cache.__enter__())
        return cache

    yield follow
    for cache in opened:
        cache.__exit__()


def mine(request: pytest.FixtureRequest, name: str, **parts: Any) -> Manifest:
    return config_map(name, labels={"test": request.node.name}, **parts)


Following = Callable[..., InformerCache]


def test_expired_version_lists_again(cluster: KubeClient, following: Following, request: pytest.FixtureRequest) -> None:
    """410: what was deleted meanwhile is gone from the copy as well."""
    live = cluster.create(mine(request, "passing"))
    cache = following()
    fault(cluster, **{"expire-watches": True})
    cluster.delete(ref_of(live))
    cluster.create(mine(request, "new"))
    eventually(lambda: names(cache) == {"new"}, "the list after the expiry")


EMPTY = (200, {}, json.dumps({"metadata": {"resourceVersion": "1"}, "items": []}).encode())
LISTED = (200, {}, json.dumps({"metadata": {"resourceVersion": "7"}, "items": [config_map("listed")]}).encode())
TORN = {"half JSON": b'{"type": "ADDED", "object": {"metad\n', "half UTF-8": b'{"type": "\xc3\n', "no end": b'{"type'}
ODD = {
    "no object": b'{"type": "ADDED", "object": null}\n',
    "no metadata": b'{"type": "MODIFIED", "object": {}}\n',
    "no version": b'{"type": "DELETED", "object": {"metadata": {"name": "a", "resourceVersion": 7}}}\n',
    "a list": b"[]\n",
    "no such type": b'{"type": "RENAMED", "object": {"metadata": {"name": "a", "resourceVersion": "7"}}}\n',
}


@pytest.mark.parametrize("torn", TORN.values(), ids=TORN)
def test_a_torn_watch_resumes_from_its_last_version(
    answering: Callable[..., KubeClient], monkeypatch: pytest.MonkeyPatch, torn: bytes
) -> None:
    monkeypatch.setattr(informer, "_PAUSE_SECONDS", 0.05)
    before = added("before", "5")[2]
    cluster = answering(EMPTY, (200, {}, before + torn), added("after"), (500, {}, b""))
    asked: list[str] = []
    watch = cluster.watch
    monkeypatch.setattr(cluster, "watch", lambda *at, **where: asked.append(at[1]) or watch(*at, **where))
    with InformerCache(cluster, [Scope(CONFIG_MAP)], patience=30) as cache:
        eventually(lambda: names(cache) == {"before", "after"}, "the event after the torn watch")
        cache.wait(0)  # raises what ended the watch
        eventually(lambda: asked[:3] == ["1", "5", "7"], "the versions")


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
def test_what_is_no_event_lists_again(
    answering: Callable[..., KubeClient], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, odd: bytes
) -> None:
    monkeypatch.setattr(informer, "_PAUSE_SECONDS", 0.01)
    with InformerCache(answering(EMPTY, (200, {}, odd), LISTED, (500, {}, b"")), [Scope(CONFIG_MAP)]) as cache:
        eventually(lambda: names(cache) == {"listed"}, "the list")
    assert "no event of a watch" in caplog.text


@pytest.mark.parametrize(("asked", "pause"), [("40", 40), ("999999999", 60)])
def test_an_overloaded_server_sets_the_pause_of_a_watch(
    answering: Callable[..., KubeClient], monkeypatch: pytest.MonkeyPatch, asked: str, pause: int
) -> None:
    """Within the time for which the watch is opened again in vain."""
    pauses: list[float] = []
    cluster = answering(EMPTY, (429, {"Retry-After": asked}, b""))
    cache = InformerCache(cluster, [Scope(CONFIG_MAP)], patience=60)
    monkeypatch.setattr(cache._stopped, "wait", lambda seconds: pauses.append(seconds) or cache._stopped.set())
    with cache:
        eventually(lambda: pauses == [pytest.approx(pause, abs=1.0)], "the pause")


def test_a_mistake_of_our_own_restarts_a_watch(
    answering: Callable[..., KubeClient], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The copies would stay as they are if its thread ended, and no reader would know."""
    monkeypatch.setattr(informer, "_PAUSE_SECONDS", 0.01)
    mistakes = [KeyError("spec")]

    def keep(kind: Kind, item: Any) -> Manifest:
        item = keep_all(kind, item)
        if item["metadata"].get("resourceVersion") and mistakes:
            raise mistakes.pop()
        return item

    cluster = answering(EMPTY, added("odd"), LISTED, (500, {}, b""))
    with InformerCache(cluster, [Scope(CONFIG_MAP)], patience=30, keep=keep) as cache:
        eventually(lambda: names(cache) == {"listed"}, "the list after the mistake")
        assert cache.problem == "the watch of configmaps starts again after KeyError: 'spec'"
    assert "KeyError" in caplog.text


def test_a_mistake_that_lasts_ends_the_waiting(
    answering: Callable[..., KubeClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(informer, "_PAUSE_SECONDS", 0.01)

    def keep(_kind: Kind, item: Any) -> Manifest:
        return {"spec": keep_all(_kind, item)["spec"]}

    answers = [answer for _ in range(informer._RESTARTS + 1) for answer in (EMPTY, added("odd"))]
    with InformerCache(answering(*answers), [Scope(CONFIG_MAP)], keep=keep) as cache, pytest.raises(KeyError):
        eventually(lambda: cache.wait(0.5) and False, "the failure")


def test_an_object_that_a_write_returned_is_there_at_once(following: Following, request: pytest.FixtureRequest) -> None:
    """A watch that lags by seconds would have it created again and again."""
    cache = following()
    written = mine(request, "written")
    written["metadata"]["resourceVersion"] = "1"
    cache.record_write(written)
    assert names(cache) == {"written"}
    cache.record_write(config_map("of-another-selector"))
    assert names(cache) == {"written"}


def test_older_versions_than_what_is_there_are_left_out(answering: Callable[..., KubeClient]) -> None:
    """Events of a predecessor of the same name, and writes that a watch has overtaken."""
    with InformerCache(answering(EMPTY), [Scope(CONFIG_MAP)], patience=30) as cache:
        cache.record_write(_of_version("again", "10"))
        cache._handle_event(cache._watched[Scope(CONFIG_MAP)], WatchEvent("DELETED", _of_version("again", "8"), "8"))
        cache.record_write({**_of_version("again", "9"), "data": {"a": "old"}})
        assert [item["metadata"]["resourceVersion"] for item in cache.list(CONFIG_MAP).values()] == ["10"]
        cache._handle_event(cache._watched[Scope(CONFIG_MAP)], WatchEvent("DELETED", _of_version("again", "11"), "11"))
        assert names(cache) == set()


def _of_version(name: str, version: str) -> Manifest:
    made = config_map(name)
    return {**made, "metadata": {**made["metadata"], "resourceVersion": version}}


@pytest.mark.parametrize("version", ["present", "0"])
def test_what_was_listed_is_followed_without_a_list(
    cluster: KubeClient, request: pytest.FixtureRequest, version: str
) -> None:
    """Version 0 stands for objects that do not exist: the watch begins with what there is."""
    scope = Scope(CONFIG_MAP, f"test={request.node.name}".partition("[")[0])
    labels = {"test": scope.label_selector.partition("=")[2]}
    cluster.create(config_map(f"before-{version}", labels=labels))
    listing = cluster.list(CONFIG_MAP, label_selector=scope.label_selector)
    listed = {CONFIG_MAP: listing if version == "present" else ObjectList([], version)}
    before = cluster.requests
    with InformerCache(cluster, [scope], patience=30, listed=listed) as cache:
        cluster.create(config_map(f"after-{version}", labels=labels))
        eventually(lambda: {f"before-{version}", f"after-{version}"} <= names(cache), "both")
    assert (cluster.requests - before, listed) == (2, {}), "the create and the watch"


def test_long_silence_of_the_server_ends_the_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(informer, "_PAUSE_SECONDS", 0.05)
    server = Running(tmp_path / "own")
    cluster = connect(str(server.server.kubeconfig))
    with InformerCache(cluster, [Scope(CONFIG_MAP)], patience=0.3) as cache:
        server.stop()
        with pytest.raises(UnreachableError):
            eventually(lambda: cache.wait(0.5) and False, "the failure")


def test_a_notification_counts_as_a_change_once(following: Following) -> None:
    """Also one before the wait."""
    cache = following()
    cache.wait(0)
    threading.Thread(target=cache.notify).start()
    assert cache.wait(60)
    assert not cache.wait(0)
    cache.notify()
    assert cache.wait(0)


def test_heartbeat_is_taken_and_wakes_no_reader() -> None:
    """Five thousand kubelets send some seventeen heartbeats a second. A writer names the object's version."""
    scope, events = Scope(CONFIG_MAP), (("ADDED", "1", True), ("MODIFIED", "1", False), ("MODIFIED", "2", True))

    def without_beat(_kind: Kind, item: Any) -> Manifest:
        return {**item, "data": {"a": item["data"]["a"]}}

    with InformerCache(Scripted(lasts), [scope], patience=10, keep=without_beat) as cache:  # type: ignore[arg-type]
        for version, (kind, value, wakes) in zip("234", events, strict=True):
            cache.wait(0)
            item = {**_of_version("beating", version), "data": {"a": value, "beat": version}}
            cache._handle_event(cache._watched[scope], WatchEvent(kind, item, version))
            assert [each["metadata"]["resourceVersion"] for each in cache.list(scope).values()] == [version]
            assert cache.wait(0) is wakes


def test_copies_are_shared_with_a_reader_who_waits_by_himself(
    cluster: KubeClient, following: Following, request: pytest.FixtureRequest
) -> None:
    """What he follows besides ends with him, the rest does not."""
    cache, other = following(), Scope(CONFIG_MAP, f"other={request.node.name}")
    with cache.new_reader() as reader:
        cache.wait(0)
        assert reader.wait(0), "he has not looked yet"
        cluster.create(mine(request, "for-both"))
        eventually(lambda: names(reader) == {"for-both"}, "the creation")
        assert reader.wait(60)
        assert cache.wait(60)
        reader.watch(other, Scope(CONFIG_MAP, f"test={request.node.name}"))
        cluster.create(config_map("beside", labels={"other": request.node.name}))
        eventually(lambda: reader.list(other), "what he alone follows")
    eventually(lambda: not _workers(other), "the end of its worker")
    cluster.create(mine(request, "after-him"))
    eventually(lambda: names(cache) == {"for-both", "after-him"}, "the next creation")
    with cache.new_reader() as reader:
        reader.watch(other)
        assert [ref.name for ref in reader.list(other)] == ["beside"]


def test_closing_ends_every_watch_at_once(cluster: KubeClient) -> None:
    """Not when the server would end it, minutes later."""
    scope = Scope(CONFIG_MAP, "test=closing")
    with InformerCache(cluster, [scope], patience=10):
        eventually(lambda: _workers(scope), "its worker")
    eventually(lambda: not _workers(scope), "the end of its worker")


def _workers(scope: Scope) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == str(scope)]


class Scripted:
    """A cluster whose watches do what a test says, one after the other; the last one lives on."""

    def __init__(self, *watches: Callable[[], Iterator[WatchEvent]]) -> None:
        self.retry_seconds = 60.0
        self.watches, self.opened, self.lists = list(watches), 0, 0

    def list(self, _kind: Kind, **_: str) -> ObjectList:
        self.lists += 1
        return ObjectList([], "1")

    def watch(self, *_: object, **__: object) -> Any:
        self.opened += 1
        part = self.watches[min(self.opened, len(self.watches)) - 1]
        return _Stream(part)


class _Stream:
    def __init__(self, part: Callable[[], Iterator[WatchEvent]]) -> None:
        self._part = part

    def __iter__(self) -> Iterator[WatchEvent]:
        return self._part()

    def close(self) -> None:
        """Nothing is open."""


def drops(after: float = 0.0) -> Callable[[], Iterator[WatchEvent]]:
    def play() -> Iterator[WatchEvent]:
        threading.Event().wait(after)
        raise UnreachableError(Finding(code="GP301", what="lost"))
        yield

    return play


def lasts() -> Iterator[WatchEvent]:
    threading.Event().wait()
    yield


def ends() -> Iterator[WatchEvent]:
    return iter(())


def refused() -> Iterator[WatchEvent]:
    raise ForbiddenError(Finding(code="GP303", what="a permission is missing"))


def test_connections_lost_now_and_then_are_no_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each time the server answered again: patience is for its silence, not for the sum of accidents."""
    monkeypatch.setattr(informer, "_PAUSE_SECONDS", 0.02)
    script = Scripted(drops(after=0.15))
    with InformerCache(script, [Scope(CONFIG_MAP)], patience=0.3) as cache:  # type: ignore[arg-type]
        eventually(lambda: script.opened >= 5 and not cache.wait(0.01), "five connections without a failure")


def test_a_server_that_ends_watches_at_once_is_not_hammered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(informer, "_PAUSE_SECONDS", 3.0)  # a watch that lasts longer is no such watch
    script, pauses = Scripted(ends), list[float]()
    cache = InformerCache(script, [Scope(CONFIG_MAP)], patience=10)  # type: ignore[arg-type]
    monkeypatch.setattr(cache._stopped, "wait", pauses.append)
    monkeypatch.setattr(informer.random, "uniform", lambda _low, high: high)
    with cache:
        eventually(lambda: script.opened >= 5, "five watches")
    assert pauses[:4] == pytest.approx([3.0, 6.0, 12.0, 24.0])


def test_a_right_that_is_taken_away_ends_the_waiting() -> None:
    cache = InformerCache(Scripted(refused), [Scope(CONFIG_MAP)], patience=10)  # type: ignore[arg-type]
    with cache, pytest.raises(ProvisionError, match="permission"):
        eventually(lambda: cache.wait(0.5) and False, "the failure")


def test_types_of_answers_are_built_at_import() -> None:
    """Msgspec 0.22 crashes if two threads build one at its first use."""
    lines = (
        "from gpu_provision.kube import client, transport, trim",
        "kinds = client._List, transport._Event, transport._Object",
        "shapes = trim._NODE, trim._STACK_POD, trim._POD, trim._NODE_FEATURE",
        "print(all('__msgspec_cache__' in vars(each) for each in (*kinds[::2], *shapes)))",
    )
    ran = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=True)
    assert ran.stdout == "True\n"
