"""Labels and annotations of driver pods follow their template without a restart."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import pytest

from gpu_provision.components import labels
from gpu_provision.model.cluster import Manifest, ref_of
from gpu_provision.model.plan import Action, Change, Origin
from gpu_provision.planning.diff import FIELD_MANAGER
from gpu_provision.planning.plan import applied_metadata, pod_changes
from gpu_provision.reconcile.drift import KnownState, find_drift
from tests.components.builders import with_spec
from tests.planning.builders import Stack, outdated, terminating

NODE = "t4-1"


def stack(*, before: dict[str, str] | None = None) -> Stack:
    """Return a stack that declares a label and an annotation for its pods; both are there.

    Args:
        before: Labels that an earlier inventory declared: the live template has them, and the books say so.
    """
    made = Stack(with_spec("daemonsets", labels={"team": "ml"}, annotations={"example.com/contact": "ada"}))
    for ref, live in made.members.items():
        if ref.kind == "DaemonSet":
            made.members[ref] = _with_template_labels(live, before or {})
    return made


def _with_template_labels(live: Manifest, added: dict[str, str]) -> Manifest:
    edited: Any = copy.deepcopy(live)
    marks = edited["spec"]["template"]["metadata"]["labels"]
    marks |= added
    fields: Any = {
        "f:spec": {"f:template": {"f:metadata": {"f:labels": {".": {}, **{f"f:{key}": {} for key in marks}}}}}
    }
    books = {"manager": FIELD_MANAGER, "operation": "Apply", "fieldsV1": fields}
    edited["metadata"]["managedFields"] = [books]
    return {**live, **edited}


def with_pod(made: Stack, node: str = NODE, **marks: Mapping[str, Any]) -> Stack:
    """Show a driver pod with other labels or annotations; None for one that it lacks."""
    pod = made.pod("driver", node)
    changed = {key: {**pod["metadata"][key], **each} for key, each in marks.items()}
    kept = {key: {name: value for name, value in each.items() if value is not None} for key, each in changed.items()}
    made.put({**pod, "metadata": {**pod["metadata"], **kept}})
    return made


def found(made: Stack) -> tuple[Change, ...]:
    return tuple(pod_changes(made.situation))


def test_a_pod_as_its_template_has_nothing_to_change() -> None:
    """Nor has one with more than that, as other programs write to pods, too; or one that a killed run has patched."""
    made = stack()
    assert found(made) == ()
    assert found(stack(before={"tier": "a"})) == (), "its DaemonSet is yet to be applied"
    injected: Any = {"labels": {"controller-revision-hash": "old", "by": "webhook"}, "annotations": {"cni": "10.0.0.1"}}
    assert found(with_pod(made, **injected)) == ()


@pytest.mark.parametrize(
    ("before", "marks", "patch", "told"),
    [
        ({}, {"labels": {"team": None}}, {"labels": {"team": "ml"}}, [("metadata.labels.team", None, "ml")]),
        ({}, {"labels": {"team": "ai"}}, {"labels": {"team": "ml"}}, [("metadata.labels.team", "ai", "ml")]),
        ({}, {"annotations": {"example.com/contact": "bob"}}, {"annotations": {"example.com/contact": "ada"}},
         [('metadata.annotations."example.com/contact"', "bob", "ada")]),
        ({"tier": "a"}, {"labels": {"tier": "a"}}, {"labels": {"tier": None}}, [("metadata.labels.tier", "a", None)]),
        ({"tier": "a"}, {"labels": {"tier": "a", "team": "ai"}}, {"labels": {"team": "ml", "tier": None}},
         [("metadata.labels.team", "ai", "ml"), ("metadata.labels.tier", "a", None)]),
    ],
    ids=["added", "another value", "an annotation", "removed", "several"],
)  # fmt: skip
def test_what_differs_is_one_patch_of_that_pod(
    before: dict[str, str], marks: Any, patch: dict[str, Any], told: list[Any]
) -> None:
    (change,) = found(with_pod(stack(before=before), **marks))
    pod = f"nvidia-driver-daemonset-ubuntu22.04-{NODE}"
    assert (change.action, change.ref.kind, change.ref.name) == (Action.UPDATE, "Pod", pod)
    assert (change.component, change.nodes, change.effects) == ("driver", (), ("no driver restart",))
    assert [(field.path, field.old, field.new) for field in change.fields] == told
    names = {"name": pod, "namespace": change.ref.namespace, "uid": f"uid-of-{pod}"}
    assert (change.manifest or {})["metadata"] == {**names, **patch}
    assert (change.manifest or {})["spec"] == {"nodeName": NODE}


@pytest.mark.parametrize("key", [labels.APP, labels.DRIVER_GROUP, labels.DIGEST])
def test_what_selects_a_pod_or_names_its_template_stays(key: str) -> None:
    """A pod with another digest was made from another template, and still is after a patch."""
    assert found(with_pod(stack(before={key: "x"}), labels={key: "other"})) == ()


def test_a_key_that_a_person_put_into_the_template_stays() -> None:
    """Such as the annotation of kubectl rollout restart: the books do not call it this tool's."""
    made = stack()
    ref = ref_of(made.daemonset("driver", NODE))
    made.members[ref]["spec"]["template"]["metadata"]["labels"]["tier"] = "a"
    assert found(with_pod(made, labels={"tier": "a"})) == ()


def test_pods_of_another_installation_are_no_exception() -> None:
    """Some keep their driver for months. Those that end, and pods of operands that roll by themselves, are."""
    made = with_pod(stack(), labels={"team": None})
    made.put(outdated(made.pod("driver", NODE)))
    assert len(found(made)) == 1
    made.put(terminating(made.pod("driver", NODE)))
    assert found(made) == ()
    gfd = made.pod("gfd", NODE)
    made.put({**gfd, "metadata": {**gfd["metadata"], "annotations": {}}})
    assert found(made) == ()


@pytest.mark.parametrize(
    ("live", "origin"), [({"team": "hand"}, Origin.DRIFT), ({"team": "ai", "tier": "a"}, Origin.PENDING)]
)
def test_drift_of_a_pod_is_reported_from_an_edited_inventory(live: dict[str, str], origin: Origin) -> None:
    """By what its DaemonSet gave it when it was applied last."""
    made = with_pod(stack(before={"tier": "a"}), labels=live)
    (change,) = found(made)
    applied = with_pod_labels(made.daemonset("driver", NODE), live if origin is Origin.PENDING else {})
    known = KnownState(live=made.pods, applied={change.ref: applied_metadata(applied)})
    (difference,) = find_drift([change], known)
    assert difference.origin is origin


def with_pod_labels(daemonset: Manifest, marks: dict[str, str]) -> Manifest:
    """Return a DaemonSet as an earlier inventory has it."""
    edited: Any = copy.deepcopy(daemonset)
    edited["spec"]["template"]["metadata"]["labels"] |= marks
    return dict(edited)
