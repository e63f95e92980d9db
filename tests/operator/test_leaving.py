"""What a reader should know before a stack's resource goes."""

from __future__ import annotations

from gpu_provision.cluster.client import Cluster
from gpu_provision.inventory import load
from gpu_provision.model.removal import RemovalResult
from gpu_provision.operator import leaving
from tests.operator.served import SANDBOX

NOW = load(SANDBOX)


def test_where_gitops_declares_a_stack_too_its_end_is_told_not_to_last(by_flux: Cluster) -> None:
    """Before anything is deleted."""
    (before,) = leaving.before_release(by_flux, NOW.name)
    assert (before.code, "Flux's Kustomization gpu" in before.what) == ("GP435", True)
    assert leaving.before_release(by_flux, "nobody") == ()
    stack = leaving.of(by_flux, NOW)
    ended = RemovalResult(cluster="test")
    for told in (leaving.foretold(ended, stack), leaving.warned(ended, stack)):
        assert [each.code for each in told.findings] == ["GP435"]
    assert leaving.warned(ended, None) == ended
