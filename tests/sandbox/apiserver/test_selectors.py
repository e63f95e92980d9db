"""Label and field selectors."""

from __future__ import annotations

import pytest

from gpu_provision.sandbox.apiserver.selectors import predicate
from gpu_provision.sandbox.apiserver.status import StatusError

POD = {
    "metadata": {"name": "one", "namespace": "here", "labels": {"app": "web", "tier": "2", "empty": ""}},
    "spec": {"nodeName": "n1"},
    "status": {"phase": "Running"},
}


def _matches(labels: str = "", fields: str = "") -> bool:
    test = predicate(labels, fields, "/pods")
    return test is None or test(POD)


@pytest.mark.parametrize(
    "selector",
    ["", "app=web", "app==web", "app!=db", "app", "!missing", "missing!=x", "app in (db, web)", "app notin (db)",
     "missing notin (x)", "tier>1", "tier<3", "app=web,tier in (1,2),!gone", "empty="],
)  # fmt: skip
def test_label_selectors_that_match(selector: str) -> None:
    """Every form of Kubernetes' label selectors is understood."""
    assert _matches(selector)


@pytest.mark.parametrize(
    "selector",
    ["app=db", "app!=web", "!app", "missing", "missing=x", "app notin (web)", "tier>2", "missing>1", "app=web,gone"],
)
def test_label_selectors_that_do_not_match(selector: str) -> None:
    """All parts of a selector must hold."""
    assert not _matches(selector)


@pytest.mark.parametrize("selector", ["app in web", "a b", "=x", "app in (a"])
def test_a_broken_label_selector_is_refused(selector: str) -> None:
    """A selector that cannot be read is the caller's mistake."""
    with pytest.raises(StatusError, match="400 BadRequest"):
        _matches(selector)


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("metadata.name=one", True),
        ("metadata.name!=one", False),
        ("metadata.namespace==here", True),
        ("spec.nodeName=n1,status.phase=Running", True),
        ("spec.nodeName=n1,status.phase!=Running", False),
        ("status.nominatedNodeName=", True),
    ],
)
def test_field_selectors(selector: str, *, expected: bool) -> None:
    """Fields are compared as text; a missing one is empty."""
    assert _matches(fields=selector) is expected


def test_a_field_that_kubernetes_does_not_offer_is_refused() -> None:
    """The message names the field, as the real server's does."""
    with pytest.raises(StatusError, match=r"field label not supported: spec\.priority"):
        _matches(fields="spec.priority=1")
