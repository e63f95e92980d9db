from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from gpu_provision.operator.spec_diff import (
    other_managers,
    say_the_same,
    unsaid,
    without_unsaid,
)
from gpu_provision.operator.stack import stack_of
from tests.operator.served import as_stored, data_of, stored

POOLS = {"gpu": {"gpu": {"model": "T4", "count": 1}, "node_selector": {"gpu": "yes"}}}


def a_stack(**spec: Any) -> dict[str, Any]:
    return stack_of({"name": "prod", "cluster": {}, "pools": POOLS, **spec})


def test_what_a_server_has_written_into_a_stack_says_nothing_new(file: Path) -> None:
    """Or an unchanged apply would write."""
    wanted = stack_of(data_of(file))
    assert say_the_same(stored(file), wanted)
    assert unsaid(stored(file), wanted) == ()


@pytest.mark.parametrize(
    "other", [{"driver": {"version": "580.126.20"}}, {"rollout": {"max_parallel": 2}}, {"release": "26.3.0"}]
)
def test_another_declaration_is_another_meaning(other: dict[str, Any]) -> None:
    """Also where no object follows from it."""
    assert not say_the_same(a_stack(**other), a_stack())


def test_a_stack_that_nobody_can_read_is_like_no_other() -> None:
    """So that an apply mends it."""
    broken = a_stack(release="9.9.9")
    assert not say_the_same(broken, broken)


def test_what_only_the_live_stack_says_is_named_and_can_be_taken_out() -> None:
    """A server-side apply leaves what others have set."""
    live, wanted = (
        as_stored(a_stack(dcgm={"enabled": True}, driver={"timeout": 77, "version": "580.126.20"})),
        a_stack(driver={"version": "580.126.20"}),
    )
    found = {each.path: each.old for each in unsaid(live, wanted)}
    assert found["spec.driver.timeout"] == 77
    assert found["spec.dcgm"]["enabled"] is True
    without = _merged(live["spec"], without_unsaid(live["spec"], wanted["spec"]))
    assert say_the_same(as_stored({**live, "spec": without}), wanted)


def test_a_list_that_holds_more_is_replaced() -> None:
    """A merge patch knows no items."""
    nodes = [{"name": "a", "pool": "gpu"}, {"name": "b", "pool": "gpu"}]
    assert without_unsaid({"nodes": nodes}, {"nodes": nodes[:1]}) == {"nodes": nodes[:1]}
    assert without_unsaid({"nodes": nodes}, {"nodes": nodes}) == {}


def test_whoever_has_set_fields_of_the_spec_is_known_by_name() -> None:
    """Neither we ourselves, nor who writes the status, nor who set a label."""
    fields = [
        {"manager": "argocd-controller", "operation": "Apply", "fieldsV1": {"f:spec": {}}},
        {"manager": "gpu-provision", "operation": "Apply", "fieldsV1": {"f:spec": {}}},
        {"manager": "gpu-provision", "operation": "Update", "fieldsV1": {"f:status": {}}},
        {"manager": "kubectl-label", "operation": "Update", "fieldsV1": {"f:metadata": {}}},
    ]
    assert other_managers({"metadata": {"managedFields": fields}}) == ("argocd-controller",)


def _merged(value: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    """What a JSON merge patch makes of a value."""
    found = deepcopy(value)
    for key, item in patch.items():
        if item is None:
            found.pop(key, None)
        elif isinstance(item, dict):
            found[key] = _merged(found.get(key, {}), item)
        else:
            found[key] = item
    return found
