"""Checks of a stack that an API server makes by itself, in CEL: what the loader would refuse is never stored.

Kubernetes takes such rules since 1.29; an older server has the loader alone, whose findings are in the status. They are
those of the loader's checks that need nothing but the stack. Not among them: what tables decide (releases, GPUs,
operating systems), what a value without a type decides (``driver.enabled``), and patterns of keys, whose length has no
bound, so that a server estimates their cost as too high.

A server estimates that cost by the bounds that the schema has. It forgets them in what ``filter`` returns, not in what
``map`` makes; only a server can tell, so ask one about every rule, see docs/testing.md.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from gpu_provision.inventory.document import KeyPath
from gpu_provision.inventory.json_schema import ADDRESSES, schema
from gpu_provision.operator.stack import NAMESPACE_IS_FIXED, PROXY_NEEDS_NONE

_SINCE = 29  # generally available; one version before, a server may have them switched off


@dataclass(frozen=True, slots=True)
class ValidationRule:
    """One rule.

    Attributes:
        path: Of the value that it is about, in the spec.
        holds: CEL; ``self`` is the value, ``oldSelf`` what it was before, if it is named.
        message: What the finding of the loader says.
        expression: CEL that makes the message with the value that is wrong; where it fails, `message` is shown.
        field: What of the value is wrong, as ``.nodes``.
    """

    path: KeyPath
    holds: str
    message: str
    expression: str = ""
    field: str = ""

    def as_written(self) -> dict[str, str]:
        """Return the rule as a definition has it."""
        said = {"rule": self.holds, "message": self.message}
        said |= {"messageExpression": self.expression} if self.expression else {}
        return said | ({"fieldPath": self.field} if self.field else {})


def rules_of(path: KeyPath) -> list[dict[str, str]]:
    """Return the rules for the value at a path of the spec."""
    return [rule.as_written() for rule in RULES if rule.path == path]


def takes_rules(kubernetes: str) -> bool:
    """Whether an API server of a version takes rules; one that is not known counts as new."""
    found = re.match(r"v?1\.(\d+)", kubernetes)
    return not found or int(found[1]) >= _SINCE


def _namespace(whose: str) -> str:
    """Return CEL for a stack's namespace; a word of CEL's own is written with underscores."""
    default = schema()["properties"]["cluster"]["properties"]["namespace"]["default"]
    said = f"has({whose}.cluster) && has({whose}.cluster.__namespace__)"
    return f"({said} ? {whose}.cluster.__namespace__ : '{default}')"


_KNOWN_POOL = "has(self.pools) && node.pool in self.pools"

RULES = (
    ValidationRule(
        path=(),
        holds=f"!has(self.nodes) || self.nodes.all(node, {_KNOWN_POOL})",
        message="There is no pool of the name that a node has.",
        expression=f"'There is no pool ' + self.nodes.map(node, !({_KNOWN_POOL}), node.pool)[0] + '.'",
        field=".nodes",
    ),
    ValidationRule(
        path=(),
        holds=f"{_namespace('self')} == {_namespace('oldSelf')}",
        message=NAMESPACE_IS_FIXED,
    ),
    ValidationRule(
        path=("rollout", "canary"),
        holds="!has(self.nodes) || self.nodes > 0 || (has(self.node_selector) && self.node_selector.size() > 0)",
        message="A canary of 0 nodes without a node_selector is none, so no node may ever follow it.",
        field=".nodes",
    ),
    *(
        ValidationRule(
            path=("proxy",),
            holds=f"!has(self.{key}) || !self.{key}.contains('@')",
            message=PROXY_NEEDS_NONE,
            field=f".{key}",
        )
        for key in ADDRESSES
    ),
)
