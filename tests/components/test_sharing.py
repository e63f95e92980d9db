"""Configurations of the device plugin, and what a node offers by them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpu_provision.components import problems, render_manifests
from gpu_provision.components.sharing import expected_replicas, parse, sharing_of
from gpu_provision.inventory.plugin_configs import OVERRIDDEN_FLAGS
from tests import data_file
from tests.components import builders, views

CASES: dict[str, dict[str, dict[str, Any]]] = data_file.document(Path(__file__).with_suffix(".yaml").read_text())
FOUR = {"sharing": {"timeSlicing": {"resources": [{"name": "gpu", "replicas": 4}]}}}


@pytest.mark.parametrize("name", CASES["configurations"])
def test_a_configuration_declares_how_gpus_are_shared(name: str) -> None:
    """A text that the plugin would refuse shares nothing."""
    case = CASES["configurations"][name]
    assert sharing_of(parse(case["text"])) == (case.get("kind", ""), case.get("replicas", {}))


@pytest.mark.parametrize("name", CASES["nodes"])
def test_the_label_or_the_default_chooses_a_configuration(name: str) -> None:
    case = CASES["nodes"][name]
    plugin = builders.inventory_with({"device_plugin": case.get("plugin", {})}).specs.device_plugin
    assert expected_replicas(plugin, case.get("label", ""), case.get("read")) == case["replicas"]


def test_pods_read_the_configurations_of_the_inventory() -> None:
    """As they are; the ConfigMap is a member of the stack, and another content restarts the pods."""
    contexts = [
        builders.context(builders.inventory_with({"device_plugin": {"config": {"data": {"a": data}}}}))
        for data in (FOUR, {"version": "v1"})
    ]
    rendered = [render_manifests(context)["device_plugin"] for context in contexts]
    found = [item for item in views.of_kind(rendered[0], "ConfigMap") if "a" in item["data"]]
    assert [data_file.document(item["data"]["a"]) for item in found] == [FOUR]
    marks = {str(items[-1]["spec"]["template"]["metadata"]["annotations"]) for items in rendered}
    assert len(marks) == len(rendered)


def test_a_label_without_a_configuration_is_found() -> None:
    """There the side-car ends with an error again and again."""
    chosen = builders.inventory_with({"device_plugin": {"config": {"data": {"a": FOUR}}}})
    facts = builders.observed_facts(
        {"nodes": {"t4-1": {"labels": {**builders.nfd_labels(), "nvidia.com/device-plugin.config": "b"}}}}
    )
    (finding,) = (each for each in problems(builders.context(chosen, facts)) if each.code == "GP416")
    assert finding.where == "Node t4-1"
    assert "nvidia.com/device-plugin.config=b" in finding.evidence


def test_variables_override_the_listed_flags() -> None:
    """The finding about a flag without effect would be wrong otherwise. Of the host's driver a file has the roots."""
    manifests = render_manifests(builders.context())
    env = {
        name
        for component in ("device_plugin", "gfd")
        for name in views.container(manifests[component][-1]["spec"]["template"]["spec"]["containers"][0])["env"]
    }
    named = {variable for variable, _ in OVERRIDDEN_FLAGS.values()}
    assert named - env == {"NVIDIA_DRIVER_ROOT", "NVIDIA_DEV_ROOT"}


def test_nothing_refers_to_the_configurations_of_a_plugin_that_is_off() -> None:
    """Their ConfigMap is an object of the plugin: GPU Feature Discovery would wait for it."""
    config = {"default": "a", "data": {"a": FOUR}}
    off, none = (
        render_manifests(builders.context(builders.inventory_with({"device_plugin": {"enabled": False, **rest}})))
        for rest in ({"config": config}, {})
    )
    assert off == none
