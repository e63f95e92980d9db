"""Failed states as findings: the telling line, and what belongs together told once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpu_provision.diagnostics.failures import (
    FailedState,
    deferred_validation_findings,
    describe_exit,
    failure_findings,
    find_remedy,
    remedies,
    stack_kept_findings,
)
from gpu_provision.model.codes import meanings
from gpu_provision.model.findings import Severity
from gpu_provision.model.progress import NodeState, State
from tests import data_file

CASES: dict[str, dict[str, Any]] = data_file.document(Path(__file__).with_suffix(".yaml").read_text())


def state(component: str, node: str, kind: State = State.FAILED, reason: str = "Running") -> NodeState:
    return NodeState(component=component, node=node, state=kind, reason=reason)


def failed(component: str, node: str, reason: str = "Running", *lines: str) -> FailedState:
    return FailedState(state(component, node, reason=reason), "p", lines)


@pytest.mark.parametrize("symptom", CASES["symptoms"])
def test_a_symptom_has_a_code_and_a_cause(symptom: str) -> None:
    result, expected = find_remedy(symptom), CASES["symptoms"][symptom]
    assert expected == result.code or expected in result.cause


def test_every_remedy_has_a_documented_code_and_something_to_do() -> None:
    assert all(result.code in meanings() and result.fix and result.cause for _, result in remedies())


@pytest.mark.parametrize("case", CASES["states"])
def test_a_failed_state_is_a_finding(case: str) -> None:
    given = {"component": "driver", "node": "a", "reason": "Running", "lines": (), **CASES["states"][case]}
    expected = given.pop("finding")
    (finding,) = failure_findings([failed(*(given[key] for key in ("component", "node", "reason")), *given["lines"])])
    assert {key: getattr(finding, key) for key in expected} == expected
    assert finding.fix


def test_one_cause_on_many_nodes_is_one_finding() -> None:
    (finding,) = failure_findings([failed("driver", f"gpu-{number:02}", "ImagePullBackOff") for number in range(12)])
    assert "gpu-00" in finding.what
    assert "and 4 more" in finding.what


def test_what_follows_is_a_consequence_of_its_cause() -> None:
    """It needs no mending of its own."""
    symptoms = [failed("driver", node, "ImagePullBackOff") for node in ("a", "b")]
    blocked = [state(name, node, State.BLOCKED, "needs driver") for node in ("a", "b") for name in ("toolkit", "gfd")]
    behind = state("driver", "c", reason="the pod still runs the previous content")
    (finding,) = failure_findings(symptoms, [*blocked, behind])
    assert finding.consequence == "toolkit, gfd wait for it on a, b; driver waits for it on c"
    assert failure_findings([], blocked) == ()


def test_what_follows_belongs_to_the_cause_on_its_node() -> None:
    """Not with one that its component has elsewhere."""
    symptoms = [failed("toolkit", "a", "ImagePullBackOff"), failed("driver", "b", "nouveau holds the GPU")]
    first, second = failure_findings(symptoms, [state("toolkit", "b", State.BLOCKED)])
    assert (first.consequence, second.consequence) == ("", "toolkit waits for it on b")


NO_CONFIG = 'FailedMount: MountVolume.SetUp failed for volume "c" : configmap "time-slicing" not found'


def test_one_cause_in_several_components_is_one_finding() -> None:
    """Such as a ConfigMap that two of them mount, or a taint that keeps all of them off; other words are apart."""
    other = NO_CONFIG.replace("time-slicing", "metrics")
    mounts = {"device_plugin": NO_CONFIG, "gfd": NO_CONFIG, "dcgm_exporter": other}
    taint = "the pods do not tolerate the node's taint {team=ml:NoExecute}"
    kept_off = {"nfd": f"{taint} (not ready after 300 s)", "driver": f"{taint} (not ready after 1200 s)"}
    symptoms = [failed(name, "a", "Pending", line) for name, line in mounts.items()]
    symptoms += [failed(name, "c", reason) for name, reason in kept_off.items()]
    first, second, third = failure_findings(symptoms)
    assert first.what == "device_plugin, gfd failed on a: a volume of the pod cannot be mounted"
    assert NO_CONFIG in first.evidence
    assert other in second.evidence
    assert (third.code, third.what.partition(": ")[0]) == ("GP515", "nfd, driver failed on c")
    assert "team=ml" in third.evidence


@pytest.mark.parametrize("why", ["exceeded quota: q, requested: pods={}", 'violates PodSecurity "baseline:latest": {}'])
def test_a_refusal_of_pods_of_several_components_is_one_finding(why: str) -> None:
    """With the name of the quota or level; numbers and fields are those of one pod."""
    deployment = f'Deployment nfd/master: 0 of 1 replicas available; FailedCreate: pods "m-1" is forbidden: {why}'
    daemonset = f'FailedCreate: Error creating: pods "driver-" is forbidden: {why}'
    symptoms = [failed("nfd", "", deployment.format(1)), failed("driver", "a", "no pod", daemonset.format(2))]
    (finding,) = failure_findings(symptoms)
    assert finding.what == "nfd, driver failed on a: the API server refuses its pods"
    assert why.format(1) in finding.evidence
    other = failed("gfd", "a", "no pod", daemonset.replace("q,", "r,").replace("baseline", "restricted"))
    assert len(failure_findings([*symptoms, other])) == 2


def test_the_end_of_a_container_comes_with_its_cause() -> None:
    line = "ERROR: The kernel module failed to build for kernel 5.15.0-1."
    assert describe_exit("nvidia-driver-ctr: exit 1", ("Installing", line, "Unmounting")) == (
        f"the driver cannot be built for the kernel that the node runs: {line} (nvidia-driver-ctr: exit 1)"
    )
    assert describe_exit("main: exit 2", ("what?",)) == "main: exit 2: what?"


def test_validations_that_were_put_off_are_one_warning() -> None:
    busy = [state("device_plugin_validation", node, State.READY, "busy") for node in ("a", "b")]
    (finding,) = deferred_validation_findings([*busy, state("gfd", "c", State.READY, "")], "busy")
    assert "a, b" in finding.what
    assert deferred_validation_findings([], "busy") == ()


def test_nodes_that_keep_the_stack_are_one_finding_per_cause() -> None:
    """One that does as its policy says is a warning; one that failed stays cordoned."""
    blocked_ones = [state("node_labels", node, State.BLOCKED, "keeps: default/bare has no controller") for node in "ab"]
    by_policy = state("node_labels", "c", State.READY, "keeps: auto_upgrade is off")
    late = state("node_labels", "d", State.FAILED, "keeps: not gone after 300 s")
    result = stack_kept_findings([*blocked_ones, by_policy, late, state("node_labels", "e", State.READY, "")], "keeps")
    assert [(item.code, item.where, item.severity, "cordoned" in item.consequence) for item in result] == [
        ("GP513", "node a, b", Severity.ERROR, False),
        ("GP513", "node c", Severity.WARNING, False),
        ("GP513", "node d", Severity.ERROR, True),
    ]
    assert result[0].evidence == "default/bare has no controller"
