"""What is said of a host phase that was cut short."""

from __future__ import annotations

from gpu_provision.hosts.so_far import SoFar


def test_changes_and_steps_are_told_with_their_hosts() -> None:
    """Each once, however many hosts there are."""
    so_far = SoFar()
    for number in range(10):
        so_far.steps[f"gpu-{number}"] = "nouveau kept away"
        so_far.changes[f"gpu-{number}"] = ["modules loaded"]
    so_far.steps["gpu-9"] = "connecting"
    so_far.changes.pop("gpu-9")
    assert str(so_far) == (
        "changed so far: modules loaded"
        " (gpu-0, gpu-1, gpu-2, gpu-3, gpu-4, gpu-5, gpu-6, gpu-7 and 1 more)."
        " Last begun: nouveau kept away (gpu-0, gpu-1, gpu-2, gpu-3, gpu-4, gpu-5, gpu-6, gpu-7 and 1 more);"
        " connecting (gpu-9)"
    )


def test_a_run_that_changed_nothing_says_so() -> None:
    """Nobody has to guess."""
    assert str(SoFar(steps={"gpu-1": "connecting"})) == "changed so far: nothing. Last begun: connecting (gpu-1)"
    assert str(SoFar()) == "no host was reached yet"
