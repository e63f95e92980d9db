"""What a host phase that is cut short has done by then."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

_MANY = 8


@dataclass(slots=True)
class SoFar:
    """What hosts were heard of, from the events of a run.

    Attributes:
        steps: Node -> what it was at last.
        changes: Node -> what was changed on it, in words.
    """

    steps: dict[str, str] = field(default_factory=dict)
    changes: dict[str, list[str]] = field(default_factory=dict)

    def __str__(self) -> str:
        """Return it in words: every change with its hosts, and what was under way."""
        if not self.steps:
            return "no host was reached yet"
        done = _by_text({node: tuple(words) for node, words in self.changes.items()})
        under_way = _by_text({node: (step,) for node, step in self.steps.items()})
        return f"changed so far: {done or 'nothing'}. Last begun: {under_way}"


def _by_text(said: Mapping[str, tuple[str, ...]]) -> str:
    nodes: dict[str, list[str]] = {}
    for node, texts in said.items():
        for text in texts:
            nodes.setdefault(text, []).append(node)
    return "; ".join(f"{text} ({_listed(where)})" for text, where in nodes.items())


def _listed(nodes: Iterable[str]) -> str:
    names = sorted(nodes)
    rest = len(names) - _MANY
    return ", ".join(names[:_MANY]) + (f" and {rest} more" if rest > 0 else "")
