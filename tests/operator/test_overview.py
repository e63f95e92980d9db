"""Parts of the operator that are of another version than the client."""

from __future__ import annotations

import copy
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpu_provision.kube.client import KubeClient
from gpu_provision.model.cluster import ObjectRef
from gpu_provision.model.findings import Finding, ForbiddenError
from gpu_provision.operator.crd import definition
from gpu_provision.operator.overview import skew_findings, version_annotation, version_of
from gpu_provision.operator.stack import DEFAULT_LEASE

OURS = version("gpu-provision")


def shorter() -> Any:
    """Return a definition without one of the keys."""
    live = copy.deepcopy(definition())
    del live["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["rollout"]
    return live


@pytest.mark.parametrize(
    ("live", "controller", "told"),
    [
        ({**definition(), "status": {}}, OURS, []),
        ({**definition(rules=True), "status": {}}, "", []),
        (None, OURS, []),
        (definition(), "0.0.9", ["0.0.9"]),
        (ForbiddenError(Finding(code="GP303", what="no")), "0.0.9", ["0.0.9"]),
        (shorter(), OURS, ["rollout"]),
    ],
    ids=["one version", "rules are the API server's affair", "no stacks", "controller", "no rights", "definition"],
)
def test_parts_of_another_version_are_named(live: Any, controller: str, told: list[str]) -> None:
    def get(_: ObjectRef) -> Any:
        if isinstance(live, Exception):
            raise live
        return live

    found = skew_findings(cast("KubeClient", SimpleNamespace(get=get)), controller, f"Lease {DEFAULT_LEASE}")
    assert [(each.code, each.severity.value) for each in found] == [("GP436", "warning")] * len(told)
    assert all("operator install" in each.fix for each in found)
    assert all(word in f"{each.what} {each.evidence}" for word, each in zip(told, found, strict=True))


def test_version_is_that_of_the_present_leader() -> None:
    """Who led last may have left its mark."""
    lease: Any = {"metadata": {"annotations": version_annotation()}, "spec": {"holderIdentity": "a"}}
    assert version_of(lease) == OURS
    assert version_of({**lease, "spec": {}}) == ""
    assert version_of({"metadata": {}, "spec": {"holderIdentity": "a"}}) == ""
    assert version_of({}) == ""
