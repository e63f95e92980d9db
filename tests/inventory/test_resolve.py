"""What is not declared comes from the release, the inventory's shared settings and the model, in this order."""

from __future__ import annotations

import hashlib
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_provision.inventory import load, schema
from gpu_provision.inventory.json_schema import resolved
from gpu_provision.inventory.resolve import SPECS, container_env, expected_of, runtime_proxy
from gpu_provision.model.hosts import Expectation
from gpu_provision.model.inventory import Inventory
from gpu_provision.releases import DEFAULT, names, release


def loaded(directory: Path, **data: Any) -> Inventory:
    """Return the inventory of a file that says this, besides what every file says."""
    basis = {
        "name": "stack",
        "cluster": {"context": "prod"},
        "pools": {"t4": {"gpu": {"model": "T4", "count": 1}}},
        "nodes": [{"name": "t4-1", "pool": "t4"}],
    }
    file = directory / "stack.yaml"
    file.write_text(yaml.safe_dump({**basis, **data}), encoding="utf-8")
    return load(file)


def test_the_least_inventory_has_every_default(tmp_path: Path) -> None:
    """The schema says what the defaults are; the loader agrees with it, key by key."""
    inventory = loaded(tmp_path)
    assert (inventory.release, inventory.cluster.namespace) == (DEFAULT, "gpu-operator-resources")
    for key in SPECS:
        spec = getattr(inventory.specs, key)
        for name, part in (
            schema()["properties"][key].get("properties", resolved(schema()["properties"][key])["properties"]).items()
        ):
            if "default" in resolved(part) and hasattr(spec, name):
                value = getattr(spec, name)
                assert (list(value) if isinstance(value, tuple) else value) == resolved(part)["default"], (key, name)
    assert inventory.specs.mig_strategy == "single"
    assert not inventory.specs.dcgm.enabled


@pytest.mark.parametrize("name", names())
def test_images_come_from_the_release(tmp_path: Path, name: str) -> None:
    """Every release of the catalogue can be declared."""
    inventory = loaded(tmp_path, release=name)
    assert inventory.release == name
    for key in SPECS:
        assert getattr(inventory.specs, key).image == release(name).image(key)
    assert inventory.specs.driver.manager == release(name).driver_manager


def test_a_mirror_replaces_the_registry_of_what_the_release_says(tmp_path: Path) -> None:
    """Host names go, paths stay; a repository that the user wrote stays as it is."""
    specs = loaded(tmp_path, registry="mirror:5000/cache", toolkit={"repository": "own.example.com/x"}).specs
    assert specs.driver.image.reference == "mirror:5000/cache/nvidia/driver:595.91.07"
    assert specs.driver.manager.repository == "mirror:5000/cache/nvidia/cloud-native"
    assert specs.nfd.image.repository == "mirror:5000/cache/nfd"
    assert specs.toolkit.image.reference == "own.example.com/x/container-toolkit:v1.20.0"


def test_pull_secrets_add_up_without_repetition(tmp_path: Path) -> None:
    """Those of the inventory come first."""
    specs = loaded(tmp_path, image_pull_secrets=["a", "b"], gfd={"image_pull_secrets": ["b", "c"]}).specs
    assert specs.gfd.image_pull_secrets == ("a", "b", "c")
    assert specs.driver.image_pull_secrets == ("a", "b")


def test_the_file_is_named_by_path_and_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records of a run say which file it was, wherever the run was started."""
    loaded(tmp_path)
    monkeypatch.chdir(tmp_path)
    inventory = load("stack.yaml")
    assert inventory.path == str(tmp_path / "stack.yaml")
    assert inventory.digest == hashlib.sha256((tmp_path / "stack.yaml").read_bytes()).hexdigest()


@pytest.mark.parametrize(
    ("cluster", "kubeconfig", "sandbox"),
    [
        ({}, "", ""),
        ({"kubeconfig": "kube/config"}, "{file}/kube/config", ""),
        ({"kubeconfig": "../config"}, "{above}/config", ""),
        ({"kubeconfig": "/etc/config"}, "/etc/config", ""),
        ({"kubeconfig": "~/.kube/config"}, "{home}/.kube/config", ""),
        ({"kubeconfig": "~no-such-user/config"}, "{file}/~no-such-user/config", ""),
        ({"sandbox": "default"}, "", "default"),
        ({"sandbox": "fleets/big"}, "", "{file}/fleets/big"),
        ({"sandbox": "big.yaml"}, "", "{file}/big.yaml"),
    ],
)
def test_paths_begin_at_the_file(tmp_path: Path, cluster: dict[str, str], kubeconfig: str, sandbox: str) -> None:
    """And a tilde at the user's home; a fleet may be a name."""
    target = loaded(tmp_path, cluster=cluster).cluster
    places = {"file": tmp_path, "above": tmp_path.parent, "home": Path.home()}
    assert target.kubeconfig == kubeconfig.format(**places)
    assert target.sandbox == sandbox.format(**places)


