"""What the commands print and call."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest
import yaml

from gpu_provision.cli.limits import limited
from gpu_provision.cli.overrides import with_timeout
from gpu_provision.hosts.result import HostOutcome, HostsResult
from gpu_provision.inventory import load
from gpu_provision.model.findings import ExitCode, UsageError
from gpu_provision.report.documents import output_schema
from tests.cli.harness import SANDBOX, Fakes, Run, plan_of


def _hosts(*hosts: HostOutcome) -> HostsResult:
    return HostsResult(hosts=hosts)


@pytest.mark.parametrize(
    "words",
    [
        ["validate"],
        ["render"],
        ["rbac"],
        ["plan", "--offline", "--cluster-only"],
        ["plan"],
        ["apply"],
        ["preflight"],
        ["status"],
        ["sandbox", "status"],
        ["sandbox", "kubeconfig"],
    ],
)
def test_every_command_prints_one_document_that_fits_the_schema(
    run: Run, fakes: Fakes, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    """Also those that fail."""
    fakes.hosts = _hosts(HostOutcome(name="t4-1", changes=("load ipmi_msghandler",), gpus=1))
    monkeypatch.setenv("GPU_PROVISION_INVENTORY", str(SANDBOX))
    document = run(*words, "--json").document
    assert document["command"] == " ".join(word for word in words if not word.startswith("-"))
    jsonschema.validate(document, dict(output_schema()))


def test_schema_prints_what_editors_need(run: Run) -> None:
    """One JSON Schema, and one for the output."""
    assert run("schema").document["$schema"].endswith("2020-12/schema")
    assert run("schema", "--output").document["title"] == "What gpu-provision --json prints"


def test_render_prints_every_object(run: Run) -> None:
    """The stream is what kubectl apply -f - takes."""
    kinds = {manifest["kind"] for manifest in yaml.safe_load_all(run("render", "-i", SANDBOX).out)}
    assert {"Namespace", "DaemonSet", "RuntimeClass"} <= kinds


def test_rbac_prints_roles_and_the_bindings_that_are_asked_for(run: Run) -> None:
    """Without a subject there is nobody to bind; what is missing is said beside the result."""
    alone = run("rbac", "-i", SANDBOX)
    assert {item["kind"] for item in yaml.safe_load_all(alone.out)} == {"Namespace", "ClusterRole", "Role"}
    assert "--service-account" in alone.err
    words = ("--user", "bob", "--group", "ops", "--service-account", "ci:robot", "--read-only", "--json")
    manifests = run("rbac", "-i", SANDBOX, *words).document["manifests"]
    subjects = next(item for item in manifests if item["kind"] == "ClusterRoleBinding")["subjects"]
    assert [(one["kind"], one["name"], one.get("namespace")) for one in subjects] == [
        ("User", "bob", None),
        ("Group", "ops", None),
        ("ServiceAccount", "robot", "ci"),
    ]


@pytest.mark.parametrize("word", ["robot", "ci:", ":robot", "a:b:c"])
def test_a_service_account_is_named_with_its_namespace(run: Run, word: str) -> None:
    ran = run("rbac", "-i", SANDBOX, "--service-account", word)
    assert (ran.code, "GP002" in ran.err) == (ExitCode.USAGE, True)


def test_render_writes_files_and_removes_its_own_stale_ones(run: Run, tmp_path: Path) -> None:
    """A component that is off leaves no file behind; other people's files stay."""
    folder = tmp_path / "out"
    run("render", "-i", SANDBOX, "--output", folder)
    first = sorted(path.name for path in folder.iterdir())
    (folder / "99-old.yaml").write_text((folder / first[0]).read_text())
    (folder / "mine.yaml").write_text("a: 1\n")
    run("render", "-i", SANDBOX, "--output", folder)
    assert sorted(path.name for path in folder.iterdir()) == [*first, "mine.yaml"]
    assert first[0] == "01-prerequisites.yaml"


def test_render_into_a_file_is_told_as_such(run: Run, tmp_path: Path) -> None:
    """A folder that cannot be made is a clear message."""
    (tmp_path / "file").write_text("")
    ran = run("render", "-i", SANDBOX, "--output", tmp_path / "file" / "out")
    assert ran.code == ExitCode.USAGE
    assert "GP007" in ran.err


