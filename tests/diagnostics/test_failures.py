"""Failed states as findings: the telling line, and what belongs together told once."""

from __future__ import annotations

import pytest

from gpu_provision.diagnostics.failures import (
    FailedState,
    deferred_validation_findings,
    describe_exit,
    failure_findings,
    stack_kept_findings,
)
from gpu_provision.diagnostics.remedies import _TABLE, find_remedy
from gpu_provision.model.codes import meanings
from gpu_provision.model.findings import Severity
from gpu_provision.model.progress import NodeState, State


def state(component: str, node: str, kind: State = State.FAILED, reason: str = "Running") -> NodeState:
    return NodeState(component=component, node=node, state=kind, reason=reason)


def test_the_last_line_with_an_error_is_the_evidence() -> None:
    lines = ("starting", "ERROR: no headers", "cleaning up", "")
    (finding,) = failure_findings([FailedState(state("driver", "a"), "p", lines)])
    assert finding.evidence.endswith("ERROR: no headers")
    assert finding.where == "node a, pod p"


def test_a_silent_pod_is_described_by_its_state() -> None:
    (finding,) = failure_findings([FailedState(state("gfd", "a", reason="no pod on this node yet"), "", ())])
    assert finding.what == "gfd failed on a: no pod on this node yet"
    assert finding.fix


def test_a_component_that_is_not_per_node_names_none() -> None:
    (finding,) = failure_findings([FailedState(state("nfd", "", reason="0 of 1 replicas available"), "", ())])
    assert finding.what == "nfd failed: 0 of 1 replicas available"
    assert finding.where == ""


def test_different_causes_are_different_findings() -> None:
    pull, crash = state("driver", "a", reason="ImagePullBackOff"), state("driver", "b", reason="OOMKilled")
    assert len(failure_findings([FailedState(pull, "p", ()), FailedState(crash, "q", ())])) == 2


def test_what_follows_is_a_consequence_of_its_cause() -> None:
    """It needs no mending of its own."""
    symptoms = [FailedState(state("driver", node, reason="ImagePullBackOff"), "p", ()) for node in ("a", "b")]
    blocked = [state(name, node, State.BLOCKED, "needs driver") for node in ("a", "b") for name in ("toolkit", "gfd")]
    behind = state("driver", "c", reason="the pod still runs the previous content")
    (finding,) = failure_findings(symptoms, [*blocked, behind])
    assert finding.consequence == "toolkit, gfd wait for it on a, b; driver waits for it on c"
    assert failure_findings([], blocked) == ()


def test_what_follows_belongs_to_the_cause_on_its_node() -> None:
    """Not with one that its component has elsewhere."""
    symptoms = [
        FailedState(state("toolkit", "a", reason="ImagePullBackOff"), "p", ()),
        FailedState(state("driver", "b", reason="nouveau holds the GPU"), "q", ()),
    ]
    first, second = failure_findings(symptoms, [state("toolkit", "b", State.BLOCKED)])
    assert (first.consequence, second.consequence) == ("", "toolkit waits for it on b")


NO_CONFIG = 'FailedMount: MountVolume.SetUp failed for volume "c" : configmap "time-slicing" not found'


def test_one_cause_in_several_components_is_one_finding() -> None:
    """Such as a ConfigMap that two of them mount, or a taint that keeps all of them off."""
    mounts = [FailedState(state(name, "a", reason="Pending"), name, (NO_CONFIG,)) for name in ("device_plugin", "gfd")]
    taint = "the pods do not tolerate the node's taint {team=ml:NoExecute}"
    waited = {"nfd": 300, "driver": 1200}
    kept_off = [
        FailedState(state(name, "c", reason=f"{taint} (not ready after {seconds} s)"), "", ())
        for name, seconds in waited.items()
    ]
    first, second = failure_findings([*mounts, *kept_off])
    assert first.what == "device_plugin, gfd failed on a: a volume of the pod cannot be mounted"
    assert NO_CONFIG in first.evidence
    assert second.code == "GP515"
    assert second.what.startswith("nfd, driver failed on c: ")
    assert "team=ml" in second.evidence


def test_causes_that_are_seen_in_other_words_are_apart() -> None:
    other = NO_CONFIG.replace("time-slicing", "metrics")
    pods = {"gfd": NO_CONFIG, "dcgm_exporter": other}
    assert len(failure_findings([FailedState(state(name, "a"), name, (line,)) for name, line in pods.items()])) == 2


BUILD = ("Installing", "ERROR: The kernel module failed to build for kernel 5.15.0-1.", "Unmounting")


