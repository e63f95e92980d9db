"""Symptoms and what they mean."""

from __future__ import annotations

import pytest

from gpu_provision.diagnostics.failures import Symptom, failures
from gpu_provision.diagnostics.remedies import _TABLE, remedy
from gpu_provision.model.codes import meanings
from gpu_provision.model.progress import NodeState, State


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
        ("something nobody has seen before", "GP500"),
    ],
)
def test_a_symptom_has_a_code(symptom: str, code: str) -> None:
    assert remedy(symptom).code == code


def test_every_remedy_has_a_documented_code_and_something_to_do() -> None:
    assert all(found.code in meanings() and found.fix and found.cause for _, found in _TABLE)


def test_the_log_speaks_before_the_state() -> None:
    """A crash loop's log names the cause that the pod's state cannot know."""
    state = NodeState(component="driver", node="t4-2", state=State.FAILED, reason="CrashLoopBackOff")
    lines = ("Installing", "ERROR: kernel headers for 5.15.0-999 not found", "Stopping")
    (finding,) = failures([Symptom(state, "nvidia-driver-x", lines)])
    assert finding.code == "GP501"
    assert "t4-2" in finding.what
    assert "5.15.0-999" in finding.evidence
    assert finding.fix


def test_one_cause_on_many_nodes_is_one_finding() -> None:
    states = [
        NodeState(component="driver", node=f"gpu-{number:02}", state=State.FAILED, reason="ImagePullBackOff")
        for number in range(12)
    ]
    (finding,) = failures([Symptom(state, "p", ()) for state in states])
    assert "gpu-00" in finding.what
    assert "and 4 more" in finding.what


def test_the_line_whose_cause_is_known_is_the_evidence() -> None:
    """Whatever else failed after it."""
    lines = ("NVRM: the nouveau kernel module is loaded and holds the GPU", "ERROR: cannot stop the daemon")
    state = NodeState(component="driver", node="t4-2", state=State.FAILED, reason="CrashLoopBackOff")
    (finding,) = failures([Symptom(state, "p", lines)])
    assert "nouveau" in finding.what
    assert lines[0] in finding.evidence
