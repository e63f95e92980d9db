"""The plugin in a user's own run of pytest."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

from gpu_provision.model.findings import Finding, UnreachableError
from gpu_provision.verify.plugin import reason

CHECKOUT = Path(__file__).parents[2]
TESTS = """
def test_gpu_nodes(gpu_node): pass
def test_all_nodes(inventory_node): pass
def test_hosts(gpu_host): pass
def test_cluster(gpu_cluster): pass
def test_inventory(gpu_inventory): assert gpu_inventory.name == "test"
"""


def pytest_of_user(folder: Path, *arguments: str) -> str:
    (folder / "test_own.py").write_text(TESTS)
    environment = {
        key: value for key, value in os.environ.items() if not key.startswith(("PYTEST_", "GPU_PROVISION_I"))
    }
    environment |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(CHECKOUT)}
    command = [sys.executable, "-m", "pytest", "-p", "gpu_provision.verify.plugin", "-q", *arguments]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=120
    )
    return done.stdout + done.stderr


def test_tests_run_once_for_every_node_they_ask_for(inventory_file: Path) -> None:
    """A host asked for is a GPU node's; other tests run once."""
    shown = pytest_of_user(inventory_file.parent, "--collect-only", f"--gpu-inventory={inventory_file}")
    names = [line.partition("::")[2] for line in shown.splitlines() if "::" in line]
    gpu = ["good-1", "two-1", "held-1", "away-1", "alone-1"]
    assert [name for name in names if name.startswith("test_gpu_nodes")] == [f"test_gpu_nodes[{node}]" for node in gpu]
    assert [name for name in names if name.startswith("test_hosts")] == [f"test_hosts[{node}]" for node in gpu]
    assert "test_all_nodes[cpu-1]" in names
    assert "test_gpu_nodes[cpu-1]" not in names
    assert {"test_cluster", "test_inventory"} <= set(names)


def test_limit_leaves_the_cluster_as_a_whole_out(inventory_file: Path) -> None:
    """And every other node."""
    options = ("--collect-only", f"--gpu-inventory={inventory_file}", "--gpu-limit=good-1,cpu-1")
    shown = pytest_of_user(inventory_file.parent, *options)
    assert "test_all_nodes[cpu-1]" in shown
    assert "test_gpu_nodes[two-1]" not in shown
    assert "test_cluster" not in shown
    assert "test_inventory" in shown


def test_inventory_that_is_missing_or_bad_is_a_usage_error(inventory_file: Path) -> None:
    """With the findings, without a traceback."""
    shown = pytest_of_user(inventory_file.parent)
    assert "these tests need an inventory: --gpu-inventory FILE" in shown
    inventory_file.write_text(inventory_file.read_text().replace("26.7.0", "1.2.3"))
    shown = pytest_of_user(inventory_file.parent, f"--gpu-inventory={inventory_file}")
    assert "1.2.3" in shown
    assert "Traceback" not in shown


def test_pytest_finds_the_plugin_where_the_package_is_installed() -> None:
    """By its entry point."""
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    named = project["entry-points"]["pytest11"]["gpu-provision"]
    assert hasattr(import_module(named), "pytest_generate_tests")


@pytest.mark.parametrize("module", ["kubernetes", "pyinfra", "testinfra", "gpu_provision.inventory", "yaml"])
def test_the_plugin_costs_nothing_without_its_option(module: str) -> None:
    """Pytest imports it in every project of an environment."""
    program = f"import sys, gpu_provision.verify.plugin; sys.exit({module!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], cwd=CHECKOUT, check=False).returncode == 0


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (AssertionError("it is called otherwise\nassert 'a' == 'b'"), "it is called otherwise"),
        (AssertionError("assert 1 == 2"), "assert 1 == 2"),
        (pytest.skip.Exception("gfd is off"), "gfd is off"),
        (pytest.fail.Exception("no node"), "no node"),
        (KeyError("status"), "KeyError: 'status'"),
        (UnreachableError(Finding(code="GP301", what="silent", evidence="Errno 111")), "silent (Errno 111)"),
    ],
)
def test_reason_is_that_of_the_tests_author(error: BaseException, words: str) -> None:
    """Pytest's own view of an assertion is left out, and an unexpected exception is named by its class."""
    assert reason(error) == words
