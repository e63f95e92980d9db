"""The import budget."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
import tomllib
from collections import Counter
from fnmatch import fnmatch
from pathlib import Path

import pytest

import gpu_provision
from tests.crowd import Crowd

REPOSITORY = Path(__file__).parents[1]
HEAVY = ("kubernetes", "pyinfra", "pyinfra_cli", "gevent", "aiohttp", "urllib3", "pytest", "testinfra")
INVENTORIES = ("yaml", "jsonschema", "cryptography", "gpu_provision.inventory")
NOT_DUE = (
    "aiohttp",
    "rich",
    "gevent",
    "pyinfra",
    "gpu_provision.adopt",
    "gpu_provision.cli.plan_file",
    "gpu_provision.reconcile.preflight",
    "gpu_provision.reconcile.rollout",
    "gpu_provision.reconcile.run",
    "gpu_provision.hosts.facts.host",
    "gpu_provision.hosts.runner",
    "gpu_provision.operator.client",
    "gpu_provision.hosts.checks.judge",
    "gpu_provision.registry",
    "gpu_provision.destroy",
    "gpu_provision.output.views",
    "gpu_provision.rollout.state_machine",
    "gpu_provision.rollout.snapshot",
    "gpu_provision.sandbox",
    "gpu_provision.verify",
)
"""Modules of hosts, rollouts, records, the operator and other verbs, which a read of the cluster does not need."""
CLUSTERS = ("gpu_provision.reconcile", "gpu_provision.kube", "gpu_provision.hosts", "gpu_provision.operator", "logging")
PROGRAM = """
import sys
from gpu_provision.cli.root import run
code = run(sys.argv[1:])
heavy = sorted(set({heavy!r}) & set(sys.modules))
sys.exit(f"imported {{heavy}}" if heavy else code)
"""


def run_without(heavy: tuple[str, ...], words: list[str]) -> tuple[int, str]:
    """Return the exit code and stderr of a command; an import of one of these modules is an error."""
    command = [sys.executable, "-c", PROGRAM.format(heavy=heavy), *words]
    ran = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=300)
    return ran.returncode, ran.stderr


@pytest.mark.parametrize(
    "words",
    [
        ["plan", "--help"],
        ["verify", "--help"],
        ["schema"],
        ["render"],
        ["rbac", "-q"],
        ["operator", "stack"],
        ["operator", "render", "-q"],
        ["plan", "--offline"],
    ],
)
def test_offline_commands_import_neither_kubernetes_nor_pyinfra(words: list[str]) -> None:
    """These start fast, and work without either."""
    assert run_without(HEAVY, words) == (0, "")


@pytest.mark.parametrize(
    ("words", "heavy"),
    [
        (["--version"], INVENTORIES + CLUSTERS),
        (["--help"], ("rich", *INVENTORIES, *CLUSTERS)),
        (["validate"], CLUSTERS),
        (["plan", "--offline", "-q"], ("rich",)),
    ],
)
def test_simple_commands_import_little(words: list[str], heavy: tuple[str, ...]) -> None:
    """The check of an inventory imports only its own modules; a plan without a table does not import rich."""
    assert run_without(HEAVY + heavy, words) == (0, "")


def test_looking_at_a_cluster_imports_no_other_work(tmp_path: Path) -> None:
    """Neither the plan of a new stack nor an apply that has nothing to do pays for runs; half of a start is imports."""
    with contextlib.closing(Crowd(tmp_path)) as crowd:
        crowd.join("gpu-1")
        file = tmp_path / "new.yaml"
        cluster, pools = {"kubeconfig": str(crowd.kubeconfig)}, {"t4": {"gpu": {"model": "T4", "count": 1}}}
        nodes = [{"name": "gpu-1", "pool": "t4"}]
        file.write_text(json.dumps({"name": "new", "cluster": cluster, "pools": pools, "nodes": nodes}))
        common = ["--cluster-only", "-q", "-i", str(file)]
        assert run_without(NOT_DUE, ["plan", *common]) == (0, "")
        gpu_provision.apply(gpu_provision.load(file), cluster_only=True)
        assert run_without(NOT_DUE, ["apply", "--yes", *common]) == (0, "")


def test_importing_the_library_is_light() -> None:
    """A user's own program decides when to pay for the rest, and listing the names costs nothing, either."""
    program = f"""import sys, gpu_provision
dir(gpu_provision)
own = [name for name in sys.modules if name.startswith("gpu_provision")]
print(sorted(set({HEAVY + INVENTORIES + CLUSTERS!r}) & set(sys.modules)), own)"""
    ran = subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert ran.stdout == "[] ['gpu_provision']\n"


def test_every_data_file_is_in_the_wheel() -> None:
    """The tests run from the checkout, so no other one misses a kind of file that package-data does not name."""
    settings = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["setuptools"]
    patterns = ["*.py", *settings["package-data"]["*"]]
    command = ("git", "ls-files", "gpu_provision", ":!*README.md", ":!*.shellcheckrc")
    files = subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True, text=True).stdout.split()
    assert [file for file in files if not any(fnmatch(Path(file).name, pattern) for pattern in patterns)] == []


def test_no_class_name_is_used_twice() -> None:
    """A reader who searches for a class finds one."""
    files = (REPOSITORY / "gpu_provision").rglob("*.py")
    names = Counter(name for file in files for name in re.findall(r"^ *class (\w+)", file.read_text(), re.MULTILINE))
    assert [name for name, count in names.items() if count > 1] == []
