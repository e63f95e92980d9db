"""Where a run did something else than its plan had said."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from gpu_provision.sandbox.apiserver.request_log import LoggedRequest
from tests.promises.writes import (
    VALIDATION,
    VALIDATOR,
    Cluster,
    Document,
    Write,
    asked,
    moved,
    promised,
    rolled_out,
    validated_first,
)

_LABELS = ("nvidia.com/gpu.deploy.", "nvidia.com/gpu.present", "gpu-provision.io/", "example.com/")
"""Beginnings of the labels that the tool writes; the state of upgrades, which a rollout covers, is none of them."""

_NAMED_ALONE = "nfd"
"""The component with several workloads on a node; all others have one there, whatever it is called."""


def faults(
    plan: Document, run: Document, requests: Sequence[LoggedRequest], before: Cluster, after: Cluster
) -> Iterator[str]:
    """Yield the differences between the JSON of a plan and what a run of it did, by its JSON and its requests."""
    said, done = set(promised(plan, before)), set(asked(requests, before, after))
    yield from (f"promised, not done: {write}" for write in sorted(said - done))
    replaced = {Write("delete", VALIDATOR, "", node) for node in validated_first(plan)}
    yield from (f"done, not promised: {write}" for write in sorted(done - said - replaced))
    yield from _differences("label", _labels_said(plan), _labels_done(before, after))
    yield from _differences("host", _hosts(plan), _hosts(run))
    yield from _restarts(plan, before, after)


def _differences(what: str, said: Mapping[Any, Any], done: Mapping[Any, Any]) -> Iterator[str]:
    for key in sorted({*said, *done}):
        if said.get(key) != done.get(key):
            yield f"{what} {key}: said {said.get(key)}, did {done.get(key)}"


def _labels_said(plan: Document) -> dict[tuple[str, str], tuple[str | None, str | None]]:
    fields = (
        (change["node"], field)
        for change in plan["changes"]
        if change["object"]["kind"] == "Node"
        for field in change["fields"]
        if field["path"].startswith("metadata.labels")
    )
    said = {(node, field["path"].split('"')[1]): (field["old"], field["new"]) for node, field in fields}
    return {key: values for key, values in said.items() if key[1].startswith(_LABELS)}


def _labels_done(before: Cluster, after: Cluster) -> dict[tuple[str, str], tuple[str | None, str | None]]:
    return {
        (node, key): (before.labels[node].get(key), now.get(key))
        for node, now in after.labels.items()
        for key in {*before.labels[node], *now}
        if key.startswith(_LABELS) and before.labels[node].get(key) != now.get(key)
    }


def _hosts(told: Document) -> dict[str, list[str]]:
    return {host["host"]: host["changes"] for host in told["hosts"] if host["changes"]}


def _restarts(plan: Document, before: Cluster, after: Cluster) -> Iterator[str]:
    """Yield the daemon pods that restarted unsaid, and those that did not.

    On a node whose driver restarts, the driver manager ends the other pods of the stack.
    """
    old, new = _daemons(before), _daemons(after)
    done = {key for key in old.keys() & new.keys() if old[key] != new[key]}
    said = {
        (_workload(each["component"], each["object"]["name"]), node)
        for each in _updates(plan)
        for node in each["nodes"]
    }
    said |= {(VALIDATOR, node) for node in validated_first(plan)}
    swept = rolled_out(plan) | moved(plan)
    yield from (f"restarted unsaid: {key}" for key in sorted(done - said) if not _is_on(swept, key))
    yield from (f"said to restart: {key}" for key in sorted((said & old.keys() & new.keys()) - done))


def _is_on(nodes: Collection[str], key: tuple[str, str]) -> bool:
    return key[1] in nodes and not key[0].startswith((_NAMED_ALONE, VALIDATOR))


def _updates(plan: Document) -> Iterator[Document]:
    return (each for each in plan["changes"] if each["action"] == "update" and each["object"]["kind"] == "DaemonSet")


def _workload(component: str, name: str) -> str:
    return f"{component} {name}" if component == _NAMED_ALONE else component


def _daemons(cluster: Cluster) -> dict[tuple[str, str], str]:
    return {
        (_workload(pod.component, pod.owner), pod.node): pod.uid
        for pod in cluster.pods.values()
        if pod.component != VALIDATION and not pod.is_leaving
    }
