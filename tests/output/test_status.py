"""How a stack, a run and its hosts stand, as text and as JSON."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from gpu_provision.hosts.result import HostsResult
from gpu_provision.model.progress import OutsideState, State
from gpu_provision.output import status
from gpu_provision.output.text import Style
from tests.output import samples

Golden = Callable[[str, str], None]


def test_the_result_reads_as_designed(golden: Golden) -> None:
    """A table, the evidence, one closing sentence."""
    golden("run", status.run_text(samples.RESULT))


def test_a_run_that_wrote_nothing_says_no_changes() -> None:
    """The words that people look for in a second run; one with a failed node did not succeed."""
    assert not status.has_succeeded(samples.RESULT)
    ready = tuple(replace(each, state=State.READY) for each in samples.RESULT.states)
    assert "No changes" in status.closing(replace(samples.RESULT, changed=0, states=ready))


def test_a_driver_of_the_hosts_own_is_named() -> None:
    """A host without one, or that was not asked, has no such part."""
    own, plain = replace(samples.HOSTS.hosts[0], name="own-1", driver="550.90.07"), samples.HOSTS.hosts[0]
    lines = status.hosts_text(HostsResult(hosts=(own, replace(plain, driver="")))).splitlines()
    assert lines[0] == "~ own-1  8 GPUs  host driver 550.90.07"
    assert lines[2] == f"~ {plain.name}  8 GPUs"


def test_the_tables_read_as_designed(golden: Golden) -> None:
    """Components, nodes, evidence."""
    golden("status", status.text(samples.STATUS))
    golden("status-verbose", status.text(samples.STATUS, verbose=True))


@pytest.mark.parametrize("columns", [80, 160])
def test_the_tables_fit_the_terminal(golden: Golden, columns: int) -> None:
    """Also where pools differ, a node is cordoned, and a reason is long."""
    driver, *others = samples.STATUS.components
    versions = {"t4": "595.91.07", "h100": "580.126.20"}
    first, second = samples.STATUS.nodes
    reason = "driver: CrashLoopBackOff: modprobe: ERROR: could not insert 'nvidia': Key was rejected by service"
    node = replace(first, state=State.FAILED, reason=reason, cordoned=True, cordoned_by="kubectl since 08:00:00Z")
    found = replace(samples.STATUS, components=(replace(driver, versions=versions), *others), nodes=(node, second))
    text = status.text(found, Style(columns=columns))
    golden(f"status-{columns}", text)
    assert max(map(len, text.splitlines())) <= columns


def test_equal_logs_are_shown_once_with_all_their_nodes() -> None:
    """Six passed validations are six lines, not thirty-six."""
    second = replace(samples.EVIDENCE, node="t4-2", pod="nvidia-driver-validation-t4-2-9f8e7d6c")
    text = status.evidence([samples.EVIDENCE, second])
    assert text.count("Test PASSED") == 1
    assert text.startswith("driver_validation on t4-1, t4-2: passed (2 pods, such as ")
    failed = replace(samples.EVIDENCE, node="t4-2", passed=False, lines=("Failed to allocate",))
    assert "driver_validation on t4-2: failed" in status.evidence([samples.EVIDENCE, failed])


def test_an_expected_driver_that_is_missing_is_not_loaded() -> None:
    """Not on a node without a GPU, on one that the stack leaves alone, and where the host's own is not known."""
    gpu, cpu = (replace(row, driver="") for row in samples.STATUS.nodes)
    own = replace(gpu, driver="550.90.07", driver_on_host=True)
    host, uncounted = replace(gpu, driver_on_host=True), replace(gpu, gpus=None)
    rows = [gpu, cpu, replace(gpu, state=OutsideState.UNDECLARED), host, uncounted, own]
    lines = status.nodes(rows).splitlines()[1:]
    assert ["not loaded" in line for line in lines] == [True, False, False, False, True, False]
    assert "550.90.07 (host)" in lines[-1]
    assert "  0/?  " in status.nodes([replace(gpu, allocatable=0, gpus=None)])  # an unknown number is no zero


def test_a_long_reason_is_cut_and_free_of_uids() -> None:
    """The document has all of it."""
    pod = "container=nvidia-driver-ctr pod=nvidia-driver-x_gpu(9c38e58e-0000-4000-8000-000000000000)"
    reason = f"driver: CrashLoopBackOff: back-off 30s restarting failed {pod}, last exit 1{' and more' * 20}"
    found = replace(samples.STATUS, nodes=(replace(samples.STATUS.nodes[0], state=State.FAILED, reason=reason),))
    text = status.text(found)
    assert "CrashLoopBackOff, last exit 1 and more" in text
    assert max(map(len, text.splitlines())) < 260
    assert status.document(found)["nodes"][0]["reason"] == reason


def test_the_stack_is_ready_when_its_gpu_nodes_are() -> None:
    """Neither one without a GPU nor one that nothing declares is awaited; one that leaves is: there is work to do."""
    ready = replace(samples.STATUS, components=samples.STATUS.components[1:])
    node, without_gpu = samples.STATUS.nodes
    assert not status.is_ready(samples.STATUS)
    assert status.is_ready(replace(ready, nodes=(node, replace(without_gpu, state=State.PENDING))))
    assert status.is_ready(replace(ready, nodes=(replace(node, state=OutsideState.UNDECLARED),)))
    assert not status.is_ready(replace(ready, nodes=(replace(node, state=State.LEAVING),)))


def test_a_cluster_without_the_stack_is_one_sentence() -> None:
    found = replace(samples.STATUS, installed=False)
    assert status.text(found).splitlines()[2:] == [
        "Not installed: cluster sandbox (v1.34.0) has nothing of inventory sandbox."
    ]
    assert status.document(found)["installed"] is False
