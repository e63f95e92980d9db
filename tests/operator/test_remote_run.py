"""Leader detection by a client, and warnings before the deletion of a GPUStack."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

import pytest

from gpu_provision.inventory import load
from gpu_provision.kube.client import KubeClient
from gpu_provision.kube.informer import InformerCache
from gpu_provision.model.plan import DestroyResult
from gpu_provision.operator import remote_run
from gpu_provision.operator.client import get_stack
from gpu_provision.operator.remote_run import TAKEOVER_SECONDS, LeaderMonitor
from gpu_provision.operator.stack import LEASE_ANNOTATION, lease_of
from tests.operator.conftest import SANDBOX

LEASE = lease_of(None)


Look = Callable[..., LeaderMonitor]


@pytest.fixture
def look(monkeypatch: pytest.MonkeyPatch) -> Look:
    """Returns a function that sets the lease, None for no lease, after some seconds, and returns the monitor."""
    clock, monitor = SimpleNamespace(now=100.0), LeaderMonitor(LEASE, _since=100.0)
    monkeypatch.setattr(remote_run.time, "monotonic", lambda: clock.now)

    def observed(holder: str | None, version: str = "1", *, after: float = 0.0) -> LeaderMonitor:
        clock.now += after
        lease = {"metadata": {"resourceVersion": version}, "spec": {"holderIdentity": holder}}
        live = {} if holder is None else {LEASE: lease}
        monitor.observe(cast("InformerCache", SimpleNamespace(list=lambda _: live)))
        return monitor

    return observed


def test_holder_counts_once_it_renews_while_we_watch(look: Look) -> None:
    """A killed controller stays the holder."""
    assert not look("a").renewal_seen
    assert not look("a", after=TAKEOVER_SECONDS).is_missing()
    assert look("a", after=0.1).is_missing()
    assert look("a", "2").renewal_seen
    assert not look("a", "2").is_missing()


@pytest.mark.parametrize("holder", [None, ""])
def test_lease_without_a_holder_is_not_waited_for_long(look: Look, holder: str | None) -> None:
    """Another controller takes over at once."""
    assert not look(holder).is_missing()
    assert look(holder, after=3.5).is_missing()
    assert not look("b", "2").is_missing()


def test_lease_that_is_given_back_is_no_renewal(look: Look) -> None:
    """A controller that releases the lease writes it, too."""
    look("a")
    assert not look("", "2").renewal_seen
    assert look("b", "3").renewal_seen


def test_stack_names_the_lease_of_its_controllers() -> None:
    """For controllers in another namespace."""
    stack = {"metadata": {"name": "main", "annotations": {LEASE_ANNOTATION: "elsewhere/gpu-provision-operator"}}}
    assert lease_of(stack) == LEASE._replace(namespace="elsewhere")


NOW = load(SANDBOX)


def test_end_of_a_stack_that_gitops_declares_is_a_warning(by_flux: KubeClient) -> None:
    """Before any deletion."""
    (before,) = remote_run.release_findings(by_flux, NOW.name)
    assert (before.code, "Flux's Kustomization gpu" in before.what) == ("GP435", True)
    assert remote_run.release_findings(by_flux, "other") == ()
    stack = get_stack(by_flux, NOW)
    ended = DestroyResult(cluster="test")
    for dry_run in (True, False):
        result = remote_run.add_to_removal(ended, stack, dry_run=dry_run)
        assert [each.code for each in result.findings] == ["GP435"]
        assert [change.ref.kind for change in result.changes] == (["GPUStack"] if dry_run else [])
    assert remote_run.add_to_removal(ended, None) == ended
