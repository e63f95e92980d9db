"""Failed states as findings: the telling line, and what belongs together told once."""

from __future__ import annotations

from gpu_provision.diagnose.failures import Symptom, blocked, failures, staying, unvalidated
from gpu_provision.model.findings import Severity
from gpu_provision.model.progress import NodeState, State


def state(component: str, node: str, kind: State = State.FAILED, reason: str = "Running") -> NodeState:
    return NodeState(component=component, node=node, state=kind, reason=reason)


def test_the_last_line_with_an_error_is_the_evidence() -> None:
    lines = ("starting", "ERROR: no headers", "cleaning up", "")
    (finding,) = failures([Symptom(state("driver", "a"), "p", lines)])
    assert finding.evidence.endswith("ERROR: no headers")
    assert finding.where == "node a, pod p"


def test_a_pod_that_says_nothing_is_told_by_its_state() -> None:
    (finding,) = failures([Symptom(state("gfd", "a", reason="no pod on this node yet"), "", ())])
    assert finding.what == "gfd failed on a: no pod on this node yet"
    assert finding.fix


def test_a_component_that_is_not_per_node_names_none() -> None:
    (finding,) = failures([Symptom(state("nfd", "", reason="0 of 1 replicas available"), "", ())])
    assert finding.what == "nfd failed: 0 of 1 replicas available"
    assert finding.where == ""


def test_different_causes_are_different_findings() -> None:
    pull, crash = state("driver", "a", reason="ImagePullBackOff"), state("driver", "b", reason="OOMKilled")
    assert len(failures([Symptom(pull, "p", ()), Symptom(crash, "q", ())])) == 2


def test_what_is_blocked_alike_is_told_once_as_a_warning() -> None:
    states = [state(name, node, State.BLOCKED, "needs driver") for node in ("a", "b") for name in ("toolkit", "gfd")]
    (finding,) = blocked([*states, state("driver", "a")])
    assert finding.what == "blocked on a, b: toolkit, gfd"
    assert finding.severity is Severity.WARNING
    assert blocked([state("driver", "a")]) == ()


def test_validations_that_were_put_off_are_one_warning() -> None:
    busy = [state("device_plugin_validation", node, State.READY, "busy") for node in ("a", "b")]
    (finding,) = unvalidated([*busy, state("gfd", "c", State.READY, "")], "busy")
    assert "a, b" in finding.what
    assert unvalidated([], "busy") == ()


def test_nodes_that_keep_the_stack_for_one_reason_are_one_finding() -> None:
    """One that does as its policy says is a warning; one that failed stays cordoned."""
    blocked_ones = [state("node_labels", node, State.BLOCKED, "keeps: default/bare has no controller") for node in "ab"]
    by_policy = state("node_labels", "c", State.READY, "keeps: auto_upgrade is off")
    late = state("node_labels", "d", State.FAILED, "keeps: not gone after 300 s")
    found = staying([*blocked_ones, by_policy, late, state("node_labels", "e", State.READY, "")], "keeps")
    assert [(item.code, item.where, item.severity) for item in found] == [
        ("GP513", "node a, b", Severity.ERROR),
        ("GP513", "node c", Severity.WARNING),
        ("GP513", "node d", Severity.ERROR),
    ]
    assert found[0].evidence == "default/bare has no controller"
    assert ["cordoned" in (item.consequence or "") for item in found] == [False, False, True]
