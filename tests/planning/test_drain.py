"""Which pods leave a drained node, as kubectl drain has it."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_provision.model.cluster import Manifest
from gpu_provision.model.hosts import Drain
from gpu_provision.planning.drain import data_loss_finding, describe_pod, not_drained_finding, plan_drain

FORCE, EMPTY = Drain(force=True), Drain(delete_empty_dir=True)


def pod(name: str = "p", owner: str = "ReplicaSet", **changes: Any) -> Manifest:
    """Return a running pod; ``owner`` is its controller's kind, empty for none."""
    metadata: dict[str, Any] = {"name": name, "namespace": "work", "uid": f"uid-{name}"}
    if owner:
        metadata["ownerReferences"] = [{"kind": owner, "name": "o", "controller": True}]
    metadata |= changes.pop("metadata", {})
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"volumes": changes.pop("volumes", []), "serviceAccountName": changes.pop("account", "default")},
        "status": {"phase": changes.pop("phase", "Running")},
    }


CASES: dict[str, tuple[Manifest, Drain, str]] = {
    "a pod of a controller goes": (pod(), Drain(), "evict"),
    "that of a job, too": (pod(owner="Job"), Drain(), "evict"),
    "that of a stateful set, too": (pod(owner="StatefulSet"), Drain(), "evict"),
    "pods that have not started, too": (pod(phase="Pending"), Drain(), "evict"),
    "one of a daemon set would be back at once": (pod(owner="DaemonSet"), Drain(), "stays"),
    "a static pod is the kubelet's": (
        pod(owner="Node", metadata={"annotations": {"kubernetes.io/config.mirror": "x"}}),
        Drain(),
        "stays",
    ),
    "a pod that is over uses nothing": (pod(owner="", phase="Succeeded"), Drain(), "stays"),
    "nor does one that failed": (pod(owner="", phase="Failed"), Drain(), "stays"),
    "our way onto the node": (pod(owner="", metadata={"labels": {"gpu-provision.io/helper": "x"}}), Drain(), "stays"),
    "our own pods are made again": (
        pod(owner="", metadata={"labels": {"app.kubernetes.io/managed-by": "gpu-provision"}}),
        Drain(),
        "evict",
    ),
    "the validator starts its pod again": (
        pod(owner="", metadata={"labels": {"app": "nvidia-cuda-validator"}}, account="nvidia-operator-validator"),
        Drain(),
        "evict",
    ),
    "a pod without a controller is lost": (pod(owner=""), Drain(), "kept"),
    "with force it goes": (pod(owner=""), FORCE, "evict"),
    "an owner that is no controller brings nothing back": (
        pod(owner="", metadata={"ownerReferences": [{"kind": "ConfigMap", "name": "c"}]}),
        Drain(),
        "kept",
    ),
    "an emptyDir is lost": (pod(volumes=[{"name": "scratch", "emptyDir": {}}]), Drain(), "kept"),
    "force is not meant for that": (pod(volumes=[{"name": "scratch", "emptyDir": {}}]), FORCE, "kept"),
    "it has its own word": (pod(volumes=[{"name": "scratch", "emptyDir": {}}]), EMPTY, "evict"),
    "other volumes are not": (pod(volumes=[{"name": "c", "configMap": {"name": "c"}}]), Drain(), "evict"),
    "what is going is awaited, however it was": (
        pod(owner="", metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"}),
        Drain(),
        "ending",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_every_pod_is_sorted_once(case: str) -> None:
    subject, terms, wanted = CASES[case]
    left = plan_drain([subject], terms)
    found = {"evict": left.evict, "ending": left.ending, "kept": tuple(each for each, _ in left.kept)}
    assert found == {name: ((subject,) if name == wanted else ()) for name in found}


def test_a_refusal_names_every_pod_with_what_would_be_lost() -> None:
    both = pod("both", owner="", volumes=[{"name": "scratch", "emptyDir": {}}])
    finding = data_loss_finding("gpu-1", plan_drain([both, pod("fine"), pod("bare", owner="")], Drain()))
    assert finding is not None
    assert (finding.code, finding.where) == ("GP695", "gpu-1")
    assert finding.evidence == (
        "work/bare: no controller would bring it back, "
        "work/both: no controller would bring it back and its emptyDir volumes would be lost"
    )
    assert data_loss_finding("gpu-1", plan_drain([pod()], Drain())) is None


def test_pods_that_stay_too_long_are_named_with_their_budget() -> None:
    going = pod("going", metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"})
    finding = not_drained_finding(
        "gpu-1", 300, plan_drain([pod("held"), going], Drain()), {"uid-held": "budget web needs 2"}
    )
    assert "2 pods did not leave the node within 300 s" in finding.what
    assert finding.evidence == "work/held (ReplicaSet o): budget web needs 2, work/going (ReplicaSet o): still ending"


def test_pods_go_by_the_names_that_people_gave() -> None:
    """The ReplicaSet that a Deployment makes has a name of its own."""
    owners = [{"kind": "ReplicaSet", "name": "web-5d8f", "controller": True}]
    made = pod(metadata={"ownerReferences": owners, "labels": {"pod-template-hash": "5d8f"}})
    assert describe_pod(made) == "work/p (Deployment web)"
    assert describe_pod(pod(owner="")) == "work/p"
