"""What holds for every component: the same five names, canonical manifests, one order."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

import pytest

from gpu_provision.components import COMPONENTS, problems, render_manifests, requirements
from gpu_provision.kube.observe import MEMBER_KINDS, NODE, POD
from gpu_provision.model.cluster import ClusterFacts, RenderContext, ref_of
from tests.components import builders

NAMES = [component.name for component in COMPONENTS]
EVERY = builders.case_context("with-every-setting").inventory

# An empty map is right here: emptyDir has no settings, and a CRD's status subresource is switched on by {}.
MEANINGFUL_EMPTIES = {"emptyDir", "status"}


def contexts() -> Iterator[RenderContext]:
    resources = frozenset({"servicemonitors.monitoring.coreos.com"})
    for chosen in (builders.inventory(), EVERY):
        yield builders.context(chosen)
        yield builders.context(chosen, replace(builders.fleet(), resources=resources))


def all_manifests() -> Iterator[dict[str, Any]]:
    for context in contexts():
        for manifests in render_manifests(context).values():
            yield from manifests


def test_every_kind_of_a_component_is_a_kind_of_members() -> None:
    """A run lists, prunes and removes objects of these kinds alone."""
    assert {ref_of(each).type for each in all_manifests()} <= MEMBER_KINDS | {NODE, POD}


def test_components_stand_in_dependency_order() -> None:
    """What is required comes before what requires it."""
    seen: set[str] = set()
    for component in COMPONENTS:
        assert set(component.requires) <= seen
        seen.add(component.name)


def test_a_component_that_is_off_passes_its_requirements_on() -> None:
    """With drivers on the hosts, the toolkit waits for the node labels and the reboots of OpenShift."""
    assert requirements(builders.inventory())["toolkit"] == ("driver",)
    assert requirements(builders.with_spec("driver", enabled=False))["toolkit"] == ("machine_config", "node_labels")
    off = requirements(builders.with_spec("nfd", enabled=False))
    assert off["node_labels"] == ("machine_config", "prerequisites")
    assert "nfd" not in off


def test_the_sandbox_has_no_problems() -> None:
    """A newcomer's first plan has no warnings."""
    assert problems(builders.context()) == ()
    assert problems(builders.context(facts=builders.fleet())) == ()


def test_manifests_hold_no_nulls_and_no_empties() -> None:
    """The server drops both, so they would be differences for ever."""
    for manifest in all_manifests():
        assert not list(empties(manifest)), manifest["metadata"]["name"]


def empties(value: Any, path: str = "") -> Iterator[str]:
    """Yield the paths of nulls, empty lists and maps, and empty environment values."""
    if isinstance(value, dict):
        for key, item in value.items():
            if item in (None, {}, []) and key not in MEANINGFUL_EMPTIES:
                yield f"{path}.{key}"
            yield from empties(item, f"{path}.{key}")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            if isinstance(item, dict) and item.get("value") == "":
                yield f"{path}[{index}].value"
            yield from empties(item, f"{path}[{index}]")


def test_manifests_are_plain_json() -> None:
    """Tuples, enums and dataclasses would survive Python but not the wire."""
    for manifest in all_manifests():
        assert json.loads(json.dumps(manifest)) == manifest


def test_manifests_leave_out_what_the_server_sets() -> None:
    """Such fields would be owned by us and yet belong to the server."""
    forbidden = {"serviceAccount", "creationTimestamp", "status", "clusterIP", "nodePort", "revisionHistoryLimit"}
    for manifest in all_manifests():
        if manifest["kind"] != "CustomResourceDefinition":
            assert not forbidden & set(keys(manifest))


