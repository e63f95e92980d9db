"""The text and JSON of drift."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from gpu_provision.model.cluster import ObjectRef
from gpu_provision.model.plan import Action, Difference, Drift, FieldDrift, Origin, Writer
from gpu_provision.output.views import drift_document, drift_text

SECRET = FieldDrift(path="data.token", declared="a", found="b", origin=Origin.DRIFT)
IMAGE = FieldDrift(
    path="spec.image", declared="a", found="b", origin=Origin.DRIFT, writer=Writer("kubectl-edit", "2026-11-21T08:00Z")
)
REPLICAS = FieldDrift(path="spec.replicas", declared=1, found=2, origin=Origin.PENDING)


Golden = Callable[[str, str], None]


def difference(
    kind: str, *fields: FieldDrift, action: Action = Action.UPDATE, origin: Origin = Origin.DRIFT
) -> Difference:
    return Difference(
        component="dcgm", ref=ObjectRef("v1", kind, "n", "x"), action=action, origin=origin, fields=fields, notes=()
    )


def of(*found: Difference) -> Drift:
    return Drift(inventory="prod", release="26.7.0", cluster="prod (v1.34)", differences=found)


def test_who_did_it_stands_beside_what_they_did(golden: Golden) -> None:
    """An object that is not ready is listed once, with its nodes and reasons."""

    def waiting(reason: str, *nodes: str) -> Difference:
        found = difference("DaemonSet", action=Action.WAIT, origin=Origin.NOT_READY)
        return replace(found, notes=(reason,), nodes=nodes)

    gone = difference("Service", action=Action.CREATE, origin=Origin.UNKNOWN)
    slow = waiting("ImagePullBackOff", "t4-2"), waiting("no PCI bus", "t4-10", "t4-9")
    found = of(gone, difference("DaemonSet", IMAGE, REPLICAS), *slow)
    golden("drift", drift_text(found, hosts="~ t4-1\n    load x", changed_hosts=1))
    assert drift_document(found)["differences"][3]["nodes"] == ["t4-10", "t4-9"]
    assert drift_text(of()) == "No drift: everything is as inventory prod declares."


def test_secrets_are_not_shown() -> None:
    secret = difference("Secret", SECRET)
    assert "data.token: (changed)" in drift_text(of(secret))
    (field,) = drift_document(of(secret))["differences"][0]["fields"]
    assert (field["declared"], field["found"]) == ("(changed)", "(changed)")


def test_a_cluster_without_the_stack_is_one_line() -> None:
    """One sentence instead of fifty missing objects; hosts are still listed."""
    bare = replace(of(difference("Service", action=Action.CREATE, origin=Origin.PENDING)), installed=False)
    sentence = "Not installed: cluster prod (v1.34) has nothing of inventory prod."
    assert drift_text(bare) == sentence
    assert drift_text(bare, hosts="~ t4-1", changed_hosts=1).splitlines()[2:] == [
        "hosts that are not as declared",
        "  ~ t4-1",
        "",
        f"{sentence} Drift: 1 host not as declared. Nothing was changed.",
    ]
    assert drift_document(bare)["installed"] is False
