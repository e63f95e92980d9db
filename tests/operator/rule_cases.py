"""Stacks that the rules of the definition are about, for whatever evaluates them: cel-python, or an API server."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from gpu_provision.operator.stack import NAMESPACE_IS_FIXED, PROXY_NEEDS_NONE, stack_of

POOL = {"gpu": {"model": "T4", "count": 1}, "node_selector": {"gpu": "yes"}}
_NO_CANARY = "A canary of 0 nodes without a node_selector is none, so no node may ever follow it."
_MOVED = {"cluster": {"namespace": "elsewhere"}}
_PROXY = "http://proxy.example.com:3128"
SECRET = "hunter2"  # noqa: S105 - so that it is found where it must not be
_TELLING_PROXY = f"http://me:{SECRET}@proxy.example.com:3128"


@dataclass(frozen=True, slots=True)
class Case:
    """A spec, and the findings about it.

    Attributes:
        spec: Beside the pools, unless it has its own.
        before: The spec that it replaces; None for a new stack.
        told: Message of the rule that it breaks; empty if it breaks none.
        where: Field of the resource that the message is about.
    """

    spec: dict[str, Any]
    told: str = ""
    where: str = ""
    before: dict[str, Any] | None = field(default=None)


def stack(spec: dict[str, Any]) -> dict[str, Any]:
    """Return a stack of this spec, as a client sends it."""
    return {**stack_of({"name": "prod"}), "spec": {"pools": {"gpu": POOL}, **spec}}


CASES: dict[str, Case] = {
    "a node of no pool": Case(
        {"nodes": [{"name": "a", "pool": "gpu"}, {"name": "b", "pool": "nope"}]}, "There is no pool nope.", "spec.nodes"
    ),
    "a node without any pool": Case(
        {"pools": {}, "nodes": [{"name": "a", "pool": "gpu"}]}, "There is no pool gpu.", "spec.nodes"
    ),
    "nodes of pools": Case({"nodes": [{"name": "a", "pool": "gpu"}, {"name": "b", "pool": "gpu"}]}),
    "a canary of no node": Case({"rollout": {"canary": {"nodes": 0}}}, _NO_CANARY, "spec.rollout.canary.nodes"),
    "a canary of two": Case({"rollout": {"canary": {"nodes": 2}}}),
    "a canary by labels": Case({"rollout": {"canary": {"nodes": 0, "node_selector": {"a": "b"}}}}),
    "a canary as it comes": Case({"rollout": {"canary": {}}}),
    "no proxy": Case({"proxy": {}}),
    **{f"a plain {key}": Case({"proxy": {key: _PROXY}}) for key in ("http_proxy", "https_proxy")},
    **{
        f"a secret in {key}": Case({"proxy": {key: _TELLING_PROXY}}, PROXY_NEEDS_NONE, f"spec.proxy.{key}")
        for key in ("http_proxy", "https_proxy")
    },
    "another namespace": Case(_MOVED, NAMESPACE_IS_FIXED, "spec", before={}),
    "the default namespace again": Case({}, NAMESPACE_IS_FIXED, "spec", before=_MOVED),
    "the same namespace": Case(_MOVED, before=_MOVED),
    "the default namespace by its name": Case({"cluster": {"namespace": "gpu-operator-resources"}}, before={}),
    "another release": Case({"release": "25.10.1"}, before={}),
}
