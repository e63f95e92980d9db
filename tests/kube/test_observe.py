"""What a Node object says about its machine."""

from __future__ import annotations

import copy
import threading
from dataclasses import asdict, replace
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest

from gpu_provision.kube.client import KubeClient, ObjectList
from gpu_provision.kube.observe import (
    ListedObjects,
    find_absent,
    node_facts,
    observe,
    observe_facts,
    os_of_image,
    read_validations,
    validations_of,
    write_validations,
)
from gpu_provision.model.cluster import ClusterFacts, Kind, ObjectRef
from gpu_provision.model.findings import Finding, ForbiddenError
from gpu_provision.model.inventory import Inventory, OperatingSystem
from gpu_provision.planning.applyset import PART_OF, applyset_id, parent
from tests import data_file
from tests.components.builders import inventory, with_spec
from tests.kube.conftest import config_map

DATA = data_file.document(Path(__file__).with_suffix(".yaml").read_text())


@pytest.mark.parametrize(("image", "tag"), DATA["systems"])
def test_the_operating_system_is_read_off_its_pretty_name(image: str, tag: str) -> None:
    found = os_of_image(image)
    assert (found.tag if found else "") == tag


@pytest.mark.parametrize(("image", "release"), DATA["releases"])
def test_the_release_of_coreos_is_the_value_of_a_label(image: str, release: str) -> None:
    """A node reports any text, which a DaemonSet and a command for administrators get."""
    assert node_facts({"metadata": {"name": "n"}, "status": {"nodeInfo": {"osImage": image}}}).ostree == release


@pytest.mark.parametrize("case", DATA["nodes"], ids=itemgetter("name"))
def test_what_is_read_of_a_node(case: dict[str, Any]) -> None:
    facts = asdict(node_facts(case["node"]))
    facts |= {"os": OperatingSystem(**facts["os"]).tag if facts["os"] else None, "taints": list(facts["taints"])}
    assert {key: facts[key] for key in case["facts"]} == case["facts"]


@pytest.mark.parametrize(("version", "labels", "distribution"), DATA["distributions"])
def test_the_distribution_is_read_off_the_kubelets_version(
    version: str, labels: dict[str, str], distribution: str
) -> None:
    node = {"metadata": {"name": "a", "labels": labels}, "status": {"nodeInfo": {"kubeletVersion": version}}}
    assert node_facts(node).distribution == distribution


KINDS = (Kind("v1", "ConfigMap"), Kind("apps/v1", "DaemonSet"), Kind("v1", "Node"), Kind("v1", "Pod"))
WANTED = tuple(ObjectRef(*kind, "default", "wanted") for kind in KINDS)
TOP = ObjectRef("v1", "ConfigMap", "default", "sandbox")


def in_default(stack: Inventory) -> Inventory:
    return replace(stack, cluster=replace(stack.cluster, namespace="default"))


def test_only_what_is_referred_to_and_was_not_read_is_asked_for(cluster: KubeClient) -> None:
    """Of a Secret, whether it is there; nothing where there is no reference."""
    stack = in_default(with_spec("device_plugin", config_name="read-before"))
    refs = [ObjectRef("v1", kind, "default", name) for kind, name in REFERRED]
    cluster.create({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "there", "namespace": "default"}})
    before = cluster.requests
    assert find_absent(cluster, stack, ClusterFacts(), ()) == (frozenset(), frozenset())
    assert cluster.requests == before
    missing, unread = find_absent(cluster, stack, ClusterFacts(), refs)
    assert {ref.name for ref in missing} == {"read-before", "nowhere"}
    assert (unread, cluster.requests - before) == (frozenset(), 2)
    missing, unread = find_absent(_refusing(cluster), stack, ClusterFacts(), refs)
    assert ({ref.name for ref in missing}, {ref.name for ref in unread}) == ({"read-before"}, {"there", "nowhere"})


REFERRED = (("ConfigMap", "read-before"), ("Secret", "there"), ("Secret", "nowhere"))


def _refusing(cluster: KubeClient) -> KubeClient:
    def exists(ref: ObjectRef) -> bool:
        raise ForbiddenError(Finding(code="GP303", what=f"may not get {ref}"))

    refusing = copy.copy(cluster)
    refusing.exists = exists  # type: ignore[method-assign]
    return refusing


def test_where_a_stack_is_new_the_names_of_all_objects_are_known(cluster: KubeClient) -> None:
    """Nothing has to be tried to see whether anything stands in its way."""
    stack, top = replace(in_default(inventory()), name="new"), ObjectRef("v1", "ConfigMap", "default", "new")
    cluster.create(config_map("in-the-way"))
    found = observe(cluster, stack, ClusterFacts(), WANTED, top)
    assert not found.members
    assert not found.is_absent(top._replace(name="in-the-way"))
    assert found.is_absent(top._replace(name="not-there"))
    assert found.is_absent(top._replace(namespace="not-there"))
    assert not found.is_absent(ObjectRef("v1", "Service", "default", "of a kind that was not listed"))


