"""The container toolkit on different container runtimes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpu_provision.components import desired, problems
from gpu_provision.model.cluster import ClusterFacts, RenderContext
from gpu_provision.model.inventory import Inventory
from tests.components import builders, views

_NAME = "nvidia-container-toolkit-daemonset"


def fleet(*runtimes: str, version: str = "") -> ClusterFacts:
    """Return facts in which t4-1, t4-2 and h100-1 run these container runtimes, all of one version."""
    nodes = (("t4-1", builders.UBUNTU_22), ("t4-2", builders.UBUNTU_22), ("h100-1", builders.UBUNTU_24))
    pairs = zip(nodes, runtimes, strict=True)
    return ClusterFacts(
        nodes=tuple(
            builders.node(name, os, container_runtime=runtime, container_runtime_version=version)
            for (name, os), runtime in pairs
        )
    )


def daemon_sets(context: RenderContext) -> dict[str, dict[str, Any]]:
    """Return the toolkit's DaemonSets by name."""
    return {item["metadata"]["name"]: item for item in views.of_kind(desired(context)["toolkit"], "DaemonSet")}


def settings(daemon_set: dict[str, Any]) -> dict[str, str]:
    """Return the toolkit container's environment."""
    (container,) = daemon_set["spec"]["template"]["spec"]["containers"]
    return {entry["name"]: entry.get("value", "") for entry in container["env"]}


def host_paths(daemon_set: dict[str, Any]) -> dict[str, str]:
    """Return host directory by the path at which the toolkit sees it."""
    pod = daemon_set["spec"]["template"]["spec"]
    volumes = {item["name"]: item.get("hostPath", {}).get("path", "") for item in pod["volumes"]}
    return {item["mountPath"]: volumes[item["name"]] for item in pod["containers"][0]["volumeMounts"]}


RUNTIMES = {
    "containerd": ("containerd", "/etc/containerd", "/etc/containerd/conf.d", "/run/containerd"),
    "cri-o": ("crio", "/etc/crio", "/etc/crio/crio.conf.d", None),
    "docker": ("docker", "/etc/docker", None, "/var/run"),
}


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_uniform_fleet_has_one_daemonset_of_the_plain_name(runtime: str) -> None:
    """Whatever the runtime is; no label is needed to select the nodes."""
    found = daemon_sets(builders.context(facts=fleet(runtime, runtime, runtime)))
    assert list(found) == [_NAME]
    only = found[_NAME]
    assert only["spec"]["template"]["spec"]["nodeSelector"] == {"nvidia.com/gpu.deploy.container-toolkit": "true"}
    name, config, drop_in, socket = RUNTIMES[runtime]
    paths = host_paths(only)
    assert settings(only)["RUNTIME"] == name
    assert paths["/runtime/config-dir/"] == config
    assert paths.get("/runtime/config-dir.d/") == drop_in
    assert paths.get("/runtime/sock-dir/") == socket


def test_a_mixed_fleet_has_one_daemonset_per_runtime() -> None:
    """The reference treats the whole cluster as containerd if one node runs it."""
    context = builders.context(facts=fleet("cri-o", "containerd", "docker"))
    found = daemon_sets(context)
    assert {name: settings(item)["RUNTIME"] for name, item in found.items()} == {
        _NAME: "containerd",
        f"{_NAME}-cri-o": "crio",
        f"{_NAME}-docker": "docker",
    }
    nodes = {item["metadata"]["name"]: item["metadata"]["labels"] for item in desired(context)["node_labels"]}
    for node, labels in nodes.items():
        selecting = [
            name
            for name, item in found.items()
            if item["spec"]["template"]["spec"]["nodeSelector"].items() <= labels.items()
        ]
        assert len(selecting) == 1, node


def test_a_distribution_may_run_on_another_runtime() -> None:
    """k3s with --docker: then its own places say nothing."""
    nodes = (builders.node("t4-1", distribution="k3s", container_runtime="docker"),)
    found = daemon_sets(builders.context(facts=ClusterFacts(nodes=nodes)))
    assert {settings(item)["RUNTIME"] for item in found.values()} == {"docker", "containerd"}


def test_an_unknown_runtime_counts_as_containerd() -> None:
    """Offline nothing is known, and most clusters run it."""
    assert settings(daemon_sets(builders.context())[_NAME])["RUNTIME"] == "containerd"
    assert settings(daemon_sets(builders.context(facts=fleet("rkt", "", "containerd")))[_NAME])["RUNTIME"] == (
        "containerd"
    )


