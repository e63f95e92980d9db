"""MachineConfigs: which pools get one, what is found before anything is written, and which nodes reboot."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpu_provision.components import machine_config, render_manifests
from gpu_provision.components.machine_config import ROLE, content_digests, identity_of, reboot_effects
from gpu_provision.components.targets import context
from gpu_provision.model.cluster import Manifest, RenderContext
from gpu_provision.model.openshift import MachinePool, OpenShiftFacts, RenderedConfig
from gpu_provision.model.openshift_specs import OpenShiftSection
from tests import data_file
from tests.components import builders

DATA = data_file.document(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))


def machine_pool(fields: dict[str, Any]) -> MachinePool:
    roles = {"key": ROLE, "operator": "In", "values": fields.pop("roles")}
    return MachinePool(**fields | {"nodes": tuple(fields["nodes"]), "config_selector": {"matchExpressions": [roles]}})


def case_context(case: dict[str, Any]) -> RenderContext:
    pools = tuple(machine_pool(dict(each)) for each in case.get("pools", ()))
    openshift = OpenShiftFacts(version="4.18.9", pools=pools)
    facts = replace(builders.fleet(), openshift=None if case.get("kubernetes") else openshift)
    known = context(builders.inventory_with(case.get("inventory", {})), facts)
    made = render_manifests(known).get(machine_config.NAME, [])
    held = RenderedConfig(frozenset(identity_of(each).digest for each in made))
    current = replace(openshift, rendered=dict.fromkeys(case.get("current", ()), held))
    return replace(known, facts=replace(facts, openshift=current)) if "current" in case else known


def findings_of(known: RenderContext) -> dict[str, str]:
    section = machine_config.spec(known.inventory)
    found = machine_config.problems(section, known) if section else ()
    assert len({each.code for each in found}) == len(found), "one cause is one finding"
    return {each.code: str(each) for each in found}


@pytest.mark.parametrize("case", DATA["cases"], ids=lambda case: case["case"])
def test_findings_before_anything_is_written(case: dict[str, Any]) -> None:
    found = findings_of(case_context(case))
    assert found.keys() == case["finds"].keys()
    for code, words in case["finds"].items():
        assert [word for word in words if word not in found[code]] == []


def made_of(inventory: dict[str, Any] | None = None, **case: Any) -> list[Manifest]:
    known = case_context({"pools": DATA["pools"], "inventory": inventory or {}, **case})
    return render_manifests(known).get(machine_config.NAME, [])


def test_a_control_plane_with_gpus_gets_its_own() -> None:
    assert [item["metadata"]["name"] for item in made_of()] == ["99-gpu-gpu-provision", "99-master-gpu-provision"]
    assert [item["metadata"]["labels"][ROLE] for item in made_of()] == ["gpu", "master"]


@pytest.mark.parametrize(
    "inventory",
    [
        {"openshift": {"machine_config": False}},
        {"host_prerequisites": {"enabled": False}},
        {"host_prerequisites": {"kernel_modules": [], "blacklist_nouveau": False}},
        {"cluster": {"platform": "kubernetes"}},
    ],
    ids=["off", "host phase off", "nothing to carry", "declared as another platform"],
)
def test_no_machine_config_reboots_nodes_for_nothing(inventory: dict[str, Any]) -> None:
    assert made_of(inventory) == []


def test_a_machine_config_that_reaches_no_node_is_not_made() -> None:
    pools = [{"name": "gpu", "nodes": ["t4-1"], "roles": ["worker"]}]
    assert made_of(pools=pools) == []


def test_each_change_of_content_is_another_digest() -> None:
    """The rendered MachineConfig changes with it, also where another MachineConfig has the last word on a file."""
    settings: list[dict[str, Any]] = [{}, {"sysctls": {"vm.swappiness": "1"}}, {"kernel_arguments": ["iommu=pt"]}]
    found = {identity_of(item) for each in settings for item in made_of({"host_prerequisites": each})}
    assert len({each.digest for each in found}) == len(settings) * 2
    assert found == {identity_of(item) for each in settings for item in made_of({"host_prerequisites": each})}


def test_digests_are_read_off_a_rendered_machine_config() -> None:
    gpu, master = made_of()
    files = [item for each in (gpu, master) for item in each["spec"]["config"]["storage"]["files"]]
    other = {"path": "/etc/chrony.conf", "contents": {"source": "data:,pool"}}
    rendered = {"spec": {"config": {"storage": {"files": [other, *files]}}}}
    assert content_digests(rendered) == {identity_of(gpu).digest, identity_of(master).digest}
    assert content_digests({"spec": {"config": None}}) == frozenset()


def test_without_a_cluster_one_stands_for_all() -> None:
    inventory = builders.inventory_with({"cluster": {"platform": "openshift"}})
    [item] = render_manifests(builders.context(inventory))[machine_config.NAME]
    assert item["metadata"]["labels"] == {ROLE: "worker"}


def test_the_pools_that_reboot_are_named() -> None:
    """Custom pools select the role worker as well, as pkg/controller/common of the operator documents it."""
    pools = [
        {"name": "gpu", "nodes": ["t4-1", "t4-2"], "roles": ["worker", "gpu"], "max_unavailable": "50%"},
        {"name": "infra", "nodes": [], "roles": ["worker", "infra"]},
        {"name": "worker", "nodes": ["h100-1"], "roles": ["worker"]},
    ]
    openshift = OpenShiftFacts(pools=tuple(machine_pool(dict(each)) for each in pools))
    gpu, worker = made_of(pools=pools)
    assert reboot_effects(gpu, openshift) == ("reboots 2 nodes of MachineConfigPool gpu, 50% at a time",)
    assert reboot_effects(worker, openshift) == (
        "reboots 2 nodes of MachineConfigPool gpu, 50% at a time",
        "reboots 1 node of MachineConfigPool worker, 1 at a time",
    )
    assert reboot_effects(worker, None) == reboot_effects({**worker, "kind": "ConfigMap"}, openshift) == ()


def test_a_node_of_its_own_settings_counts_with_them() -> None:
    inventory = builders.inventory_with({})
    nodes = (replace(inventory.nodes[0], host_prerequisites=replace(builders.POOLS["t4"].host_prerequisites)),)
    assert nodes[0].name == "t4-1"
    changed = replace(nodes[0].host_prerequisites, sysctls={"vm.swappiness": "1"})
    own = replace(inventory, nodes=(replace(nodes[0], host_prerequisites=changed), *inventory.nodes[1:]))
    known = case_context({"pools": DATA["pools"]})
    found = machine_config.problems(OpenShiftSection(), context(own, known.facts))
    assert [each.code for each in found] == ["GP429"]
