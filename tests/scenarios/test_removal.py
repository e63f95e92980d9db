"""A stack is removed: what was there before is there, and nothing else; each test applies it again."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpu_provision.destroy.discovery import DestroyOptions, discover
from gpu_provision.destroy.runner import DestroyRunner
from gpu_provision.inventory import load
from gpu_provision.kube import lock
from gpu_provision.kube.client import connect
from gpu_provision.kube.transport import Connection
from gpu_provision.model import codes
from tests.scenarios.world import OPERANDS, USES_GPU, World, without

NFD, THEIRS = "node-feature-discovery", "theirs"
Dump = dict[str, Any]

# What every cluster writes all the time, and what an object has that is created again.
_PASSING_KINDS = frozenset({"Event", "Lease", "Endpoints", "EndpointSlice", "NodeMetrics", "PodMetrics"})
_PASSING = frozenset({"resourceVersion", "managedFields", "generation", "status"})


@pytest.fixture(scope="module")
def before(world: World) -> Dump:
    """The cluster before the first apply, with objects, labels and a cordon of others in it."""
    world.give_rights("--destroy")
    world.submit({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": THEIRS}})
    world.submit(Path(__file__).with_suffix(".yaml").read_text())
    world.api.label("node", "t4-1", labels={"nvidia.com/gpu.deploy.dcgm": "false", "team": "a", "nvidia.com/mine": "1"})
    world.api.annotate("node", "t4-1", annotations={"nvidia.com/note": "1"})
    world.api.cordon("cpu-1", "h100-1")
    world.until(lambda: _controllers_have_seen_it(world))
    return dump(world)


def _controllers_have_seen_it(world: World) -> bool:
    """Whether controllers have added what they add to new objects: revisions, tokens, authorities, taints."""
    workloads = world.json("daemonsets,deployments", "-n", THEIRS)["items"]
    observed = all(item.get("status", {}).get("observedGeneration") for item in workloads)
    return observed and _is_furnished(world) and _is_settled(world)


def _is_furnished(world: World) -> bool:
    """Whether the namespace has all that the one has that was there before: servers since 1.24 make no tokens."""
    here, first = (world.json("serviceaccounts,configmaps", "-n", name)["items"] for name in (THEIRS, "default"))
    return _furniture(first) | {("ServiceAccount", "theirs", "secrets" in first[0])} <= _furniture(here)


def _furniture(items: list[dict[str, Any]]) -> set[tuple[str, str, bool]]:
    return {(item["kind"], item["metadata"]["name"], "secrets" in item) for item in items}


def _has_its_taints(node: dict[str, Any]) -> bool:
    """Whether a node's taints are those of its cordon; it is born with one that says it is not ready."""
    keys = {taint["key"].removeprefix("node.kubernetes.io/") for taint in node["spec"].get("taints", ())}
    return "not-ready" not in keys and ("unschedulable" in keys) == bool(node["spec"].get("unschedulable"))


def _is_settled(world: World) -> bool:
    """Whether controllers have added what they add to new namespaces and nodes."""
    names = [each["metadata"]["name"] for each in world.json("namespaces")["items"]]
    found = [_furniture(world.json("serviceaccounts,configmaps", "-n", name)["items"]) for name in names]
    wanted = found[names.index("default")]
    return all(wanted <= each for each in found) and all(map(_has_its_taints, world.json("nodes")["items"]))


def settled_dump(world: World) -> Dump:
    """Return the dump of a cluster to which nothing has happened but new namespaces and nodes."""
    world.until(lambda: _is_settled(world))
    return dump(world)


def dump(world: World) -> Dump:
    """Return every object of every kind that can be listed, without what passes."""
    return {
        f"{item['apiVersion']} {item['kind']} {item['metadata'].get('namespace', '')}/{item['metadata']['name']}": (
            without(item, _PASSING)
        )
        for item in world.api.everything()
        if item["kind"] not in _PASSING_KINDS
    }


def without_definitions_of_nfd(found: Dump) -> Dump:
    """Leave out what ``destroy`` leaves: others may have objects of these definitions."""
    return {key: item for key, item in found.items() if "nfd.k8s-sigs.io" not in key}


