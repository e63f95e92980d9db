"""What the controller asks of an API server, as permissions: for stacks that are known, or for any."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from gpu_provision.cluster.observe import MEMBER_KINDS, named_secrets
from gpu_provision.cluster.paths import KINDS
from gpu_provision.engine import needs, removal_needs
from gpu_provision.model.access import Permission
from gpu_provision.model.inventory import Inventory
from gpu_provision.operator.stack import GROUP, PLURAL, STACK, inventory_of

EVENTS = "default"
"""Namespace of Events about objects that are in none."""

_LEASES = ("coordination.k8s.io", "leases")
_ALL_ON: dict[str, Any] = {
    "dcgm": {"enabled": True},
    "pools": {"gpu": {"gpu": {"model": "T4", "count": 1}, "node_selector": {"nvidia.com/gpu.present": "true"}}},
}


def of_controller(namespace: str, lease: str) -> Iterator[Permission]:
    """Yield what the controller needs whatever stacks there are: to read them, to answer in them, and to lead.

    Args:
        namespace: Of its lease.
    """
    yield from (Permission(verb, GROUP, PLURAL) for verb in ("get", "list", "watch", "patch"))
    yield Permission("patch", GROUP, f"{PLURAL}/status")
    yield Permission("create", "", "events", EVENTS)
    yield Permission("create", *_LEASES, namespace)  # a POST, which names nothing
    yield from (Permission(verb, *_LEASES, namespace, lease) for verb in ("get", "update"))
    yield from (Permission(verb, *_LEASES, "", lease) for verb in ("list", "watch"))


def of_stacks(inventories: Iterable[Inventory]) -> frozenset[Permission]:
    """Return what it takes to keep these stacks, and to take them off the cluster; without any, those of any name.

    Stacks of any name are those in the namespaces that a stack has if it names none, without objects that only a stack
    names: a licence's Secret, a runtime class.
    """
    known = [*inventories]
    if known:
        return frozenset(one for inventory in known for one in _of_stack(inventory))
    one, other = (frozenset(_of_stack(_any_stack(name))) for name in ("a", "b"))
    return frozenset(found if found in other else found._replace(name="") for found in one)


def of_editor(inventory: Inventory, namespace: str, lease: str) -> frozenset[Permission]:
    """Return what it takes to change a stack's resource, or to let it go, and to see what its controller makes of that.

    Args:
        namespace: Of the controller's lease.
    """
    name = inventory.name
    return frozenset(
        (
            *(Permission(verb, GROUP, PLURAL, "", name) for verb in ("get", "list", "watch", "patch", "delete")),
            *(Permission(verb, *_LEASES, "", lease) for verb in ("list", "watch")),
            Permission("get", *_LEASES, namespace, lease),
            *needs.to_look(inventory),
            *needs.to_watch(inventory),
            *_to_follow(inventory),
        )
    )


def _of_stack(inventory: Inventory) -> Iterator[Permission]:
    yield from needs.everything(inventory)
    yield from removal_needs.everything(inventory)
    yield from _to_follow(inventory)


def _to_follow(inventory: Inventory) -> Iterator[Permission]:
    """Yield what watching between two runs needs: objects of the stack, and what its declaration refers to."""
    for kind in MEMBER_KINDS:
        yield from (Permission(verb, kind.api_version.rpartition("/")[0], KINDS[kind]) for verb in ("list", "watch"))
    for name in named_secrets(inventory):  # by name, in any namespace: a watch's path has none
        yield from (Permission(verb, "", "secrets", "", name) for verb in ("list", "watch"))


def _any_stack(name: str) -> Inventory:
    inventory, findings = inventory_of(
        {"apiVersion": STACK.api_version, "kind": STACK.kind, "metadata": {"name": name}, "spec": _ALL_ON}
    )
    if inventory is None:
        raise AssertionError(findings)
    return inventory
