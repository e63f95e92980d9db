"""The pods that a drain evicts, as in kubectl drain."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_provision.model.cluster import Manifest
from gpu_provision.model.hosts import Drain
from gpu_provision.planning.drain_rules import data_loss_finding, describe_pod, not_drained_finding, plan_drain


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


CASES = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())


@pytest.mark.parametrize("case", CASES)
def test_every_pod_is_sorted_once(case: str) -> None:
    subject, wanted = pod(**CASES[case]["pod"]), CASES[case]["goes"]
    left = plan_drain([subject], Drain(**CASES[case]["drain"]))
    found = {"evict": left.evict, "ending": left.ending, "kept": tuple(each for each, _ in left.blocking)}
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
