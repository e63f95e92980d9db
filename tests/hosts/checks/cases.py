"""The cases of preflight as values, for its tests and for the table in the documentation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpu_provision.hosts.checks.findings import CheckedHost
from gpu_provision.hosts.checks.judge import resolve_driver
from gpu_provision.hosts.facts.host import HostFacts, parse
from gpu_provision.model.hosts import Expectation, ImageAvailability, ImageLookup
from tests import data_file

HERE = Path(__file__).parent
EXPECTED = Expectation(
    node="t4-1",
    pool="t4",
    os="ubuntu22.04",
    gpu_model="T4",
    gpu_count=1,
    driver_image="nvcr.io/nvidia/driver",
    driver_version="580.95.05",
)
NOW = 1760000000


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One case of cases.yaml; its keys are described there."""

    case: str
    finds: list[str]
    host: Mapping[str, list[str]] = field(default_factory=dict)
    add: Mapping[str, list[str]] = field(default_factory=dict)
    replace: Mapping[str, str] = field(default_factory=dict)
    expects: Mapping[str, Any] = field(default_factory=dict)
    image: Mapping[str, str] = field(default_factory=dict)
    next_image: Mapping[str, str] = field(default_factory=dict)
    clock: int = NOW
    evidence: str = ""
    fix: str = ""

    @property
    def subject(self) -> CheckedHost:
        expected = Expectation.from_data({**_plain(EXPECTED), **self.expects})
        image, following = (
            ImageLookup(f"nvcr.io/nvidia/driver:{tag}", ImageAvailability(given["state"]), given.get("evidence", ""))
            if given
            else None
            for given, tag in ((self.image, "580.95.05-ubuntu22.04"), (self.next_image, "580-NEXT-ubuntu22.04"))
        )
        return CheckedHost(resolve_driver(expected, self.record), self.record, image, following)

    @property
    def record(self) -> HostFacts:
        record = parse(self._output(), asked_at=float(self.clock), answered_at=float(self.clock))
        assert record
        return record

    def _output(self) -> list[str]:
        lines: list[str] = []
        section = ""
        for line in _healthy(self.replace):
            if line.startswith("["):
                lines += self.add.get(section, [])
                section = line.strip("[]")
                lines += [line, *self.host.get(section, [])]
            elif section not in self.host:
                lines.append(line)
        return lines


def cases() -> list[Case]:
    return [Case(**each) for each in data_file.document((HERE / "cases.yaml").read_text(encoding="utf-8"))]


def _healthy(replacements: Mapping[str, str]) -> list[str]:
    text = (HERE / "healthy.txt").read_text(encoding="utf-8")
    for old, new in replacements.items():
        assert old in text
        text = text.replace(old, new)
    return text.splitlines()


def _plain(expected: Expectation) -> dict[str, Any]:
    return {name: getattr(expected, name) for name in Expectation.__slots__}
