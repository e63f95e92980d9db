"""Values that an inventory takes from a file, from the caller's environment, or from a Secret of the cluster."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpu_provision.inventory import load
from gpu_provision.inventory.document import Source
from gpu_provision.inventory.loader import validate_source
from gpu_provision.model.findings import InvalidInventoryError
from gpu_provision.model.operand_specs import SecretKey

TEXT = """\
name: stack
cluster: {context: prod}
proxy: {https_proxy: {env: CALLERS_PROXY}}
driver: {env: {GIT_PAT: {file: secrets/pat}, LICENSE: {env: CALLERS_LICENSE}, TEXT: "file:secrets/pat"}}
toolkit: {env: {TOKEN: {secret: {name: git, key: pat}}}}
pools: {t4: {gpu: {model: T4, count: 1}, driver: {env: {OF_POOL: {file: secrets/pat}}}}}
nodes: [{name: t4-1, pool: t4}]
"""


@pytest.fixture
def inventory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CALLERS_LICENSE", "lic-1")
    monkeypatch.setenv("CALLERS_PROXY", "http://me:hunter2@proxy:1")
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets/pat").write_text("ghp-1\n")
    (tmp_path / "stack.yaml").write_text(TEXT)
    return tmp_path / "stack.yaml"


def test_values_are_those_of_files_and_variables(inventory: Path) -> None:
    """Relative paths begin at the inventory, whatever the working directory; a text is a text.

    Kubernetes resolves a Secret, and records have the references.
    """
    result = load(inventory)
    own = {"GIT_PAT": "ghp-1", "LICENSE": "lic-1", "TEXT": "file:secrets/pat"}
    assert result.specs.driver.env == own
    assert result.pools["t4"].driver.env == own | {"OF_POOL": "ghp-1"}
    assert result.pools["t4"].host_prerequisites.proxy["https_proxy"] == "http://me:hunter2@proxy:1"
    assert result.specs.toolkit.env == {"TOKEN": SecretKey(name="git", key="pat")}
    assert result.text == TEXT


@pytest.mark.parametrize(
    ("content", "value"),
    [
        ("a\n", "a"),
        ("a\r\n", "a"),
        ("a\n\n", "a\n"),
        ("a", "a"),
        ("a\r", "a\r"),
        (" a ", " a "),
        ("x" * 65536 + "\n", "x" * 65536),
    ],
    ids=["newline", "of Windows", "two", "none", "carriage return", "blanks", "as large as can be"],
)
def test_one_newline_at_the_end_is_no_part_of_a_value(inventory: Path, content: str, value: str) -> None:
    """Editors and echo write one."""
    (inventory.parent / "secrets/pat").write_bytes(content.encode())
    assert load(inventory).specs.driver.env["GIT_PAT"] == value


@pytest.mark.parametrize("value", ["", b"\xff", "x" * 65537], ids=["empty", "no text", "too large"])
def test_a_variable_without_a_value_is_one_finding(
    inventory: Path, monkeypatch: pytest.MonkeyPatch, value: str | bytes
) -> None:
    monkeypatch.setenv("CALLERS_LICENSE", os.fsdecode(value))
    with pytest.raises(InvalidInventoryError) as raised:
        load(inventory)
    assert [(each.code, each.where.partition(":")[2]) for each in raised.value.findings if each.code == "GP169"] == [
        ("GP169", "4 driver.env.LICENSE.env")
    ]


def test_a_pipe_is_not_opened(inventory: Path) -> None:
    """ClusterPlan a pipe waits for a writer, who may never come."""
    (inventory.parent / "secrets/pat").unlink()
    os.mkfifo(inventory.parent / "secrets/pat")
    with pytest.raises(InvalidInventoryError, match="not a regular file"):
        load(inventory)


def test_another_value_makes_another_inventory(inventory: Path) -> None:
    """So a plan file does not hold once a value has changed."""
    before = load(inventory).digest
    assert load(inventory).digest == before
    (inventory.parent / "secrets/pat").write_text("ghp-2\n")
    assert load(inventory).digest != before


def test_a_stack_reads_no_file_and_no_variable(inventory: Path) -> None:
    """A stack of the cluster would read those of its controller."""
    source = Source(name="gpustack/x", path=inventory, text=TEXT, digest="", is_local=False)
    result, findings = validate_source(source)
    assert result is None
    refused = [each.where.partition(" ")[2] for each in findings.all if each.code == "GP169"]
    assert sorted(refused) == ["driver.env.GIT_PAT.file", "driver.env.LICENSE.env", "proxy.https_proxy.env"]
    assert "ghp-1" not in str(findings)
