"""How an apply ended."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import ModuleType

from gpu_provision.model.progress import State
from gpu_provision.report import run

Golden = Callable[[str, str], None]


def test_the_result_reads_as_designed(samples: ModuleType, golden: Golden) -> None:
    """A table, the evidence, one closing sentence."""
    golden("run", run.text(samples.RESULT))


def test_a_run_with_a_failed_node_did_not_succeed(samples: ModuleType) -> None:
    """Failed and blocked are told, with the node."""
    assert not run.succeeded(samples.RESULT)
    assert run.closing(samples.RESULT).startswith("Not as declared: driver, toolkit on t4-2.")


def test_a_run_that_wrote_nothing_says_no_changes(samples: ModuleType) -> None:
    """The words that people look for in a second run."""
    ready = tuple(replace(each, state=State.READY) for each in samples.RESULT.states)
    assert "No changes" in run.closing(replace(samples.RESULT, changed=0, states=ready))
