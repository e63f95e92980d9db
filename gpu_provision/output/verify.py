"""How acceptance tests ended, as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gpu_provision.output.findings import plain
from gpu_provision.output.text import PLAIN, Style, grouped, indented, ranges
from gpu_provision.verify.run import Check, CheckOutcome, Verification

_HEADERS = ("NODE", "PASSED", "FAILED", "SKIPPED")
_BAD = (CheckOutcome.FAILED, CheckOutcome.UNREACHABLE)
_COLORS = {CheckOutcome.FAILED: "red", CheckOutcome.UNREACHABLE: "red", CheckOutcome.SKIPPED: "yellow"}
_ORDER = (*_BAD, CheckOutcome.SKIPPED)
_CLUSTER = "(cluster)"


def text(found: Verification, style: Style = PLAIN) -> str:
    """Return a row per node, what did not pass with its reason, and one closing sentence."""
    from gpu_provision.output.screen import table

    nodes = dict.fromkeys(check.node for check in found.checks)
    rows = [_row(node, found, style) for node in nodes]
    told = [_told(group, style) for group in _groups(found.of(*_BAD, CheckOutcome.SKIPPED))]
    parts = [table(_HEADERS, rows, style) if rows else "", "\n".join(told), _closing(found)]
    return "\n\n".join(part for part in parts if part)


def _row(node: str, found: Verification, style: Style) -> tuple[str, ...]:
    own = Verification(checks=tuple(check for check in found.checks if check.node == node))
    failed = len(own.of(*_BAD))
    counts = (str(len(own.of(CheckOutcome.PASSED))), style.paint("red", str(failed)) if failed else "0")
    return (node or _CLUSTER, *counts, str(len(own.of(CheckOutcome.SKIPPED))))


def _groups(checks: tuple[Check, ...]) -> Iterator[list[Check]]:
    """Yield checks that differ in nothing but the node together; all that an unreachable host says is one.

    Checks that the same nodes skip for the same reason are one, too.
    """

    def likeness(check: Check) -> tuple[str, str, str]:
        sentence = "" if check.outcome is CheckOutcome.UNREACHABLE else check.sentence
        return check.outcome, sentence, check.reason

    alike = grouped(checks, likeness)
    groups: dict[tuple[str, ...], list[Check]] = {}
    for key, group in alike.items():
        is_skipped = group[0].outcome is CheckOutcome.SKIPPED
        shared = (group[0].reason, *(check.node for check in group)) if is_skipped else key
        groups.setdefault(shared, []).extend(group)
    yield from sorted(groups.values(), key=lambda group: _ORDER.index(group[0].outcome))


def _told(group: list[Check], style: Style) -> str:
    first = group[0]
    where = ranges(dict.fromkeys(check.node for check in group if check.node)) or _CLUSTER
    sentences = "; ".join(dict.fromkeys(check.sentence for check in group))
    what = f"{len(group)} checks" if first.outcome is CheckOutcome.UNREACHABLE else sentences
    head = f"{style.paint(_COLORS[first.outcome], first.outcome.value)}: {where}: {what}"
    return f"{head}\n{indented(first.reason)}"


def _closing(found: Verification) -> str:
    counts = ((outcome, len(found.of(outcome))) for outcome in CheckOutcome)
    said = ", ".join(f"{count} {outcome.value}" for outcome, count in counts if count)
    return f"{len(found.checks)} checks: {said}" if found.checks else "no check was asked for"


def document(found: Verification) -> dict[str, Any]:
    """Return the verification's own parts of its JSON document."""
    checks = [{**plain(check), "check": check.sentence} for check in found.checks]
    for check in checks:
        del check["sentence"]
    return {"passed": not found.of(*_BAD), "checks": checks}