def assert_restored(world: World, before: Dump) -> None:
    """Everything is as it was, once controllers have taken what goes with it: taints, tokens, revisions."""
    with contextlib.suppress(AssertionError):  # what differs is in the answer below
        world.until(lambda: dump(world) == before)
    assert dump(world) == before


def destroy(world: World, *arguments: str, code: int = 0) -> Any:
    words = ("destroy", "--yes", "--cluster-only", "--json", *arguments, "-i", str(world.inventory))
    answer = world.cli(*words)
    assert answer.code == code, answer.text
    return answer.document


def places_of(document: Any, code: str) -> list[str]:
    """Return where the findings of a code are."""
    return [each["where"] for each in (*document["errors"], *document["warnings"]) if each["code"] == code]


def test_an_unprovisioned_cluster_has_nothing_to_remove(world: World, before: Dump) -> None:
    writes = len(world.writes())
    assert destroy(world, "--crds")["changed"] == 0
    assert len(world.writes()) == writes
    assert dump(world) == before


def test_gpu_work_forbids_it_until_it_may_be_evicted(world: World, before: Dump) -> None:
    """Nothing is written before; with --evict pods go once they can get no GPU any more. Then all is as before."""
    world.apply("--cluster-only", check=True)
    world.deploy("train", USES_GPU, namespace=THEIRS, nodeSelector={"kubernetes.io/hostname": "t4-1"})
    world.until(lambda: _phase(world) == "Running")
    world.api.label("node", "h100-1", labels={"nvidia.com/gpu.present": "others"})
    world.api.cordon("t4-2")
    writes = len(world.writes())
    refused = destroy(world, "--dry-run", code=1)
    assert places_of(refused, codes.GPUS_IN_USE) == ["Node t4-1"]
    assert places_of(destroy(world, code=1), codes.GPUS_IN_USE) == ["Node t4-1"]
    assert len(world.writes()) == writes
    world.budget("train", namespace=THEIRS, minAvailable=1)
    world.until(lambda: world.json("pdb", "train", "-n", THEIRS).get("status", {}).get("expectedPods"))
    foreseen = destroy(world, "--evict", "--dry-run")
    assert places_of(foreseen, codes.BUDGET_HOLDS) == [f"PodDisruptionBudget {THEIRS}/train"]
    assert places_of(foreseen, codes.UNMANAGED_PODS) == []
    kept = destroy(world, "--evict", "--timeout", "2", code=1)["errors"][0]
    assert (kept["code"], "disruption budget" in kept["evidence"]) == (codes.GPUS_IN_USE, True)
    assert world.json("daemonsets", "-n", OPERANDS, "-l", "app=nvidia-driver-daemonset")["items"], "no driver went"
    world.api.delete("pdb", "train", "-n", THEIRS)
    removed = destroy(world, "--evict", "--crds")
    assert removed["evicted"][0].startswith(f"{THEIRS}/train-")
    assert places_of(removed, codes.TAKEN_OVER) == ["Node t4-1", "Node h100-1"]
    world.api.delete("deployment", "train", "-n", THEIRS)
    world.until(lambda: not world.json("pods,replicasets", "-n", THEIRS, "-l", "app=train")["items"])
    assert world.json("node", "h100-1")["metadata"]["labels"]["nvidia.com/gpu.present"] == "others"
    assert world.json("node", "t4-2")["spec"]["unschedulable"]
    world.api.label("node", "h100-1", labels={"nvidia.com/gpu.present": None})
    world.api.uncordon("t4-2")
    assert_restored(world, before)
    writes = len(world.writes())
    assert destroy(world, "--crds")["changed"] == 0
    assert len(world.writes()) == writes, "the removal after it writes nothing"
    status = world.status()
    assert not status["installed"]
    assert {row["node"] for row in status["nodes"] if row["cordoned_by"]} == {"cpu-1", "h100-1"}
    drift = world.cli("drift", "--detailed-exitcode", "--cluster-only", "-i", str(world.inventory))
    assert (drift.code, drift.out.count("\n")) == (0, 1), drift.text
    assert drift.out.startswith("Not installed: ")


