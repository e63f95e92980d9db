"""What a caller that waits for a run hears."""

from __future__ import annotations

from gpu_provision.model.progress import NodeState, State
from gpu_provision.reconcile.run_thread import summary
from gpu_provision.reconcile.session import Session
from tests.components.builders import inventory


def test_a_summary_counts_nodes_and_names_the_first_missing() -> None:
    found = [
        NodeState(component="gfd", node="", state=State.READY),
        NodeState(component="gfd", node="a", state=State.READY),
        NodeState(component="gfd", node="b", state=State.PROGRESSING, reason="ImagePullBackOff"),
        NodeState(component="dcgm", node="b", state=State.PROGRESSING, reason="other"),
    ]
    states = {(state.component, state.node): state for state in found}
    assert summary(states, "gfd") == "1/2 ready; b: ImagePullBackOff"
    assert summary({}, "gfd") == "0/0 ready"


def test_waiting_for_a_run_that_did_not_start_returns() -> None:
    """Nothing had to change; no cluster is asked."""
    session = Session(inventory())
    assert session.wait("driver") == ()
    assert session.finish() is None
