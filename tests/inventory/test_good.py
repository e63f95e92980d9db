"""Inventories that are right get no finding, and mean what they say."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpu_provision.inventory import check, groups, load, schema
from gpu_provision.inventory.document import Source, read_source
from gpu_provision.inventory.json_schema import resolved
from gpu_provision.inventory.resolve import SPECS, resolve
from gpu_provision.inventory.yaml_parser import parse
from gpu_provision.model.inventory import Connect, Gpu, HelperPod, Node, OperatingSystem, Reboot, Ssh
from gpu_provision.model.specs import Image, SecretKey, StartupProbe
from gpu_provision.releases import DEFAULT, release

GOOD = Path(__file__).parent / "good"


@pytest.mark.parametrize("file", sorted(GOOD.glob("**/*.yaml")), ids=lambda file: file.stem)
def test_a_good_inventory_gets_no_finding(file: Path) -> None:
    """No false alarms: neither an error nor a warning."""
    assert check(file).all == ()


def test_an_inventory_keeps_its_warnings(tmp_path: Path) -> None:
    """They are findings of each plan of it."""
    path = tmp_path / "stack.yaml"
    path.write_text(
        "name: stack\ncluster: {context: prod}\ngfd: {version: v0.99.1}\n"
        "pools: {t4: {gpu: {model: T4, count: 1}}}\nnodes: [{name: t4-1, pool: t4}]\n"
    )
    assert load(path).warnings == check(path).warnings
    assert [warning.code for warning in load(path).warnings] == ["GP132"]


def test_the_complete_inventory_uses_every_key() -> None:
    """Otherwise a key could break without any test seeing it. A sandbox excludes a kubeconfig.

    Plain settings of components have a test of their own. Values of this machine are in a file of their own, since a
    stack of the cluster takes none.
    """
    used = [
        _used(schema(), parse(read_source(GOOD / file))[0].data, "")
        for file in ("complete.yaml", "values/elsewhere.yaml")
    ]
    unused = set(_known(schema(), "")) - {key for keys in used for key in keys}
    assert unused - {".".join(path) for path, _ in PLAIN} == {"cluster.sandbox"}


def _plain(part: dict[str, Any], *path: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the settings below a part of the schema that are switches, choices and numbers, with another value."""
    for key, child in part.get("properties", {}).items():
        found, here = resolved(child), (*path, key)
        yield from _plain(found, *here)
        if "default" in found and (found["type"] in ("boolean", "integer") or "enum" in found):
            default, choices = found["default"], found.get("enum", [True, False])
            numbers = [found.get("minimum", 0) + 1, found.get("minimum", 0) + 2]
            yield here, next(each for each in (numbers if found["type"] == "integer" else choices) if each != default)


PLAIN = [each for key in SPECS for each in _plain(resolved(schema()["properties"][key]), key)]


@pytest.mark.parametrize(("path", "value"), PLAIN, ids=lambda each: ".".join(each) if isinstance(each, tuple) else "")
def test_a_plain_setting_reaches_its_spec(path: tuple[str, ...], value: Any) -> None:
    data: Any = value
    for step in reversed(path):
        data = {step: data}
    found: Any = resolve(Source(name="x", path=Path("/x.yaml"), text="", digest=""), data, release(DEFAULT)).specs
    for step in path:
        found = getattr(found, step)
    assert found == value


def _known(part: dict[str, Any], name: str) -> Iterator[str]:
    """Yield every key that the schema names; a mapping, list or reference that it defines once counts once."""
    for child, place in _below(part, name):
        yield place
        yield from _known(resolved(child), place)


def _below(part: dict[str, Any], name: str) -> Iterator[tuple[dict[str, Any], str]]:
    inner = part.get("additionalProperties") or part.get("items")
    named = [(child, f"{name}.{key}") for key, child in part.get("properties", {}).items()]
    for child, place in [*named, *([(inner, f"{name}[]")] if isinstance(inner, dict) else [])]:
        definition = child.get("$ref", "")
        is_shared = resolved(child)["type"] in ("object", "array") or definition.startswith("#/$defs/value_")
        yield child, (definition if is_shared and definition else place).removeprefix("#/$defs/").removeprefix(".")


