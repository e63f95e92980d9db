"""Running acceptance tests: ours and those of users, in a process of pytest's own."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from gpu_provision import ExitCode, RunFailedError, UsageError
from gpu_provision.inventory import load
from gpu_provision.model.progress import Event, State
from gpu_provision.verify import run
from gpu_provision.verify.hosts import host_of
from gpu_provision.verify.run import CheckOutcome, Verification, VerifyOptions, verify
from tests import data_file
from tests.hostile import find_control_characters

OURS = 9  # checks of a GPU host


def outcomes(found: Verification, node: str) -> dict[str, CheckOutcome]:
    return {check.sentence: check.outcome for check in found.checks if check.node == node}


def prepared(inventory_file: Path, node: str) -> None:
    host = host_of(load(inventory_file), node)
    host.run_test("modprobe ipmi_msghandler; echo ipmi_msghandler >/etc/modules-load.d/x.conf")
    host.run_test("echo 'blacklist nouveau' >/etc/modprobe.d/x.conf")


@pytest.mark.usefixtures("sandbox")
def test_every_host_is_judged_by_itself(inventory_file: Path) -> None:
    """Good, damaged, away, without a GPU, and without a host phase, all in one run."""
    for node in ("good-1", "two-1", "held-1"):
        prepared(inventory_file, node)
    events: list[Event] = []
    found = verify(VerifyOptions(inventory=str(inventory_file), cluster=False), events.append)
    assert set(outcomes(found, "good-1").values()) == {CheckOutcome.PASSED}
    assert len(outcomes(found, "good-1")) == OURS
    assert [check.sentence for check in found.checks_with(CheckOutcome.FAILED)] == [
        "the pci bus has the declared gpus",
        "nouveau is not loaded",
    ]
    assert [check.node for check in found.checks_with(CheckOutcome.FAILED)] == ["two-1", "held-1"]
    assert {check.node for check in found.checks_with(CheckOutcome.UNREACHABLE)} == {"away-1"}
    assert {check.node for check in found.checks_with(CheckOutcome.SKIPPED)} == {"alone-1"}
    assert set(outcomes(found, "cpu-1")) == {"the pci bus has the declared gpus", "no reboot is pending"}
    assert found.exit_code is ExitCode.FAILED
    assert {event.node for event in events if event.state is State.FAILED} == {"two-1", "held-1", "away-1"}


@pytest.mark.usefixtures("sandbox")
def test_each_damage_fails_its_check(inventory_file: Path) -> None:
    """With the reason in a sentence; everything else passes."""
    cases = data_file.document(Path(__file__).with_name("damage.yaml").read_text())
    prepared(inventory_file, "good-1")
    for damage, _, _ in cases:
        host_of(load(inventory_file), "good-1").run_test(damage)
    found = verify(VerifyOptions(inventory=str(inventory_file), cluster=False, nodes=("good-1",)))
    failed = {(check.sentence, check.reason) for check in found.checks_with(CheckOutcome.FAILED)}
    assert failed == {(sentence, reason) for _, sentence, reason in cases}
    assert len(found.checks_with(CheckOutcome.PASSED)) == OURS - len(cases)


@pytest.mark.usefixtures("sandbox")
def test_settings_that_differ_fail_with_both_values(inventory_file: Path) -> None:
    """As the running kernel has them, whatever stands in files."""
    prepared(inventory_file, "good-1")
    own = '{sysctls: {vm.max_map_count: "1", kernel.none: "1"}, hugepages: {2Mi: 64, 64Ki: 1}'
    declared = f"{{name: good-1, pool: t4, host_prerequisites: {own}, limits: {{memlock: unlimited, stack: 8Mi}}}}}}"
    inventory_file.write_text(inventory_file.read_text().replace("{name: good-1, pool: t4}", declared))
    host = host_of(load(inventory_file), "good-1")
    host.run_test("mkdir -p /proc/sys/vm; echo 65530 >/proc/sys/vm/max_map_count")
    host.run_test("echo 7 >/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages")
    found = verify(VerifyOptions(inventory=str(inventory_file), cluster=False, nodes=("good-1",)))
    assert [failed.reason for failed in found.checks_with(CheckOutcome.FAILED)] == [
        "vm.max_map_count is 65530, not 1; kernel.none is missing, not 1",
        "huge pages: 7 of 64 of 2Mi; 0 of 1 of 64Ki",
        "memlock is 8388608, not unlimited; stack is 8388608 or unlimited, not 8388608",
    ]


@pytest.mark.usefixtures("sandbox")
def test_exit_code_tells_silence_from_failure(inventory_file: Path) -> None:
    """A host that does not answer is worth a retry, unless a check failed as well."""
    found = verify(VerifyOptions(inventory=str(inventory_file), cluster=False, nodes=("away-1", "cpu-1")))
    assert found.exit_code is ExitCode.UNREACHABLE


def test_an_unreachable_cluster_fails_every_check(inventory_file: Path, tmp_path: Path) -> None:
    """And the reason is the client's."""
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(
        "{apiVersion: v1, kind: Config, current-context: x, contexts: [{name: x, context: {cluster: x, user: x}}],"
        " clusters: [{name: x, cluster: {server: 'http://127.0.0.1:9'}}], users: [{name: x, user: {}}]}"
    )
    found = verify(VerifyOptions(inventory=str(inventory_file), kubeconfig=str(kubeconfig), hosts=False))
    assert {check.outcome for check in found.checks} == {CheckOutcome.UNREACHABLE}
    assert "Connection refused" in found.checks[0].reason


