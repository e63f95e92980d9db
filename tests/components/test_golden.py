"""What each component makes of the sandbox's inventory, and of settings that change much, word for word.

After an intended change: ``UPDATE_GOLDEN=1 python -m pytest tests/components/test_golden.py``, then read the diff.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_provision.components import desired
from gpu_provision.model.cluster import ClusterFacts, RenderContext
from tests.components import builders

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden"


def with_dcgm() -> RenderContext:
    """Return the same with the stand-alone DCGM engine."""
    return builders.context(builders.with_spec("dcgm", enabled=True), builders.fleet())


def with_prometheus() -> RenderContext:
    """Return a cluster with the Prometheus Operator, and metrics of the user's choice."""
    resources = frozenset({"servicemonitors.monitoring.coreos.com"})
    chosen = builders.with_spec(
        "dcgm_exporter", metrics_config="metrics", env={"DCGM_EXPORTER_KUBERNETES_ENABLE_POD_LABELS": "true"}
    )
    return builders.context(chosen, replace(builders.fleet(), resources=resources))


def with_host_network() -> RenderContext:
    """Return the sandbox with an exporter in the network of its node."""
    return builders.context(builders.with_spec("dcgm_exporter", host_network=True), builders.fleet())


def with_plugin_configurations() -> RenderContext:
    """Return the sandbox with named configurations of the device plugin."""
    chosen = builders.with_spec("device_plugin", config_name="time-slicing", config_default="four")
    return builders.context(chosen, builders.fleet())


def with_mixed_runtimes() -> RenderContext:
    """Return a fleet of which one node runs CRI-O."""
    nodes = (*builders.fleet().nodes[:2], builders.node("h100-1", builders.UBUNTU_24, container_runtime="cri-o"))
    return builders.context(facts=ClusterFacts(nodes=nodes))


def with_distributions() -> RenderContext:
    """Return a fleet whose nodes have a containerd of a distribution, each in another place, or that of the system."""
    names = dict(zip(("t4-1", "t4-2", "h100-1", "cpu-1"), ("k3s", "rke2", "k0s", "microk8s"), strict=True))
    nodes = tuple(replace(node, distribution=names.get(node.name, "")) for node in builders.fleet().nodes)
    pools = {name: replace(pool, gpu=builders.POOLS["t4"].gpu) for name, pool in builders.POOLS.items()}
    return builders.context(builders.inventory(pools=pools), ClusterFacts(nodes=nodes))


def with_host_drivers() -> RenderContext:
    """Return a fleet with ``driver.enabled: auto``, of which one node has a driver of its own."""
    facts = replace(builders.fleet(), host_drivers={"t4-1": "550.90.07", "t4-2": "", "h100-1": ""})
    return builders.context(builders.with_spec("driver", prefer_host=True), facts)


def without_cdi() -> RenderContext:
    """Return the sandbox as older clusters have it."""
    return builders.context(builders.inventory(specs=builders.specs(cdi_enabled=False)), builders.fleet())


def with_every_setting() -> RenderContext:
    """Return a fleet with everything set that can be set, and known ConfigMaps."""
    files = {"repo.config": {"a.list": "a"}, "cert.config": {"ca.crt": "b"}, "plugin-configs": {"all": "c"}}
    resources = frozenset({"servicemonitors.monitoring.coreos.com"})
    facts = replace(builders.fleet(), resources=resources, config_maps=files, secrets={"licence": "digest"})
    return builders.context(builders.with_every_setting(), facts)


CASES: dict[str, tuple[Callable[[], RenderContext], tuple[str, ...]]] = {
    "sandbox": (
        lambda: builders.context(facts=builders.fleet()),
        (
            *("prerequisites", "nfd", "node_labels", "driver", "toolkit", "validator"),
            *("device_plugin", "device_plugin_validation", "gfd", "dcgm_exporter"),
        ),
    ),
    "with-every-setting": (
        with_every_setting,
        (
            *("prerequisites", "nfd", "node_labels", "driver", "toolkit", "validator"),
            *("device_plugin", "device_plugin_validation", "gfd", "dcgm", "dcgm_exporter"),
        ),
    ),
    "with-dcgm": (with_dcgm, ("dcgm", "dcgm_exporter")),
    "with-prometheus": (with_prometheus, ("dcgm_exporter",)),
    "with-host-network": (with_host_network, ("dcgm_exporter",)),
    "with-plugin-configurations": (with_plugin_configurations, ("device_plugin", "gfd")),
    "with-mixed-runtimes": (with_mixed_runtimes, ("toolkit", "node_labels")),
    "with-distributions": (with_distributions, ("toolkit", "node_labels")),
    "with-host-drivers": (with_host_drivers, ("driver", "node_labels")),
    "without-cdi": (without_cdi, ("prerequisites", "toolkit", "device_plugin")),
}


class _Plain(yaml.SafeDumper):
    """Writes every value in full: no anchors, scripts as blocks."""

    def ignore_aliases(self, data: Any) -> bool:
        """Repeat what occurs twice."""
        del data
        return True


def _block(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Plain.add_representer(str, _block)


@pytest.mark.parametrize(
    ("case", "component"), [(case, component) for case, (_, names) in CASES.items() for component in names]
)
def test_a_component_is_as_recorded(case: str, component: str) -> None:
    """A change of a manifest restarts pods in the field, so each is read before it is made."""
    make, _ = CASES[case]
    text = yaml.dump_all(desired(make())[component], Dumper=_Plain, sort_keys=False, width=1000)
    path = GOLDEN / component / f"{case}.yaml"
    if os.environ.get("UPDATE_GOLDEN"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert path.read_text() == text
