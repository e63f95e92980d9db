"""What is wanted -> the part of it that ``--target`` and ``--limit`` name. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from gpu_provision import components
from gpu_provision.components import driver, driver_validation, validator
from gpu_provision.diagnostics.pods import node_of
from gpu_provision.model.cluster import Context, Manifest
from gpu_provision.model.findings import Finding, Severity
from gpu_provision.model.inventory import Inventory, RunSelection
from gpu_provision.planning.codes import PART_ONLY
from gpu_provision.planning.states import Desired

# What a component needs besides what has to be ready before it: a driver that is replaced has to prove itself.
_BESIDES = {driver.NAME: (driver_validation.NAME,)}


def part_of(inventory: Inventory, targets: Iterable[str], nodes: Iterable[str]) -> RunSelection:
    """Return the part of these components, with all that they require, and of these nodes; none of either is all."""
    requires, wanted = components.requirements(inventory), set[str]()
    left = list(targets)
    while left:
        name = left.pop()
        if name not in wanted:
            wanted.add(name)
            left += (*requires[name], *(needed for needed in _BESIDES.get(name, ()) if needed in requires))
    return RunSelection(components=frozenset(wanted), nodes=frozenset(nodes))


def narrowed(known: Context, desired: Desired, part: RunSelection) -> tuple[Context, Desired]:
    """Return what is wanted of a part. Objects that serve all nodes are not narrowed to some of them."""
    if part.is_all:
        return known, desired
    context = replace(
        known,
        targets=tuple(target for target in known.targets if part.has_node(target.name)),
        others=tuple(target for target in known.targets if not part.has_node(target.name)),
        part=part,
    )
    kept = {component: list(_kept(component, manifests, part)) for component, manifests in desired.items()}
    return context, {name: manifests for name, manifests in kept.items() if manifests or part.has_component(name)}


def _kept(component: str, manifests: Iterable[Manifest], part: RunSelection) -> Iterator[Manifest]:
    """Yield what a part has of a component; of the validator all, also where only the proof of its pod is awaited."""
    is_awaited = component == validator.NAME and part.has_component(driver_validation.NAME)
    for manifest in manifests if is_awaited or part.has_component(component) else ():
        node = _node_of(manifest)
        if not node or part.has_node(node):
            yield manifest


def _node_of(manifest: Manifest) -> str:
    """Return the node that an object is about alone; empty if it is about more."""
    match manifest["kind"]:
        case "Node":
            return str(manifest["metadata"]["name"])
        case "Pod":
            return node_of(manifest)
        case _:
            return ""


def left_out(known: Context, all_components: Iterable[str]) -> Iterator[Finding]:
    """Yield that a run is about a part only, and what that leaves out."""
    part = known.part
    missing = [name for name in all_components if not part.has_component(name)]
    told = [
        f"components {', '.join(missing)} (--target)" if missing else "",
        f"nodes {', '.join(target.name for target in known.others)} (--limit)" if known.others else "",
    ]
    if any(told):
        yield Finding(
            code=PART_ONLY,
            what="a part of the inventory is left out",
            evidence="; ".join(filter(None, told)),
            consequence="nothing of it is changed, removed or validated; objects that serve all nodes are as declared",
            fix="run again without --target and --limit",
            severity=Severity.WARNING,
        )
