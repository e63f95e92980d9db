"""What a run sees of the cluster while it goes on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpu_provision.components.labels import DEPLOY_DRIVER, HOST_DRIVER, VALIDATED
from gpu_provision.kube.informer import Mirror, News, Scope
from gpu_provision.kube.observe import NODE
from gpu_provision.model.cluster import Kind, Manifest, ObjectRef, Target
from gpu_provision.planning.observed import Observed
from gpu_provision.planning.plan import plan
from gpu_provision.planning.prepare import prepare
from gpu_provision.planning.states import Desired
from gpu_provision.reconcile.reading import Reading
from gpu_provision.reconcile.situation import View
from gpu_provision.rollout.states import STATE
from tests.components.builders import fleet, inventory, nfd_labels, with_spec


class Showing(Mirror):
    """A mirror that shows one node."""

    def __init__(self) -> None:
        """Show nothing yet."""
        self.node: Manifest = {}

    def since(self, what: Kind | Scope, seen: int) -> News:
        """Return everything."""
        return News(seen, self.of(what), is_whole=True)

    def of(self, kind: Kind | Scope) -> dict[ObjectRef, Manifest]:
        """Return the node."""
        return {ObjectRef("v1", "Node", "", "t4-1"): self.node} if kind == NODE else {}


def seen(view: View, version: int, *, driver: str) -> dict[str, Any]:
    """Return the labels that the node is to get when its driver's deploy label says so."""
    mirror = Showing()
    found = {**nfd_labels(), DEPLOY_DRIVER: driver}
    mirror.node = {"metadata": {"name": "t4-1", "uid": "u", "resourceVersion": str(version), "labels": found}}
    return dict(view.look(mirror, {}, {}).seen.node_labels["t4-1"])


def view(host_driver: str) -> View:
    """Return the view of a run with ``driver.enabled: auto`` that has read the host."""
    facts = replace(fleet(), host_drivers={"t4-1": host_driver})
    context, desired = prepare(with_spec("driver", prefer_host=True), facts)
    observed = Observed(cluster="c", facts=facts)
    return View(Reading(context, desired, observed, plan(context, desired, observed)))


def test_the_driver_managers_word_is_believed_when_it_comes_after_our_reading() -> None:
    """A driver where we did not look: to contradict would be a quarrel without an end."""
    looking = view("")
    assert seen(looking, 1, driver="true")[DEPLOY_DRIVER] == "true"
    after = seen(looking, 2, driver="pre-installed")
    assert DEPLOY_DRIVER not in after
    assert "gpu-provision.io/driver" not in after


def test_an_old_word_of_the_driver_managers_is_taken_back() -> None:
    """It was there before we looked, and nobody else ever removes it."""
    looking = view("")
    assert seen(looking, 1, driver="pre-installed")[DEPLOY_DRIVER] == "true"
    assert seen(looking, 2, driver="true")["gpu-provision.io/driver"] == "ubuntu22.04"


def test_what_was_read_counts_for_the_whole_run() -> None:
    """Also while the labels do not say it yet."""
    looking = view("550.90.07")
    assert seen(looking, 1, driver="true")[HOST_DRIVER] == "550.90.07"
    assert seen(looking, 2, driver="true")[DEPLOY_DRIVER] == "pre-installed"


@pytest.mark.parametrize("key", [STATE, VALIDATED])
def test_what_a_run_writes_on_nodes_one_by_one_makes_no_manifest_anew(key: str) -> None:
    """A thousand nodes go through ten states of a rollout each, and are told to be validated."""
    looking, mirror = view(""), Showing()

    def desired(version: int, value: str) -> Desired:
        found = {**nfd_labels(), key: value}
        mirror.node = {"metadata": {"name": "t4-1", "uid": "u", "resourceVersion": str(version), "labels": found}}
        return looking.look(mirror, {}, {}).seen.desired

    assert desired(1, "upgrade-required") is desired(2, "cordon-required")


def test_a_node_of_which_nothing_has_changed_is_the_very_same_target() -> None:
    """Whatever is read off it then holds on."""
    looking, mirror = view(""), Showing()

    def target(version: int, **labels: str) -> Target:
        found = {**nfd_labels(), **labels}
        metadata = {"name": "t4-1", "uid": "u", "resourceVersion": str(version), "labels": found}
        mirror.node = {"metadata": metadata}
        return next(each for each in looking.look(mirror, {}, {}).seen.context.targets if each.name == "t4-1")

    assert target(1) is target(1)
    assert target(1) is target(2), "the node was written, and is as it was"
    assert target(2) is not target(3, fleet="late")
    assert target(3, fleet="late").facts == target(4, fleet="late").facts


def test_a_look_does_not_go_by_a_list_that_was_read_before_the_run() -> None:
    """A run creates objects that the list lacks, and has to undo edits of them."""
    context, desired = prepare(inventory(), fleet())
    service = ObjectRef("v1", "Service", "ns", "of-the-stack")
    read = Observed(cluster="c", facts=fleet(), namespaces=frozenset({"ns"}), names={(service.type, "ns"): frozenset()})
    assert read.lacks(service)
    looking = View(Reading(context, desired, read, plan(context, desired, read)))
    mirror = Showing()
    mirror.node = {"metadata": {"name": "t4-1", "uid": "u", "resourceVersion": "1", "labels": nfd_labels()}}
    assert not looking.look(mirror, {}, {}).seen.observed.lacks(service)
    assert not replace(read, members={service: {}}).lacks(service)
