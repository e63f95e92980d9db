"""Plans after the API server's dry run; tests/scenarios/test_refusals.py has conflicts on a real server."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpu_provision.kube.client import ApplyResult, KubeClient
from gpu_provision.model.cluster import Manifest, ref_of
from gpu_provision.planning.applyset import PART_OF, SET_ID, parent
from gpu_provision.reconcile.plan import server_dry_run
from tests.planning.builders import Stack


class Cluster:
    """An API server that takes everything, and knows one other stack."""

    def __init__(self, *parents: Manifest) -> None:
        self.parents, self.asked = parents, list[str]()

    def apply(self, manifest: Manifest, **_: Any) -> ApplyResult:
        return ApplyResult(manifest, created=False)

    def list(self, _: object, *, label_selector: str) -> SimpleNamespace:
        self.asked.append(label_selector)
        return SimpleNamespace(items=self.parents)


@pytest.mark.parametrize("is_there", [True, False])
def test_objects_of_another_stack_are_refused(*, is_there: bool) -> None:
    """Who it is, is asked once. What a stack has left that is gone, such as definitions, belongs to none."""
    stack, other = Stack(), parent("other", "operands", ())
    own = [stack.daemonset(name) for name in ("gfd", "toolkit")]
    for item in own:
        metadata = item["metadata"]
        labels = {**metadata["labels"], PART_OF: other["metadata"]["labels"][SET_ID]}
        stack.members[ref_of(item)] = {**stack.members[ref_of(item)], "metadata": {**metadata, "labels": labels}}
    cluster = Cluster(*([other] if is_there else []))
    found, _ = server_dry_run(cast("KubeClient", cluster), stack.plan, stack.situation)
    assert len(cluster.asked) == 1
    assert [change.ref for change in found.changes] == ([] if is_there else [ref_of(item) for item in reversed(own)])
    assert [(each.code, each.where) for each in found.findings] == [("GP309", "stack other in namespace operands")][
        :is_there
    ]
    assert all("stack other owns 2 objects" in each.what for each in found.findings)
