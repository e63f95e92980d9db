"""What an inventory expects of a node, as preflight compares it with the host."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from gpu_provision.inventory import load
from gpu_provision.inventory.expectation import expectation
from gpu_provision.model.expectation import Expectation

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
nodes:
- {name: a, pool: t4}
- {name: b, pool: own}
- {name: c, pool: cpu}
"""


def expected(directory: Path, name: str, cluster: str = "context: prod") -> Expectation:
    (directory / "i.yaml").write_text(FILE.replace("CLUSTER", cluster))
    inventory = load(directory / "i.yaml")
    return expectation(inventory, next(node for node in inventory.nodes if node.name == name))


def test_everything_that_preflight_compares(tmp_path: Path) -> None:
    """The pool's GPU and system, the driver's image, the toolkit's paths."""
    assert expected(tmp_path, "a") == Expectation(
        node="a",
        pool="t4",
        os="ubuntu22.04",
        gpu_model="T4",
        gpu_count=2,
        driver_image="nvcr.io/nvidia/driver",
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


def test_host_drivers_have_no_image(tmp_path: Path) -> None:
    """Nothing is to be asked of a registry."""
    found = expected(tmp_path, "b")
    assert (found.driver_container, found.driver_image) == (False, "")


def test_machines_without_gpu(tmp_path: Path) -> None:
    """They are expected to have none."""
    found = expected(tmp_path, "c")
    assert (found.gpu_count, found.gpu_model, found.os) == (0, "", "")


def test_sandbox_asks_no_registry(tmp_path: Path) -> None:
    """Its images are simulated."""
    assert not expected(tmp_path, "a", "sandbox: default").ask_registry


def test_expectation_survives_being_written_out(tmp_path: Path) -> None:
    """As pyinfra's host data, where lists stand for tuples."""
    found = expected(tmp_path, "a")
    data = {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(found).items()}
    assert Expectation.of(data) == found


def test_auto_is_a_container_until_the_host_has_been_read(tmp_path: Path) -> None:
    """The image is known all the same: hosts without a driver need it."""
    (tmp_path / "i.yaml").write_text(
        FILE.replace("CLUSTER", "context: prod").replace("driver: {enabled: false}", "driver: {enabled: auto}")
    )
    inventory = load(tmp_path / "i.yaml")
    found = expectation(inventory, inventory.nodes[1])
    assert (found.driver_container, found.driver_auto, found.driver_image) == (True, True, "nvcr.io/nvidia/driver")