def test_a_plan_names_the_next_command_and_quiet_does_not(run: Run, fakes: Fakes) -> None:
    """The hint is for people."""
    assert fakes.plan
    assert f"Next: gpu-provision apply -i {SANDBOX}" in run("plan", "-i", SANDBOX).out
    assert "Next:" not in run("plan", "-i", SANDBOX, "-q").out


def test_a_target_narrows_the_plan(run: Run, fakes: Fakes) -> None:
    """Dashes and underscores are the same."""
    fakes.plan = replace(plan_of(), components=("driver", "device_plugin"))
    document = run("plan", "-i", SANDBOX, "--target", "device-plugin", "--json").document
    assert document["components"] == ["device_plugin"]


def test_a_failed_host_holds_the_cluster_phase_back(run: Run, fakes: Fakes) -> None:
    """And says which host, why, and how to go on."""
    fakes.hosts = _hosts(HostOutcome(name="t4-1"), HostOutcome(name="t4-2", failed=True, reason="cannot be reached"))
    ran = run("apply", "-i", SANDBOX)
    assert ran.code == ExitCode.FAILED
    assert fakes.applied == 0
    assert "GP008 t4-2: cannot be reached" in ran.err
    assert "held back" in ran.err


def test_hosts_only_and_limit_leave_the_cluster_alone(run: Run, fakes: Fakes) -> None:
    """The cluster phase never runs over hosts that were left out."""
    fakes.hosts = _hosts(HostOutcome(name="t4-1"))
    assert run("apply", "-i", SANDBOX, "--hosts-only").code == ExitCode.OK
    assert run("apply", "-i", SANDBOX, "--limit", "t4-1").code == ExitCode.OK
    assert fakes.applied == 0


def test_validating_gpus_refuses_a_cluster_that_is_not_as_declared(run: Run, fakes: Fakes) -> None:
    """Validating changes nothing but runs the validations."""
    ran = run("validate", "-i", SANDBOX, "--gpus")
    assert ran.code == ExitCode.FAILED
    assert "GP010" in ran.err
    fakes.plan = plan_of()
    assert run("validate", "-i", SANDBOX, "--gpus").code == ExitCode.OK
    assert fakes.applied == 1


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        (None, ()),
        ("t4-1", ("t4-1",)),
        ("t4-*,cpu-1", ("t4-1", "t4-2", "cpu-1")),
        ("pool_h100", ("h100-1",)),
        ("gpu", ("t4-1", "t4-2", "h100-1")),
        ("nodes", ("t4-1", "t4-2", "h100-1", "cpu-1", "control-1")),
    ],
)
def test_limit_takes_names_patterns_and_groups(option: str | None, expected: tuple[str, ...]) -> None:
    """In the inventory's order."""
    assert limited(load(SANDBOX), option) == expected


def test_limit_takes_a_file(tmp_path: Path) -> None:
    """One a line; comments and blank lines do not count."""
    hosts = tmp_path / "failed.txt"
    hosts.write_text("# from the last run\nt4-2\n\nh100-1\n")
    assert limited(load(SANDBOX), f"@{hosts}") == ("t4-2", "h100-1")


@pytest.mark.parametrize("option", ["nope", "t4-1,nope", ","])
def test_a_limit_that_matches_nothing_is_an_error(option: str) -> None:
    """Running nothing and calling it success helps nobody."""
    with pytest.raises(UsageError):
        limited(load(SANDBOX), option)


def test_timeout_is_every_components_deadline() -> None:
    """Pools' drivers included; without the option the inventory's figures stay."""
    inventory = load(SANDBOX)
    changed = with_timeout(inventory, 7)
    assert changed.specs.driver.timeout == changed.specs.gfd.timeout == changed.pools["t4"].driver.timeout == 7
    assert with_timeout(inventory, None) is inventory


def test_an_inventory_is_found_by_its_short_name_and_beside_pyinfras(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """-i sandbox and -i inventories/sandbox.py both mean inventories/sandbox.yaml."""
    monkeypatch.chdir(SANDBOX.parents[1])
    for name in ("sandbox", "inventories/sandbox.py"):
        assert run("validate", "-i", name).out.startswith("inventories/sandbox.yaml is valid")
