"""Results of commands."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Answer:
    code: int
    out: str
    err: str

    @property
    def text(self) -> str:
        """Both outputs, for messages of failed assertions."""
        return self.out + self.err

    @property
    def document(self) -> Any:
        """The one JSON document on standard output."""
        return json.loads(self.out)

    @property
    def errors(self) -> dict[tuple[str, str], Any]:
        """The document's errors, by code and place."""
        return {(finding["code"], finding["where"]): finding for finding in self.document["errors"]}

    @property
    def changes(self) -> list[list[str]]:
        """The changes of each host, as text."""
        return [host["changes"] for host in self.document["hosts"]]


def failures(report: Path) -> dict[str, str]:
    """Return the failed test cases of a JUnit file, with messages. At least one must have passed."""
    cases = list(ET.parse(report).iter("testcase"))  # noqa: S314 - a file of the test
    results = {case.get("name", ""): case.find("failure") for case in cases}
    assert len(cases) > len([each for each in results.values() if each is not None])
    return {name: str(failure.get("message")) for name, failure in results.items() if failure is not None}