def test_auto_means_a_container_where_the_host_has_no_driver(tmp_path: Path) -> None:
    """Of the inventory, and of a pool, which then has driver groups of its own."""
    auto, off = {"enabled": "auto"}, {"enabled": False}
    found = loaded(tmp_path, driver=auto)
    assert (found.specs.driver.enabled, found.specs.driver.prefer_host) == (True, True)
    pools = {"t4": {"gpu": {"model": "T4", "count": 1}, "driver": auto}}
    pool = loaded(tmp_path, driver=off, pools=pools).pools["t4"]
    assert (pool.driver.enabled, pool.driver.prefer_host, pool.overrides_driver) == (True, True, True)
    assert not loaded(tmp_path).specs.driver.prefer_host


BOTH = {"http_proxy": "http://p:1", "https_proxy": "http://p:2", "no_proxy": ".example.com"}


def test_the_driver_container_gets_both_cases() -> None:
    """Programs in it read the one or the other; curl reads http_proxy in lower case alone."""
    told = container_env(BOTH, {"OTHER": "1"})
    assert told == {**BOTH, "HTTP_PROXY": "http://p:1", "HTTPS_PROXY": "http://p:2", "NO_PROXY": ".example.com"}


@pytest.mark.parametrize(
    ("section", "own"),
    [
        (BOTH, {"HTTPS_PROXY": "http://other:1"}),
        (BOTH, {"http_proxy": ""}),
        ({**BOTH, "https_proxy": "http://me:pw@p:2"}, {}),
        ({**BOTH, "credentials_file": "file"}, {}),
        ({"no_proxy": ".example.com"}, {}),
        ({}, {}),
    ],
)
def test_the_driver_container_gets_no_proxy(section: dict[str, str], own: dict[str, str]) -> None:
    """Its own proxies win; credentials would be in every pod's description; without a proxy there is nothing to say."""
    assert container_env(section, own) == {}


def test_addresses_with_credentials_of_their_own_keep_them(tmp_path: Path) -> None:
    """The file is for those that have none."""
    (tmp_path / "secret").write_text("me:pw\n")
    section = {**BOTH, "http_proxy": "http://you@p:1", "credentials_file": "secret"}
    assert runtime_proxy(section, tmp_path) == {
        "http_proxy": "http://you@p:1",
        "https_proxy": "http://me:pw@p:2",
        "no_proxy": ".example.com",
    }


FILE = """
name: test
cluster: {CLUSTER}
preflight: {ignore: [GP632]}
driver: {version: "580.95.05", env: {HTTPS_PROXY: "http://proxy:1"}}
toolkit: {version: v1.19.0, env: {RUNTIME_DROP_IN_CONFIG: /etc/d/n.toml,
  CONTAINERD_CONFIG: /etc/k0s/containerd.d/nvidia.toml, CONTAINERD_SOCKET: /run/k0s/containerd.sock}}
pools:
  t4: {os: ubuntu22.04, gpu: {model: T4, count: 2}}
  own: {os: ubuntu22.04, gpu: {model: T4, count: 1}, driver: {enabled: false}}
  cpu: {}
  auto: {gpu: {model: T4, count: 1}, driver: {enabled: auto}}
nodes:
- {name: a, pool: t4}
- {name: b, pool: own}
- {name: c, pool: cpu}
- {name: auto, pool: auto}
"""
DRIVER = "nvcr.io/nvidia/driver"


def expected(directory: Path, name: str, cluster: str = "context: prod") -> Expectation:
    (directory / "i.yaml").write_text(FILE.replace("CLUSTER", cluster))
    inventory = load(directory / "i.yaml")
    return expected_of(inventory, next(node for node in inventory.nodes if node.name == name))


def test_everything_that_preflight_compares(tmp_path: Path) -> None:
    """The pool's GPU and system, the driver's image, the toolkit's paths."""
    assert expected(tmp_path, "a") == Expectation(
        node="a",
        pool="t4",
        os="ubuntu22.04",
        gpu_model="T4",
        gpu_count=2,
        driver_image=DRIVER,
        driver_version="580.95.05",
        driver_has_proxy=True,
        toolkit_version="v1.19.0",
        toolkit_dir="/usr/local/nvidia",
        toolkit_drop_in="/etc/d/n.toml",
        toolkit_config="/etc/k0s/containerd.d/nvidia.toml",
        toolkit_socket="/run/k0s/containerd.sock",
        kernel_modules=("i2c_core", "ipmi_msghandler"),
        ask_registry=True,
        ignore=("GP632",),
    )


@pytest.mark.parametrize(
    ("name", "cluster", "changes"),
    [
        ("b", "context: prod", {"driver_container": False, "driver_image": ""}),
        ("c", "context: prod", {"gpu_count": 0, "gpu_model": "", "os": "", "kernel_modules": ()}),
        ("a", "sandbox: default", {"ask_registry": False, "gpu_count": 2}),
        ("auto", "context: prod", {"driver_container": True, "driver_auto": True, "driver_image": DRIVER}),
    ],
    ids=["a driver of the host's own", "no GPU", "simulated images", "whichever the host has"],
)
def test_what_is_expected_depends_on_the_pool(tmp_path: Path, name: str, cluster: str, changes: dict[str, Any]) -> None:
    found = asdict(expected(tmp_path, name, cluster))
    assert {key: found[key] for key in changes} == changes
    assert asdict(Expectation.of({key: list(v) if isinstance(v, tuple) else v for key, v in found.items()})) == found
