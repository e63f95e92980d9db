"""What a reader should know before a stack's resource goes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from gpu_provision.cluster.client import Cluster, connect
from gpu_provision.inventory import load
from gpu_provision.model.cluster import Manifest
from gpu_provision.model.removal import RemovalResult
from gpu_provision.operator import leaving
from gpu_provision.operator.definition import definition
from gpu_provision.operator.resource import look
from gpu_provision.operator.stack import stack_of
from tests.documents import CHECKOUT
from tests.operator.served import data_of
from tests.sandbox.apiserver.conftest import Running

FILE = CHECKOUT / "inventories" / "sandbox.yaml"
NOW = load(FILE)
SAID, OTHER = (f"rollout: {{stop_after_failures: {number}}}\n" for number in (2, 7))
LABELS = {"kustomize.toolkit.fluxcd.io/name": "gpu"}


@pytest.fixture
def cluster(tmp_path: Any) -> Iterator[Cluster]:
    """An API server with a stack that Flux declares."""
    running = Running(tmp_path, [])
    made = connect(str(running.server.kubeconfig))
    made.apply(definition())
    made.apply(by_flux(), manager="kustomize-controller")
    yield made
    running.stop()


def by_flux() -> Manifest:
    made = stack_of({**data_of(FILE), "rollout": {"stop_after_failures": 2}})
    return {**made, "metadata": {**made["metadata"], "labels": LABELS}}


def test_where_gitops_declares_a_stack_too_its_end_is_told_not_to_last(cluster: Cluster) -> None:
    """Before anything is deleted."""
    (before,) = leaving.before_release(cluster, NOW.name)
    assert (before.code, "Flux's Kustomization gpu" in before.what) == ("GP435", True)
    assert leaving.before_release(cluster, "nobody") == ()
    stack = leaving.of(cluster, NOW)
    ended = RemovalResult(cluster="test")
    for told in (leaving.foretold(ended, stack), leaving.warned(ended, stack)):
        assert [each.code for each in told.findings] == ["GP435"]
    assert leaving.warned(ended, None) == ended


def test_a_plan_names_who_declares_what_it_would_change(cluster: Cluster) -> None:
    """Refused without a word more; whoever takes over is told that it may not last."""
    wanted = replace(NOW, text=NOW.text + OTHER)
    for force, code in ((False, "GP304"), (True, "GP435")):
        found = look(cluster, wanted, force=force)
        assert found is not None
        (finding,) = found.findings
        assert (finding.code, "Flux's Kustomization gpu" in f"{finding.what} {finding.fix}") == (code, True)
    same = look(cluster, replace(NOW, text=NOW.text + SAID), force=True)
    assert same is not None
    assert same.findings == ()
