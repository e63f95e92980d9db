"""A stack's resource beside an inventory, and how it comes to say the same."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpu_provision.inventory import load
from gpu_provision.kube.client import Cluster
from gpu_provision.kube.errors import Outdated
from gpu_provision.model.cluster import ref_of
from gpu_provision.model.inventory import Inventory
from gpu_provision.operator.client import Resource, declare, look
from gpu_provision.operator.stack import back_to_of
from tests.operator.served import SANDBOX

NOW = load(SANDBOX)


def _stopping_after(failures: int) -> Inventory:
    return replace(NOW, text=f"{NOW.text}rollout: {{stop_after_failures: {failures}}}\n")


def test_a_plan_names_who_declares_what_it_would_change(by_flux: Cluster) -> None:
    """Refused without a word more; whoever takes over is told that it may not last."""
    for force, code in ((False, "GP304"), (True, "GP435")):
        found = look(by_flux, _stopping_after(7), force=force)
        assert found is not None
        (finding,) = found.findings
        assert (finding.code, "Flux's Kustomization gpu" in f"{finding.what} {finding.fix}") == (code, True)
    same = look(by_flux, _stopping_after(2), force=True)
    assert same is not None
    assert same.findings == ()


def test_what_brings_an_earlier_run_back_says_so_until_something_else_is_declared(by_flux: Cluster) -> None:
    """Whoever declares it, and whether or not the taking over has left something to change."""

    def declared(failures: int, back_to: int = 0) -> int:
        resource = look(by_flux, _stopping_after(failures), force=True)
        assert resource is not None
        return back_to_of(declare(by_flux, resource, force=True, back_to=back_to))

    assert declared(7, back_to=3) == 3
    assert declared(8) == 0
    assert declared(9, back_to=4) == 4
    live = look(by_flux, NOW, force=True)
    assert live is not None
    edited = by_flux.merge(ref_of(live.live), {"spec": {"rollout": {"stop_after_failures": 5}}})
    assert back_to_of(edited) == 0
    without = look(by_flux, NOW, force=True)
    assert without is not None
    assert back_to_of(declare(by_flux, without, force=True, back_to=6)) == 6


def test_a_controller_may_tell_its_status_between_the_look_and_the_write(by_flux: Cluster) -> None:
    """Also where something is taken out that the inventory does not say. Who changes the spec is not written over."""

    def looked() -> Resource:
        found = look(by_flux, _stopping_after(7), force=True)
        assert found is not None
        return found

    with_more = {"rollout": {"stop_after_failures": 2}, "history": {"keep": 5}}
    before = by_flux.merge(ref_of(looked().live), {"spec": with_more})
    resource = looked()
    by_flux.merge(ref_of(before), {"status": {"observedGeneration": 1}}, part="status")
    assert "keep" not in declare(by_flux, resource, force=True)["spec"].get("history", {})

    by_flux.merge(ref_of(before), {"spec": with_more})
    resource = looked()
    by_flux.merge(ref_of(before), {"spec": {"rollout": {"stop_after_failures": 4}}})
    with pytest.raises(Outdated):
        declare(by_flux, resource, force=True)


def test_a_resource_takes_no_value_of_this_machine(by_flux: Cluster) -> None:
    """An apply says so before it writes anything."""
    found = look(by_flux, replace(NOW, text=f"{NOW.text}driver: {{env: {{HOME: {{env: HOME}}}}}}\n"), force=False)
    assert found is not None
    assert [(each.code, each.where.rpartition(" ")[2]) for each in found.findings] == [("GP432", "driver.env.HOME.env")]
    assert found.wanted is None