def test_where_there_is_no_namespace_nothing_is_read_in_it(cluster: KubeClient) -> None:
    stack = inventory()
    listed: ListedObjects = {}
    wanted = [ref._replace(namespace="none") for ref in WANTED]
    before = cluster.requests
    seen = observe(cluster, stack, ClusterFacts(), wanted, TOP._replace(namespace="none"), listed)
    assert (cluster.requests - before, seen.members, seen.lock_version) == (1, {}, ""), "the namespaces"
    assert {kind.kind: listing.resource_version for kind, listing in listed.items()} == dict.fromkeys(
        ("ConfigMap", "DaemonSet", "Pod"), "0"
    )


def test_kinds_of_an_earlier_version_are_looked_at_as_well(cluster: KubeClient) -> None:
    """So that what is not desired any more can be pruned."""
    stack = replace(in_default(inventory()), name="earlier")
    account = {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": "old", "namespace": "default", "labels": {PART_OF: applyset_id("earlier", "default")}},
    }
    cluster.create(account)
    top = ObjectRef("v1", "ConfigMap", "default", "earlier")
    assert not observe(cluster, stack, ClusterFacts(), WANTED, top).members
    cluster.apply(parent("earlier", "default", [ObjectRef("v1", "ServiceAccount", "default", "old")]))
    found = observe(cluster, stack, ClusterFacts(), WANTED, top).members
    assert {ref.kind for ref in found} == {"ServiceAccount", "ConfigMap"}


@pytest.mark.parametrize("exists", [True, False])
def test_config_maps_that_the_inventory_names_are_read(cluster: KubeClient, *, exists: bool) -> None:
    name = f"metrics-{exists}".lower()
    if exists:
        cluster.create(config_map(name, data={"dcgm-metrics.csv": "A"}))
    facts = observe_facts(cluster, in_default(with_spec("dcgm_exporter", metrics_config=name)))
    assert facts.config_maps == ({name: {"dcgm-metrics.csv": "A"}} if exists else {})
    assert facts.version.startswith("v1.")


def test_the_monitoring_api_does_not_wait_for_nodes(cluster: KubeClient) -> None:
    """The list of a thousand nodes takes a while, and a request that waits for it lengthens each plan."""
    reading: Any = copy.copy(cluster)
    asked = threading.Event()

    def list_nodes(*words: Any, **options: Any) -> ObjectList:
        assert asked.wait(timeout=60), "the list of nodes was over before the monitoring API was asked"
        return cluster.list(*words, **options)

    def served_resources(_: str) -> frozenset[str]:
        asked.set()
        return frozenset({"servicemonitors"})

    reading.list = list_nodes
    reading.served_resources = served_resources
    reading.get_path = lambda _: {"groups": [{"name": "monitoring.coreos.com"}]}
    assert observe_facts(reading, in_default(inventory())).resources == {"servicemonitors.monitoring.coreos.com"}


def test_only_a_keyed_digest_of_a_secret_is_kept(cluster: KubeClient) -> None:
    """It changes with the content alone; equal content of another Secret has another one."""
    ref = ObjectRef("v1", "Secret", "default", "licence")
    stack = in_default(with_spec("driver", licensing_config="licence"))

    def digest() -> str:
        return observe_facts(cluster, stack).secrets["licence"]

    assert observe_facts(cluster, stack).secrets == {}
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "licence", "namespace": "default"}}
    cluster.create({**secret, "data": {"gridd.conf": "QT0x"}})
    first = digest()
    assert len(first) == 32
    cluster.merge_patch(ref, {"metadata": {"labels": {"touched": "yes"}}})
    assert digest() == first
    cluster.merge_patch(ref, {"data": {"gridd.conf": "QT0y"}})
    second = digest()
    cluster.delete(ref)
    cluster.create({**secret, "data": {"gridd.conf": "QT0y"}})
    assert len({first, second, digest()}) == 3


def test_what_is_written_is_read(cluster: KubeClient) -> None:
    stack, passed = in_default(replace(inventory(), name="written")), {("gfd", "t4-1"): "a1", ("gfd", "h100-1"): "c3"}
    assert read_validations(cluster, stack) == {}
    before = cluster.requests
    write_validations(cluster, stack, passed)
    assert cluster.requests == before + 1
    assert read_validations(cluster, stack) == passed
    write_validations(cluster, stack, {("gfd", "h100-1"): "c4"})
    assert read_validations(cluster, stack) == {("gfd", "h100-1"): "c4"}, "a node has left"


@pytest.mark.parametrize("damage", ["", "{", "[]", "null", "7", '"text"', '{"a": 1}'])
def test_a_damaged_entry_is_no_entry(damage: str) -> None:
    assert validations_of({"t4-1": damage, "h100-1": '{"gfd": "c3"}'}) == {("gfd", "h100-1"): "c3"}
