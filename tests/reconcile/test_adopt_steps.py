"""An adoption begins only if the apply that completes it can."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpu_provision.model.findings import Finding, Refused, RunFailed
from gpu_provision.reconcile import missing_permissions
from gpu_provision.reconcile.adopt_steps import refuse
from gpu_provision.reconcile.session import Session
from tests.adopt.builders import adopted, found


def session(*refusals: Finding) -> Session:
    made: Any = SimpleNamespace(refusals=lambda: refusals, reading=lambda: None, cluster=None, inventory=None)
    return cast("Session", made)


def conflict(where: str) -> Finding:
    return Finding(code="GP304", what="another field manager owns it", where=where)


@pytest.fixture(autouse=True)
def everything_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(missing_permissions, "missing_to_run", lambda *_: None)
    monkeypatch.setattr(missing_permissions, "missing", lambda *_: None)


def test_a_field_of_an_object_that_changes_hands_is_no_obstacle(tmp_path: Path) -> None:
    """The operator's entry on each of its objects is what the adoption takes over."""
    refuse(session(conflict("ConfigMap gpu-operator/nvidia-driver-startup-probe")), adopted(tmp_path, found()))


def test_a_field_of_somebody_elses_object_is_one(tmp_path: Path) -> None:
    """Otherwise the operator would be stopped, and the apply could not take its place."""
    theirs = conflict("ServiceAccount node-feature-discovery/node-feature-discovery")
    with pytest.raises(RunFailed) as refused:
        refuse(session(theirs), adopted(tmp_path, found()))
    assert refused.value.findings == (theirs,)


def test_rights_are_asked_for_before_the_operator_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the apply, and those to write what is the operator's."""
    asked: list[Any] = []

    def missing(_cluster: object, _inventory: object, wanted: Any, *options: str) -> Finding:
        assert options == ("--adopt",), "what prints them"
        asked.extend(wanted)
        return Finding(code="GP310", what="lacks a permission")

    monkeypatch.setattr(missing_permissions, "missing", missing)
    with pytest.raises(Refused):
        refuse(session(), adopted(tmp_path, found()))
    wanted = {(one.verb, one.resource, one.name) for one in asked}
    assert ("patch", "deployments", "gpu-operator") in wanted
    assert ("delete", "clusterpolicies", "cluster-policy") in wanted
    assert ("patch", "daemonsets", "nvidia-container-toolkit-daemonset") in wanted
