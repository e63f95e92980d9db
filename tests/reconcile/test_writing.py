"""Objects are written several at a time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpu_provision.kube.client import ApplyResult, Cluster
from gpu_provision.model.cluster import Manifest, ref_of
from gpu_provision.model.findings import Finding, Unreachable
from gpu_provision.model.plan import Action, Change
from gpu_provision.reconcile.apply import Applier
from gpu_provision.reconcile.plan import ClusterPlan

NOTHING = cast("ClusterPlan", SimpleNamespace(desired={}, observed=SimpleNamespace(members={})))


def change(name: str) -> Change:
    manifest: Manifest = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "default"}}
    return Change(component="nfd", action=Action.CREATE, ref=ref_of(manifest), manifest=manifest)


def cluster(apply: Any) -> Cluster:
    return cast("Cluster", SimpleNamespace(apply=apply, hurry=lambda: None))


def test_an_error_of_one_write_is_raised_after_the_others() -> None:
    written: list[str] = []

    def apply(manifest: Manifest, **_: Any) -> ApplyResult:
        if manifest["metadata"]["name"] == "bad":
            raise Unreachable(Finding(code="GP301", what="silent"))
        written.append(manifest["metadata"]["name"])
        return ApplyResult(manifest, created=True)

    with pytest.raises(Unreachable, match="silent"):
        Applier(cluster(apply), NOTHING).apply([change("bad"), change("a"), change("b")])
    assert sorted(written) == ["a", "b"]