def _used(part: dict[str, Any], data: Any, name: str) -> Iterator[str]:
    """Yield the keys that the data has, named as above."""
    keys = part.get("properties", {})
    for child, place in _below(part, name):
        holders = data if isinstance(data, list) else [value for key, value in data.items() if key not in keys]
        values = (
            holders if child not in keys.values() else [data[key] for key in keys if keys[key] is child and key in data]
        )
        for value in values:
            yield place
            yield from _used(resolved(child), value, place) if isinstance(value, (dict, list)) else ()


def test_every_component_has_its_own_settings() -> None:
    """What stands under a component reaches its spec, in the types of the model."""
    specs = load(GOOD / "complete.yaml").specs
    for spec in (
        specs.nfd,
        specs.toolkit,
        specs.validator,
        specs.device_plugin,
        specs.gfd,
        specs.dcgm,
        specs.dcgm_exporter,
    ):
        assert spec.image == Image(repository="registry.example.com/own", image="own-name", version="v1.2.3")
        assert (spec.enabled, spec.image_pull_policy, spec.timeout) == (True, "Always", 77)
        assert spec.image_pull_secrets == ("mirror-credentials", "own-credentials")
        assert (spec.env, spec.args) == ({"LEVEL": "5"}, ("--verbose",))
        assert spec.resources["limits"]["memory"] == "1Gi"
    assert (specs.nfd.namespace, specs.toolkit.install_dir) == ("discovery", "/opt/nvidia")
    assert specs.nfd.worker_tolerations[0]["tolerationSeconds"] == 60
    assert (specs.device_plugin.config_name, specs.device_plugin.config_default) == ("plugin-config", "shared")
    assert (specs.dcgm_exporter.service_type, specs.dcgm_exporter.metrics_config) == ("NodePort", "metrics")
    assert specs.dcgm_exporter.service_monitor.additional_labels == {"release": "prometheus"}
    assert specs.driver.startup_probe == StartupProbe(
        initial_delay_seconds=1, period_seconds=2, timeout_seconds=3, failure_threshold=4
    )
    assert specs.driver.manager.reference == "registry.example.com/own/own-manager:v9.9.9"
    assert (specs.driver.repo_config, specs.driver.licensing_config) == ("repo", "licence")


def test_what_all_components_share() -> None:
    """The sections that belong to no component."""
    specs = load(GOOD / "complete.yaml").specs
    assert (specs.cdi_enabled, specs.mig_strategy, specs.runtime_class) == (False, "mixed", "own-runtime")
    assert (specs.daemonsets.max_unavailable, specs.daemonsets.priority_class_name) == ("25%", "own-priority")
    assert specs.daemonsets.tolerations == ({"operator": "Exists"},)


def test_pools_win_over_the_inventory_key_by_key() -> None:
    """A pool's version replaces the inventory's, and its environment adds to it."""
    inventory = load(GOOD / "complete.yaml")
    pool = inventory.pools["t4"]
    assert (pool.os, pool.gpu) == (OperatingSystem("ubuntu", "22.04"), Gpu("Tesla T4", 1))
    assert pool.overrides_driver
    assert pool.driver.image.version == "580.105.08"
    assert {key: value for key, value in pool.driver.env.items() if "proxy" not in key.lower()} == {
        "LEVEL": "5",
        "EXTRA": "1",
        "GIT_PAT": SecretKey(name="git", key="pat"),
    }
    assert pool.driver.env["https_proxy"] == "http://proxy.example.com:3128/"
    assert pool.driver.manager == inventory.specs.driver.manager
    assert pool.driver.kernel_module_type == "open"
    assert not inventory.pools["cpu"].overrides_driver
    assert inventory.pools["cpu"].driver == inventory.specs.driver
    assert pool.host_prerequisites.kernel_modules == ("ipmi_msghandler",)
    assert pool.host_prerequisites.blacklist_nouveau


def test_nodes_win_over_the_inventory() -> None:
    """SSH settings of a node come first; relative paths begin at the file."""
    known_hosts, key = str(GOOD / "known_hosts"), str(GOOD.parent / "test_good.py")
    bastion = "jump@bastion.example.com:2200"
    ssh = Ssh(user="root", port=22, key=key, known_hosts_file=known_hosts, bastion=bastion, sudo=False, patience=90)
    where = {"address": "10.0.0.11", "connect": Connect.SSH}
    expected = Node(name="t4-1", pool="t4", ssh=ssh, labels={"example.com/rack": "r1"}, **where)  # type: ignore[arg-type]
    assert load(GOOD / "complete.yaml").nodes[0] == expected


