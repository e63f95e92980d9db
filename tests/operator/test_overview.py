"""Parts of the operator that are of another version than the client."""

from __future__ import annotations

import copy
from importlib.metadata import version
from typing import Any, cast

import pytest

from gpu_provision.kube.client import Cluster
from gpu_provision.model.cluster import Manifest, ObjectRef
from gpu_provision.model.findings import Finding, Refused
from gpu_provision.operator.crd import definition
from gpu_provision.operator.overview import skew_findings, version_annotation, version_of
from gpu_provision.operator.stack import DEFAULT_LEASE

OURS = version("gpu-provision")


class Server:
    """Has one definition of stacks, or does not let anybody see it."""

    def __init__(self, live: Manifest | None, *, refuses: bool = False) -> None:
        """Start with it."""
        self.live, self.refuses = live, refuses

    def get(self, _: ObjectRef) -> Manifest | None:
        """Return it."""
        if self.refuses:
            raise Refused(Finding(code="GP303", what="no"))
        return self.live


def findings(live: Manifest | None, controller: str = OURS, **server: bool) -> tuple[Finding, ...]:
    return skew_findings(cast("Cluster", Server(live, **server)), controller, f"Lease {DEFAULT_LEASE}")


@pytest.mark.parametrize("rules", [True, False])
def test_where_all_is_of_one_version_nothing_is_told(rules: bool) -> None:  # noqa: FBT001 - a parameter of the test
    """With rules in CEL or without: that is for the API server's version to say."""
    live = {**definition(rules=rules), "status": {"conditions": []}}
    assert findings(live) == ()
    assert findings(live, controller="") == ()


def test_another_controller_is_named_with_both_versions() -> None:
    (finding,) = findings(definition(), controller="0.0.9")
    assert (finding.code, finding.severity.value) == ("GP436", "warning")
    assert "0.0.9" in finding.what
    assert OURS in finding.what
    assert "operator install" in finding.fix


def test_another_definition_is_told_with_what_differs() -> None:
    live: Any = copy.deepcopy(definition())
    spec = live["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    del spec["properties"]["rollout"]
    (finding,) = findings(live)
    assert finding.code == "GP436"
    assert "rollout" in finding.evidence


def test_who_may_not_see_the_definition_is_told_the_rest() -> None:
    assert findings(None) == ()
    assert len(findings(definition(), controller="0.0.9", refuses=True)) == 1


def test_version_is_that_of_the_present_leader() -> None:
    """Who led last may have left its mark."""
    lease: Any = {"metadata": {"annotations": version_annotation()}, "spec": {"holderIdentity": "a"}}
    assert version_of(lease) == OURS
    assert version_of({**lease, "spec": {}}) == ""
    assert version_of({"metadata": {}, "spec": {"holderIdentity": "a"}}) == ""
    assert version_of({}) == ""