def keys(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from keys(item)
    elif isinstance(value, list):
        for item in value:
            yield from keys(item)


def test_names_within_a_pod_are_unique() -> None:
    """A list whose items have keys cannot hold a key twice; the server refuses it."""
    for manifest in all_manifests():
        for pod in pod_specs(manifest):
            assert_unique([volume["name"] for volume in pod.get("volumes", ())])
            volumes = {volume["name"] for volume in pod.get("volumes", ())}
            for container in [*pod.get("initContainers", ()), *pod["containers"]]:
                assert_unique([entry["name"] for entry in container.get("env", ())])
                assert_unique([entry["mountPath"] for entry in container.get("volumeMounts", ())])
                assert {entry["name"] for entry in container.get("volumeMounts", ())} <= volumes


def pod_specs(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    if manifest["kind"] == "Pod":
        return [manifest["spec"]]
    return [manifest["spec"]["template"]["spec"]] if "template" in manifest.get("spec", {}) else []


def assert_unique(names: list[str]) -> None:
    assert len(names) == len(set(names)), names


def test_no_object_is_declared_twice() -> None:
    """Two components must not fight over one object."""
    for context in contexts():
        refs = [
            (manifest["kind"], manifest["metadata"].get("namespace"), manifest["metadata"]["name"])
            for manifests in render_manifests(context).values()
            for manifest in manifests
        ]
        assert_unique([str(ref) for ref in refs])


def test_selectors_select_the_own_pods_only() -> None:
    """A selector that matches no pod of its template is refused; one that matches another's would adopt it."""
    for context in contexts():
        workloads = [
            manifest
            for manifests in render_manifests(context).values()
            for manifest in manifests
            if manifest["kind"] in {"DaemonSet", "Deployment"}
        ]
        for one in workloads:
            selector = one["spec"]["selector"]["matchLabels"].items()
            selected = [
                other["metadata"]["name"]
                for other in workloads
                if selector <= other["spec"]["template"]["metadata"]["labels"].items()
            ]
            assert selected == [one["metadata"]["name"]]


@pytest.mark.parametrize("seed", range(5))
def test_manifests_do_not_depend_on_the_order_of_anything(seed: int) -> None:
    """Equal meaning is equal value: sorting a file's nodes must not be a change."""
    chosen, facts = EVERY, builders.fleet()
    assert render_manifests(builders.context(chosen, facts)) == render_manifests(
        builders.context(shuffled(chosen, seed), shuffled(facts, seed))
    )


def shuffled(value: Any, seed: int) -> Any:
    """Return a copy with nodes, and the keys of every map, in another order."""
    rng = random.Random(seed)  # noqa: S311 -- an order for a test, not a secret
    if isinstance(value, dict):
        items = list(value.items())
        rng.shuffle(items)
        return {key: shuffled(item, seed) for key, item in items}
    if hasattr(value, "__dataclass_fields__"):
        changed = {field.name: shuffled(getattr(value, field.name), seed) for field in fields(value)}
        if "nodes" in changed:
            changed["nodes"] = tuple(rng.sample(changed["nodes"], len(changed["nodes"])))
        return type(value)(**changed)
    return value


def test_offline_and_online_differ_only_in_what_nodes_alone_know() -> None:
    """A rendered folder is what a run applies, but for validations, which name a machine and its boot."""
    offline, online = render_manifests(builders.context()), render_manifests(builders.context(facts=builders.fleet()))
    others = {"driver_validation", "device_plugin_validation", "dcgm", "startup_taint"}
    others |= {"machine_config", "mig_manager", "mps_control_daemon", "node_status_exporter", "extra_objects"}
    for name in set(NAMES) - others:
        assert offline[name] == online[name]


def test_building_everything_for_a_large_fleet_stays_cheap() -> None:
    """Each target is looked at a fixed number of times: ten times the nodes is not a hundred times the calls."""
    assert calls_for(200) < 12 * calls_for(20)


def calls_for(count: int) -> int:
    """Return how often a node's labels are read while everything is built for ``count`` nodes."""
    reads = 0

    class Counted(dict[str, str]):
        def get(self, *args: Any) -> Any:
            nonlocal reads
            reads += 1
            return super().get(*args)

    nodes = tuple(builders.node(f"gpu-{number:03}", labels=Counted(builders.nfd_labels())) for number in range(count))
    listed = tuple(replace(builders.NODES[0], name=node.name) for node in nodes)
    render_manifests(builders.context(builders.inventory(nodes=listed), ClusterFacts(nodes=nodes)))
    return reads