@pytest.mark.usefixtures("sandbox")
def test_users_own_tests_run_beside_ours(inventory_file: Path, tmp_path: Path) -> None:
    """With the fixtures, their own conftest.py, and results in JUnit XML."""
    own = tmp_path / "acceptance"
    own.mkdir()
    (own / "conftest.py").write_text("import pytest\n@pytest.fixture\ndef wanted():\n    return 'good-1'\n")
    (own / "test_ours.py").write_text(
        "def test_the_host_has_its_own_name(gpu_node, gpu_host, gpu_inventory, wanted):\n"
        "    assert gpu_inventory.name == 'test'\n"
        "    assert gpu_node.gpus == gpu_node.pool.gpu.count == 1\n"
        "    assert gpu_host.check_output('hostname') == gpu_node.name == wanted, 'it is called \\x9b2J otherwise'\n"
    )
    junit = tmp_path / "results.xml"
    wanted = VerifyOptions(
        inventory=str(inventory_file),
        hosts=False,
        cluster=False,
        nodes=("good-1", "two-1"),
        tests=(str(own),),
        junit=str(junit),
    )
    found = verify(wanted)
    assert outcomes(found, "good-1") == {"the host has its own name": CheckOutcome.PASSED}
    assert [(check.node, check.reason) for check in found.checks_with(CheckOutcome.FAILED)] == [
        ("two-1", "it is called \x9b2J otherwise")
    ]
    assert find_control_characters(junit.read_text(encoding="utf-8")) == set()
    assert r"it is called \x9b2J otherwise" in junit.read_text(encoding="utf-8")
    suite = ET.parse(junit).getroot()[0]  # noqa: S314 - our own file
    assert (suite.get("tests"), suite.get("failures")) == ("2", "1")
    assert {each.get("value") for each in suite.iter("property")} == {"good-1", "two-1"}


@pytest.mark.parametrize("nodes", [(), ("good-1",)])
def test_tests_that_cannot_be_read_are_one_finding(
    inventory_file: Path, tmp_path: Path, nodes: tuple[str, ...]
) -> None:
    """With pytest's own words."""
    broken = tmp_path / "test_broken.py"
    broken.write_text("import nothing_of_this_name\n")
    with pytest.raises(RunFailedError, match="nothing_of_this_name"):
        verify(VerifyOptions(inventory=str(inventory_file), cluster=False, nodes=nodes, tests=(str(broken),)))


def test_missing_packages_are_named_before_anything_runs(inventory_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are an extra; the remedy is one command."""
    monkeypatch.setattr(run, "find_spec", lambda name: None if name == "testinfra" else object())
    with pytest.raises(UsageError, match=r"pip install 'gpu-provision\[verify\]'") as caught:
        verify(VerifyOptions(inventory=str(inventory_file)))
    assert "pytest-testinfra" in caught.value.findings[0].what


@pytest.mark.usefixtures("sandbox")
def test_users_configuration_of_pytest_stays_out_of_it(
    inventory_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the folder's nor the environment's."""
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --no-such-option\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTEST_ADDOPTS", "--nor-this")
    found = verify(VerifyOptions(inventory=str(inventory_file), cluster=False, nodes=("cpu-1",)))
    assert found.exit_code is ExitCode.OK


@pytest.mark.usefixtures("without_isolation")
def test_machine_that_cannot_isolate_hosts_skips_them(inventory_file: Path) -> None:
    """With the reason."""
    found = verify(VerifyOptions(inventory=str(inventory_file), cluster=False, nodes=("cpu-1",)))
    assert {check.outcome for check in found.checks} == {CheckOutcome.SKIPPED}
    assert "skipped" in found.checks[0].reason