def test_the_users_settings_find_a_runtimes_files() -> None:
    """k3s, as its users configure the GPU Operator: paths on the host become mounts."""
    chosen = builders.with_spec(
        "toolkit",
        env={
            "CONTAINERD_CONFIG": "/var/lib/rancher/k3s/agent/etc/containerd/config.toml.tmpl",
            "CONTAINERD_SOCKET": "/run/k3s/containerd/containerd.sock",
            "CONTAINERD_RUNTIME_CLASS": "gpu",
            "RUNTIME_CONFIG_SOURCE": "command,file=/etc/other.toml",
            "DEBUG": "1",
        },
    )
    found = daemon_sets(builders.context(chosen))[_NAME]
    values, paths = settings(found), host_paths(found)
    assert paths["/runtime/config-dir/"] == "/var/lib/rancher/k3s/agent/etc/containerd"
    assert paths["/runtime/sock-dir/"] == "/run/k3s/containerd"
    assert values["CONTAINERD_CONFIG"] == values["RUNTIME_CONFIG"] == "/runtime/config-dir/config.toml.tmpl"
    assert values["CONTAINERD_SOCKET"] == values["RUNTIME_SOCKET"] == "/runtime/sock-dir/containerd.sock"
    assert values["CONTAINERD_RUNTIME_CLASS"] == "gpu"
    assert values["RUNTIME_CONFIG_SOURCE"] == "command,file=/host/etc/other.toml"
    assert values["DEBUG"] == "1"


@pytest.mark.parametrize(
    ("runtime", "chosen", "named"),
    [
        ("containerd", "nvidia", {"CONTAINERD_RUNTIME_CLASS": "nvidia"}),
        ("containerd", "gpu", {"CONTAINERD_RUNTIME_CLASS": "gpu"}),
        ("cri-o", "nvidia", {}),
        ("cri-o", "gpu", {"NVIDIA_RUNTIME_NAME": "gpu"}),
        ("docker", "gpu", {"NVIDIA_RUNTIME_NAME": "gpu"}),
    ],
)
def test_the_toolkit_makes_the_handler_of_the_runtime_class(runtime: str, chosen: str, named: dict[str, str]) -> None:
    """Of any name and for any runtime: pods of a class without a handler do not start."""
    context = builders.context(builders.inventory(specs=builders.specs(runtime_class=chosen)), fleet(*(runtime,) * 3))
    found = settings(daemon_sets(context)[_NAME])
    names = {"CONTAINERD_RUNTIME_CLASS", "NVIDIA_RUNTIME_NAME"}
    assert {key: value for key, value in found.items() if key in names} == named


def without_cdi() -> Inventory:
    """Return the default inventory with CDI off."""
    return builders.inventory(specs=builders.specs(cdi_enabled=False))


def test_without_cdi_crio_uses_its_hook_and_no_runtime_class() -> None:
    """As in the reference; the other runtimes keep the class."""
    crio = builders.context(without_cdi(), fleet("cri-o", "cri-o", "cri-o"))
    assert settings(daemon_sets(crio)[_NAME])["CRIO_CONFIG_MODE"] == "hook"
    assert "runtimeClassName" not in desired(crio)["device_plugin"][-1]["spec"]["template"]["spec"]
    containerd = desired(builders.context(without_cdi()))["device_plugin"][-1]["spec"]["template"]["spec"]
    assert containerd["runtimeClassName"] == "nvidia"


def test_without_cdi_a_mix_of_crio_and_others_is_a_problem() -> None:
    """No runtime class would fit both."""
    mixed = fleet("cri-o", "containerd", "containerd")
    (finding,) = problems(builders.context(without_cdi(), mixed))
    assert finding.code == "GP406"
    assert "t4-1" in finding.where
    assert problems(builders.context(facts=mixed)) == ()


@pytest.mark.parametrize(
    ("runtime", "version", "codes"),
    [
        ("containerd", "1.6.20~ds1", ["GP407"]),
        ("containerd", "1.7.0", []),
        ("containerd", "v2.1.4-k3s1", []),
        ("cri-o", "1.22.5", ["GP407"]),
        ("cri-o", "1.30.0", []),
        ("docker", "19.3.1", []),
        ("containerd", "", []),
    ],
)
def test_a_runtime_without_cdi_is_a_problem_unless_cdi_is_off(runtime: str, version: str, codes: list[str]) -> None:
    """Such a node's pods would be granted GPUs that never appear in their containers."""
    facts = fleet(runtime, runtime, runtime, version=version)
    found = problems(builders.context(facts=facts))
    assert [finding.code for finding in found] == codes
    assert all(finding.where == "Nodes h100-1, t4-1, t4-2" for finding in found)
    assert not problems(builders.context(without_cdi(), facts))


def test_a_toolkit_of_the_hosts_own_is_left_alone() -> None:
    """The plugin then finds its hook by itself."""
    chosen = builders.with_spec("toolkit", enabled=False)
    manifests = desired(builders.context(chosen))
    assert "toolkit" not in manifests
    assert "NVIDIA_CDI_HOOK_PATH" not in settings(manifests["device_plugin"][-1])


@pytest.mark.parametrize(
    ("version", "strategy"),
    [
        ("v0.20.0", "cdi-annotations,cdi-cri"),
        ("v0.15.0", "cdi-annotations,cdi-cri"),
        ("v0.14.2-ubi8", "cdi-annotations"),
        ("sha256:abc", "cdi-annotations,cdi-cri"),
    ],
)
def test_old_plugins_are_not_asked_for_what_they_do_not_know(version: str, strategy: str) -> None:
    """They would refuse to start."""
    image = replace(builders.SPECS.device_plugin.image, version=version)
    plugin = desired(builders.context(builders.with_spec("device_plugin", image=image)))["device_plugin"][-1]
    assert settings(plugin)["DEVICE_LIST_STRATEGY"] == strategy
