"""What is kept of nodes and pods is all that is read of them, and little else."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpu_provision.components.labels import COMPONENT, STACK
from gpu_provision.diagnostics import pods as pod_view
from gpu_provision.kube import trim as reading
from gpu_provision.kube.observe import node_facts
from gpu_provision.kube.trim import is_same
from gpu_provision.model.cluster import Kind, Manifest
from tests import data_file

DATA = data_file.document(Path(__file__).with_suffix(".yaml").read_text())
ENDED = {"exitCode": 1, "message": "no headers", "startedAt": "2026-11-21T08:00:00Z", "containerID": "containerd://1"}


def trimmed(item: Manifest) -> Manifest:
    """Return what is kept of an object, which is the same of JSON as of what is decoded already."""
    kind = Kind(item["apiVersion"], item["kind"])
    kept = reading.trim(kind, item)
    assert reading.trim(kind, msgspec.Raw(json.dumps(item).encode())) == kept
    return kept


def node(*, beat: str = "08:00:00", **spec: Any) -> Manifest:
    item: Manifest = {**copy.deepcopy(DATA["node"]), "spec": spec}
    item["metadata"]["resourceVersion"] = beat
    item["status"]["conditions"][0]["lastHeartbeatTime"] = f"2026-11-21T{beat}Z"
    item["status"]["images"] = [{"names": [f"registry.example.com/image-{number}"]} for number in range(50)]
    return item


def pod(name: str = "driver-1", *, labels: dict[str, str] | None = None, **status: Any) -> Manifest:
    item: Manifest = {**copy.deepcopy(DATA["pod"]), "status": status}
    item["metadata"] |= {"name": name, "uid": name, **({"labels": labels} if labels is not None else {})}
    return item


PODS = [pod(**status) for status in DATA["statuses"]]


@pytest.mark.parametrize("whole", PODS, ids=range(len(PODS)))
def test_what_keeps_a_pod_from_being_ready_is_still_known(whole: Manifest) -> None:
    kept = trimmed(whole)
    for question in (
        pod_view.is_ready,
        pod_view.cause,
        pod_view.phase,
        pod_view.was_rejected,
        pod_view.has_started,
        pod_view.failing_container,
        pod_view.node_of,
    ):
        assert question(kept) == question(whole), question.__name__


def test_a_node_tells_the_same_facts() -> None:
    whole = node(unschedulable=True)
    assert node_facts(trimmed(whole)) == node_facts(whole)


def test_images_managers_and_heartbeats_are_not_kept() -> None:
    text = json.dumps(trimmed(node()))
    assert "image-1" not in text
    assert 'kubelet"' not in text
    assert "lastHeartbeatTime" not in text
    assert len(text) < len(json.dumps(node())) / 3


def test_what_is_equal_on_many_nodes_is_held_once() -> None:
    """Ten thousand pods have a few kinds of labels, containers and conditions."""
    one, other = (
        trimmed(pod(f"driver-{number}", phase="Running", conditions=PODS[0]["status"]["conditions"])) for number in "12"
    )
    assert one["metadata"]["labels"] is other["metadata"]["labels"]
    assert one["spec"]["containers"] is other["spec"]["containers"]
    assert one["status"]["conditions"] is other["status"]["conditions"]
    assert one["metadata"]["name"] != other["metadata"]["name"]


def test_a_heartbeat_is_no_change() -> None:
    before, after = node(), node(beat="08:05:00")
    assert not is_same(before, after)
    assert is_same(trimmed(before), trimmed(after))
    assert not is_same(trimmed(before), trimmed(node(unschedulable=True)))


@pytest.mark.parametrize("component", ["driver", "toolkit", "device_plugin", "validator", "device_plugin_validation"])
def test_what_verdicts_stand_on_keeps_its_times(component: str) -> None:
    """Other pods tell no time, so that many have the same status."""
    states = [{"terminated": ENDED}, {"running": {"startedAt": ENDED["startedAt"]}}]
    ran = [{"name": f"c{number}", "state": state} for number, state in enumerate(states)]

    def kept(name: str) -> list[Any]:
        found = trimmed(pod(labels={STACK: "prod", "gpu-provision.io/component": name}, initContainerStatuses=ran))
        return [each["state"] for each in found["status"]["initContainerStatuses"]]

    assert kept("gfd") == [{"terminated": {"exitCode": 1, "message": "no headers"}}, {"running": {}}]
    ended = {key: value for key, value in ENDED.items() if key != "containerID"}
    assert kept(component) == [{"terminated": ended}, states[1]]


@pytest.mark.parametrize(("component", "is_kept"), [("driver", True), ("validator", False)])
def test_when_a_driver_got_ready_is_known(component: str, *, is_kept: bool) -> None:
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": ENDED["startedAt"]}
    whole = pod(labels={COMPONENT: component, STACK: "prod"}, phase="Running", conditions=[ready])
    (kept,) = trimmed(whole)["status"]["conditions"]
    assert ("lastTransitionTime" in kept) is is_kept