def test_progress_and_final_finding_name_the_same_cause() -> None:
    """The cause, then the line that shows it."""
    words = describe_exit("nvidia-driver-ctr: exit 1", BUILD)
    assert words == (
        "the driver cannot be built for the kernel that the node runs: "
        "ERROR: The kernel module failed to build for kernel 5.15.0-1. (nvidia-driver-ctr: exit 1)"
    )
    (finding,) = failure_findings(
        [FailedState(state("driver", "a", reason=f"{words} (not ready after 9 s)"), "p", BUILD)]
    )
    assert f"{finding.what.partition(': ')[2]}: {finding.evidence}" == f"{words} (not ready after 9 s)"
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
    found = stack_kept_findings([*blocked_ones, by_policy, late, state("node_labels", "e", State.READY, "")], "keeps")
    assert [(item.code, item.where, item.severity) for item in found] == [
        ("GP513", "node a, b", Severity.ERROR),
        ("GP513", "node c", Severity.WARNING),
        ("GP513", "node d", Severity.ERROR),
    ]
    assert found[0].evidence == "default/bare has no controller"
    assert ["cordoned" in (item.consequence or "") for item in found] == [False, False, True]


@pytest.mark.parametrize(
    ("symptom", "code"),
    [
        ("ctr: ImagePullBackOff: not found", "GP502"),
        ("Could not resolve Linux kernel version", "GP501"),
        ("E: Unable to locate package linux-headers-5.15.0-1", "GP501"),
        ("ERROR: the nouveau kernel driver is in use", "GP501"),
        ("modprobe: ERROR: could not insert 'nvidia': Key was rejected by service", "GP501"),
        ("the inventory declares 8 x H100, the node offers 7 nvidia.com/gpu to pods", "GP504"),
        ("Failed to allocate device vector A (error code no CUDA-capable device is detected)!", "GP503"),
        ("not gone after 20 s (pod_deletion.timeout_seconds): ml/web: the disruption budget web needs 1", "GP501"),
        ("Unschedulable: 1 node(s) had untolerated taint {gpu-provision.io/not-validated: }", "GP512"),
        ("Unschedulable: 0/2 nodes are available: 1 node(s) had untolerated taint {team: ml}.", "GP515"),
        ("1 node(s) had taint {team: ml}, that the pod didn't tolerate, 1 Insufficient nvidia.com/gpu.", "GP515"),
        ("0/2 nodes are available: 1 Insufficient nvidia.com/gpu.", "GP503"),
        ("Failed to allocate device vector A (error code system not yet initialized)!", "GP516"),
        ("CUDA error 802: cudaErrorSystemNotReady", "GP516"),
        ("ERROR: Unable to load the kernel module 'nvidia.ko'.", "GP501"),
        ("modprobe: ERROR: could not insert 'nvidia': No such device", "GP501"),
        ("something never seen before", "GP500"),
    ],
)
def test_a_symptom_has_a_code(symptom: str, code: str) -> None:
    assert find_remedy(symptom).code == code


def test_every_remedy_has_a_documented_code_and_something_to_do() -> None:
    assert all(found.code in meanings() and found.fix and found.cause for _, found in _TABLE)


def test_the_log_speaks_before_the_state() -> None:
    """A crash loop's log names the cause that the pod's state cannot know."""
    state = NodeState(component="driver", node="t4-2", state=State.FAILED, reason="CrashLoopBackOff")
    lines = ("Installing", "ERROR: kernel headers for 5.15.0-999 not found", "Stopping")
    (finding,) = failure_findings([FailedState(state, "nvidia-driver-x", lines)])
    assert finding.code == "GP501"
    assert "t4-2" in finding.what
    assert "5.15.0-999" in finding.evidence
    assert finding.fix


def test_one_cause_on_many_nodes_is_one_finding() -> None:
    states = [
        NodeState(component="driver", node=f"gpu-{number:02}", state=State.FAILED, reason="ImagePullBackOff")
        for number in range(12)
    ]
    (finding,) = failure_findings([FailedState(state, "p", ()) for state in states])
    assert "gpu-00" in finding.what
    assert "and 4 more" in finding.what


def test_the_line_whose_cause_is_known_is_the_evidence() -> None:
    """Whatever else failed after it."""
    lines = ("NVRM: the nouveau kernel module is loaded and holds the GPU", "ERROR: cannot stop the daemon")
    state = NodeState(component="driver", node="t4-2", state=State.FAILED, reason="CrashLoopBackOff")
    (finding,) = failure_findings([FailedState(state, "p", lines)])
    assert "nouveau" in finding.what
    assert lines[0] in finding.evidence
