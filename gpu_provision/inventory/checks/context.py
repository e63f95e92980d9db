"""What a check looks at, and how it tells what it finds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from gpu_provision.inventory.document import Document, KeyPath, Problem, visible
from gpu_provision.inventory.redaction import redact
from gpu_provision.model.findings import Finding, Severity
from gpu_provision.model.inventory import Inventory

Fix = str | Callable[[], str]
"""What a reader can do; a search for it is made for findings that are shown alone."""


@dataclass(frozen=True, slots=True)
class CheckContext:
    """An inventory under examination.

    Attributes:
        document: Knows the line of every value.
        data: The document's data without what does not fit the schema.
        inventory: The same, resolved.
        complete: Whether the document fits the schema; if not, nothing may be concluded from what is absent.
    """

    document: Document
    data: dict[str, Any]
    inventory: Inventory
    complete: bool

    @property
    def pools(self) -> dict[str, dict[str, Any]]:
        """The pools as declared."""
        pools: dict[str, dict[str, Any]] = self.data.get("pools", {})
        return pools

    @property
    def nodes(self) -> list[dict[str, Any]]:
        """The nodes as declared, at the positions that they have in the file."""
        nodes: list[dict[str, Any]] = self.data.get("nodes", [])
        return nodes

    def declared(self, *paths: KeyPath) -> KeyPath:
        """Return the first path that the file has, else the last one."""
        return next((path for path in paths if self.document.item(path)), paths[-1])

    def at(self, path: KeyPath) -> dict[str, Any]:
        """Return the mapping at a path; an empty one if there is none."""
        section: Any = self.data
        for step in path:
            try:
                section = section[step]
            except (KeyError, IndexError):
                return {}
        return dict(section)

    def is_written(self, path: KeyPath) -> bool:
        """Return whether the file has the value at a path, and not a reference to it."""
        item = self.document.item(path)
        return item is not None and not isinstance(item.value, dict)

    def error(self, code: str, path: KeyPath, what: str, fix: Fix) -> Problem:
        """Return a problem that stops a run; its evidence is the value at the path."""
        return self._problem(Severity.ERROR, code, path, what, fix)

    def warning(self, code: str, path: KeyPath, what: str, fix: Fix) -> Problem:
        """Return a problem that a run survives; its evidence is the value at the path."""
        return self._problem(Severity.WARNING, code, path, what, fix)

    def _problem(self, severity: Severity, code: str, path: KeyPath, what: str, fix: Fix) -> Problem:
        finding = partial(self._finding, severity, code, path, what, fix)
        return Problem(line=self.document.line(path), severity=severity, finding=finding)

    def _finding(self, severity: Severity, code: str, path: KeyPath, what: str, fix: Fix) -> Finding:
        item = self.document.item(path)
        return Finding(
            code=code,
            where=self.document.where(path),
            what=what,
            evidence=visible(redact(path, item.raw))[:100] if item else "",
            fix=fix if isinstance(fix, str) else fix(),
            severity=severity,
        )