def _phase(world: World) -> str:
    pods = world.json("pods", "-n", THEIRS, "-l", "app=train")["items"]
    return str(pods[0]["status"].get("phase")) if pods else ""


@pytest.mark.real  # for the time it takes
def test_an_object_that_stays_is_reported_with_its_cause(world: World, before: Dump) -> None:
    """And what tells that there was a stack stays, for the next run to go on from."""
    world.apply("--cluster-only", check=True)
    pod = world.pods("nvidia-operator-validator")[0]["metadata"]["name"]
    world.api.patch("pod", pod, "-n", OPERANDS, patch={"metadata": {"finalizers": ["o.rg/x"]}})
    stuck = destroy(world, "--timeout", "40", code=1)  # all other pods end within that
    assert places_of(stuck, codes.NOT_GONE) == [f"Pod {OPERANDS}/{pod}"]
    assert "waits for the finalizer o.rg/x" in stuck["errors"][0]["evidence"]
    assert f"ConfigMap {OPERANDS}/{world.name}" in places_of(stuck, codes.LEFT_OVER)
    world.api.patch("pod", pod, "-n", OPERANDS, patch={"metadata": {"finalizers": None}})
    crds = "--data", "gpu_remove_crds=true"
    shown = world.pyinfra("--dry", *crds, deploy="teardown.py", check=True).text
    assert f"Will remove Namespace {OPERANDS}" in shown or f"Will remove ConfigMap {OPERANDS}/{world.name}" in shown
    world.pyinfra("-y", *crds, deploy="teardown.py", check=True)
    assert_restored(world, before)


class Killed(SystemExit):
    """The process ends here, with whatever it had in mind; a thread that ends so says nothing."""


@pytest.fixture
def mortal(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Have what this process does from now on end after so many writes, as if it was killed: none is sent any more."""
    send = Connection._send_once
    dead = re.sub(r"pid \d+", "pid 999999999", lock.process_identity())
    monkeypatch.setattr(lock, "process_identity", lambda: dead)

    def kill_after(writes: int) -> None:
        left = [writes]

        def once(self: Connection, verb: str, path: str, *arguments: Any, **options: Any) -> Any:
            left[0] -= verb != "GET"
            if left[0] < 0 and verb != "GET":
                raise Killed
            return send(self, verb, path, *arguments, **options)

        monkeypatch.setattr(Connection, "_send_once", once)

    return kill_after


@pytest.mark.real  # for the time it takes
def test_repeatedly_killed_removals_reach_the_same_state(
    world: World, before: Dump, mortal: Callable[[int], None]
) -> None:
    """Wherever it was; and what others have put into our namespaces and custom resources stays with these."""
    world.apply("--cluster-only", check=True)
    world.submit({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "notes", "namespace": NFD}})
    rule = {"apiVersion": "nfd.k8s-sigs.io/v1alpha1", "kind": "NodeFeatureRule", "metadata": {"name": "theirs"}}
    world.submit({**rule, "spec": {"rules": []}})
    inventory, terms, deaths, result = load(world.inventory), DestroyOptions(crds=True), 0, None
    kept = discover(connect(str(world.account())), inventory, terms).kept
    while result is None:
        mortal(7)
        cluster = connect(str(world.account()))
        try:
            result = DestroyRunner(cluster, inventory, discover(cluster, inventory, terms), terms).execute()
        except Killed:
            deaths += 1
    assert 8 < deaths < 40
    (definition,) = (each for each in kept if each.where.startswith("CustomResourceDefinition"))
    assert (definition.code, definition.evidence) == (codes.SHARED_OBJECT_STAYS, "NodeFeatureRule theirs")
    assert f"Namespace {NFD}" in {each.where for each in kept if each.code == codes.SHARED_OBJECT_STAYS}
    assert dump(world)[f"v1 ConfigMap {NFD}/notes"]
    assert world.json("namespace", NFD)["metadata"].get("labels", {}).keys() <= {"kubernetes.io/metadata.name"}
    world.api.delete("crd", "nodefeaturerules.nfd.k8s-sigs.io")
    world.api.delete("configmap", "notes", "-n", NFD)
    if f"v1 Namespace /{NFD}" not in before:
        world.api.delete("namespace", NFD)
    assert_restored(world, before)
