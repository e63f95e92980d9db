"""Objects of the inventory itself: members of the stack, applied last and pruned with it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from gpu_provision.components.pods import canonical_quantity
from gpu_provision.model.cluster import Kind, Manifest, ObjectRef, RenderContext, ref_of
from gpu_provision.model.extra_objects import EXTRA_KINDS
from gpu_provision.model.findings import Finding, Severity
from gpu_provision.model.inventory import Inventory

NAME = "extra_objects"
TITLE = "Objects of the inventory"
REQUIRES: tuple[str, ...] = ()

_MONITORING = "monitoring.coreos.com"


def spec(inventory: Inventory) -> tuple[Mapping[str, Any], ...] | None:
    """Return the objects as declared; None without any."""
    return inventory.extra_objects or None


def manifests(spec: Iterable[Mapping[str, Any]], context: RenderContext) -> list[Manifest]:
    """Return the objects of kinds that the cluster has; without a namespace they are in that of the operands."""
    return [_in_namespace(each, context) for each in spec if _is_served(each, context)]


def problems(spec: Iterable[Mapping[str, Any]], context: RenderContext) -> tuple[Finding, ...]:
    """Return a warning for each object of a kind that the cluster does not have."""
    lacking = (ref_of(_in_namespace(each, context)) for each in spec if not _is_served(each, context))
    remedy = "or remove the object from the inventory"
    # Offline nothing is known of the cluster.
    return tuple(absent_kind_finding(ref, NAME, remedy) for ref in lacking) if context.facts.version else ()


def absent_kind_finding(ref: ObjectRef, where: str, remedy: str) -> Finding:
    """Return the warning about an object of a kind that the cluster lacks; ``remedy``: what else helps."""
    return Finding(
        code="GP414",
        what=f"{ref} is not created: the cluster has no kind {ref.kind} of {ref.api_version}",
        where=where,
        fix=f"install the Prometheus Operator, {remedy}",
        severity=Severity.WARNING,
    )


def collisions(context: RenderContext, made: Iterable[Manifest]) -> Iterator[Finding]:
    """Yield an error for each object that a component makes as well; ``made`` are the manifests of components."""
    refs = set(map(ref_of, made))
    for each in context.inventory.extra_objects:
        ref = ref_of(_in_namespace(each, context))
        if ref in refs:
            yield Finding(
                code="GP415",
                what=f"{ref} is an object of the stack itself, so it cannot be one of extra_objects",
                where="extra_objects",
                consequence="nothing was written",
                fix="give it another name, or remove it",
            )


def repetitions(made: Iterable[Manifest]) -> Iterator[Finding]:
    """Yield an error for each object that components make twice, as the inventory names one as another one."""
    for ref, count in Counter(map(ref_of, made)).items():
        if count > 1:
            yield Finding(
                code="GP415",
                what=f"{ref} is an object of the stack itself, and the inventory gives its name to another one",
                where=str(ref),
                consequence="nothing was written",
                fix="change the name in the inventory",
            )


def _is_served(each: Mapping[str, Any], context: RenderContext) -> bool:
    """Whether the cluster has a kind; kinds of Kubernetes itself are always there."""
    group = each["apiVersion"].rpartition("/")[0]
    return group != _MONITORING or f"{each['kind'].lower()}s.{group}" in context.facts.resources


def _in_namespace(each: Mapping[str, Any], context: RenderContext) -> Manifest:
    is_namespaced = EXTRA_KINDS[Kind(each["apiVersion"], each["kind"])]
    metadata = {**({"namespace": context.namespace} if is_namespaced else {}), **each["metadata"]}
    # Empty values stay: an empty selector of a NetworkPolicy selects everything.
    body = _with_canonical_quantities(each) if each["kind"] in _KINDS_OF_QUANTITIES else each
    return {**body, "metadata": metadata}


_KINDS_OF_QUANTITIES = frozenset({"LimitRange", "ResourceQuota"})
_QUANTITIES = frozenset({"default", "defaultRequest", "hard", "max", "maxLimitRequestRatio", "min"})


def _canonical(quantity: Any) -> Any:
    """Return a quantity in canonical form, or the value itself if it is none: the API server refuses it."""
    try:
        return canonical_quantity(quantity)
    except (ValueError, ArithmeticError):  # no quantity, or an exponent without bounds
        return quantity


def _with_canonical_quantities(value: Any, key: str = "") -> Any:
    """Return a value with quantities as the API server writes them, so that equal ones do not differ."""
    if isinstance(value, Mapping):
        return {
            name: _canonical(item)
            if key in _QUANTITIES and not isinstance(item, Mapping)
            else _with_canonical_quantities(item, name)
            for name, item in value.items()
        }
    return [_with_canonical_quantities(item) for item in value] if isinstance(value, list) else value