def test_helper_pods_are_as_declared() -> None:
    """They may pull with the secrets of the stack's images; a pool may reach its hosts in another way."""
    inventory = load(GOOD / "complete.yaml")
    image = "registry.example.com/own/tools:v1.2.3"
    pod = HelperPod(image=image, namespace="own-hosts", image_pull_secrets=("mirror-credentials",))
    assert inventory.helper_pod == pod
    assert {node.name for node in inventory.hosts_without_ssh} == {"cpu-1"}


def test_machines_without_a_gpu_need_no_modules() -> None:
    """Control planes and CPU nodes are left as they are unless their pool says otherwise."""
    prerequisites = load(GOOD / "complete.yaml").pools["cpu"].host_prerequisites
    assert prerequisites.enabled
    assert prerequisites.kernel_modules == ()
    assert not prerequisites.blacklist_nouveau


def test_prerequisites_of_a_node_win_over_those_of_its_pool() -> None:
    """Mappings key by key, lists as a whole; numbers are texts; its neighbors keep those of the pool."""
    inventory = load(GOOD / "host_prerequisites.yaml")
    own, neighbor, cpu = map(inventory.prerequisites_of, inventory.nodes)
    assert own.sysctls == {"vm.max_map_count": "262144", "net.core.somaxconn": "4096", "fs.file-max": "9"}
    assert neighbor.sysctls == {"vm.max_map_count": "262144", "net.core.somaxconn": "1024"}
    assert (own.hugepages, neighbor.hugepages) == ({"2Mi": 512, "1Gi": 4}, {"2Mi": 512})
    assert own.limits == {"memlock": "unlimited", "stack": "1048576"}
    assert (own.dev_char_symlinks, neighbor.dev_char_symlinks) == (False, True)
    assert (own.drain.timeout_seconds, own.drain.force, neighbor.drain.force) == (60, False, True)
    assert (own.reboot, neighbor.reboot, cpu.reboot) == (Reboot.IF_REQUIRED, Reboot.NEVER, Reboot.NEVER)
    assert [node.name for node in inventory.may_reboot] == ["own-1"]
    assert own.kernel_modules == neighbor.kernel_modules == ("i2c_core", "ipmi_msghandler")
    assert (cpu.enabled, cpu.kernel_modules, cpu.blacklist_nouveau) == (False, (), False)
    assert [name for name, _ in groups(inventory)["nodes"][0]] == ["@sandbox/own-1", "@sandbox/neighbor-1"]


def test_proxies_of_the_hosts_stand_on_top_of_those_of_the_inventory() -> None:
    """Key by key; an empty address takes one away, and credentials come from a file, fit for an address."""
    inventory = load(GOOD / "complete.yaml")
    assert inventory.pools["t4"].host_prerequisites.proxy == {
        "https_proxy": "http://me%40site:p%40ss%2Fw%24rd@other.example.com:3128",
        "no_proxy": "10.0.0.0/8,.example.com,localhost",
    }
    assert "p%40ss" not in repr(inventory)


def test_each_certificate_of_a_file_is_a_text_of_its_own() -> None:
    """What stands around them is left out; pools and nodes without a list of their own have that of the inventory."""
    inventory = load(GOOD / "complete.yaml")
    first, second = inventory.pools["t4"].host_prerequisites.ca_certificates
    for text in (first, second):
        assert text.startswith("-----BEGIN CERTIFICATE-----\n")
        assert text.endswith("\n-----END CERTIFICATE-----\n")
        assert text.count("CERTIFICATE") == 2
    assert first != second


def test_merge_keys_and_aliases_mean_what_yaml_says() -> None:
    """A key of the mapping itself wins, then the first of the merged ones."""
    inventory = load(GOOD / "merged.yaml")
    assert inventory.pools["t4-canary"].gpu == Gpu("T4", 1)
    assert inventory.pools["t4-big"].gpu == Gpu("T4", 4)
    assert inventory.pools["t4-big"].labels == {"size": "big"}
    assert [node.name for node in inventory.nodes] == ["t4-1", "t4-2", "t4-3", "t4-4"]
    assert inventory.nodes[1].labels == inventory.nodes[2].labels == {"zone": "a"}
