"""How an apply ended."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import ModuleType

from gpu_provision.hosts.result import HostsResult
from gpu_provision.model.progress import State
from gpu_provision.output import status

Golden = Callable[[str, str], None]


def test_the_result_reads_as_designed(samples: ModuleType, golden: Golden) -> None:
    """A table, the evidence, one closing sentence."""
    golden("run", status.run_text(samples.RESULT))


def test_a_run_with_a_failed_node_did_not_succeed(samples: ModuleType) -> None:
    """Failed and blocked, with the node."""
    assert not status.has_succeeded(samples.RESULT)
    assert status.closing(samples.RESULT).startswith("Not as declared: driver, toolkit on t4-2.")


def test_a_run_that_wrote_nothing_says_no_changes(samples: ModuleType) -> None:
    """The words that people look for in a second run."""
    ready = tuple(replace(each, state=State.READY) for each in samples.RESULT.states)
    assert "No changes" in status.closing(replace(samples.RESULT, changed=0, states=ready))


def test_equal_hosts_are_one_block(samples: ModuleType) -> None:
    """A fleet of equal machines takes two lines."""
    assert status.hosts_text(samples.HOSTS).splitlines() == [
        "~ gpu-01..03  8 GPUs",
        "    load kernel module ipmi_msghandler",
        "= t4-1  1 GPU",
        "! t4-2",
        "    cannot be reached",
    ]


def test_a_driver_of_the_hosts_own_is_named(samples: ModuleType) -> None:
    """A host without one, or that was not asked, has no such part."""
    own, plain = replace(samples.HOSTS.hosts[0], name="own-1", driver="550.90.07"), samples.HOSTS.hosts[0]
    lines = status.hosts_text(HostsResult(hosts=(own, replace(plain, driver="")))).splitlines()
    assert lines[0] == "~ own-1  8 GPUs  host driver 550.90.07"
    assert lines[2] == f"~ {plain.name}  8 GPUs"


def test_what_is_only_planned_is_still_to_do(samples: ModuleType) -> None:
    """The words of a change are the same in a plan and in a run."""
    heads = [line for line in status.hosts_text(samples.HOSTS, done=False).splitlines() if not line.startswith(" ")]
    assert heads == ["~ gpu-01..03  8 GPUs  to do:", "= t4-1  1 GPU", "! t4-2"]
