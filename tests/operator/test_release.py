"""What a reader should know before a stack's resource goes."""

from __future__ import annotations

from gpu_provision.inventory import load
from gpu_provision.kube.client import Cluster
from gpu_provision.model.plan import DestroyResult
from gpu_provision.operator import remote_run
from gpu_provision.operator.client import get_stack
from tests.operator.served import SANDBOX

NOW = load(SANDBOX)


def test_end_of_a_stack_that_gitops_declares_is_a_warning(by_flux: Cluster) -> None:
    """Before anything is deleted."""
    (before,) = remote_run.release_findings(by_flux, NOW.name)
    assert (before.code, "Flux's Kustomization gpu" in before.what) == ("GP435", True)
    assert remote_run.release_findings(by_flux, "other") == ()
    stack = get_stack(by_flux, NOW)
    ended = DestroyResult(cluster="test")
    for told in (remote_run.preview_destroy(ended, stack), remote_run.with_warnings(ended, stack)):
        assert [each.code for each in told.findings] == ["GP435"]
    assert remote_run.with_warnings(ended, None) == ended
