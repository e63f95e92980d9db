"""What rules look at, how they report, and which findings about hosts a user sees."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any, cast

from gpu_provision.hosts.errors import fill
from gpu_provision.model import codes
from gpu_provision.model.codes import OS_DIFFERS, RUNTIME_WITHOUT_CDI
from gpu_provision.model.findings import Finding, Severity
from gpu_provision.model.hosts import Expectation, ImageLookup

if TYPE_CHECKING:  # the facts take a while, and most users of this module judge no host
    from gpu_provision.hosts.facts.host import HostFacts


def apply_ignored(findings: Iterable[Finding], ignored: frozenset[str]) -> Iterable[Finding]:
    """Yield the findings; an ignored error becomes a warning, an ignored warning is dropped."""
    for finding in findings:
        if finding.code not in ignored:
            yield finding
        elif finding.severity is Severity.ERROR:
            yield replace(finding, severity=Severity.WARNING)


_SAID_BY_NODES = {codes.RUNTIME_OLD: RUNTIME_WITHOUT_CDI, codes.OTHER_SYSTEM: OS_DIFFERS}
"""Code of a finding about a host -> the one by which the cluster says the same of its node."""


def drop_reported_by_cluster(of_hosts: Iterable[Finding], of_cluster: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return the findings about hosts without those that the cluster says of the nodes, too."""
    findings = list(of_cluster)
    said = {(finding.code, name) for finding in findings for name in re.split(r"[ ,]+", finding.where)}
    said |= {(each.code, _observation(each)) for each in findings if each.where.endswith(" more")}  # too many to name
    return tuple(
        each
        for each in of_hosts
        if said.isdisjoint((_SAID_BY_NODES.get(each.code), text) for text in (each.where, _observation(each)))
    )


def _observation(finding: Finding) -> str:
    """Return what a finding says without its subject, such as ``the host runs``."""
    return re.sub(r"^the (host|node|nodes) runs? ", "", finding.what)


def unknown_codes(ignored: Iterable[str]) -> tuple[str, ...]:
    """Return those of the codes that no rule tells."""
    return tuple(code for code in ignored if code not in codes.PREFLIGHT)


@dataclass(frozen=True, slots=True)
class CheckedHost:
    """One machine: what is expected of it, what it is, and what the registry says about its driver image."""

    expected: Expectation
    host: HostFacts
    image: ImageLookup | None = None  # none if the registry was not asked
    next_image: ImageLookup | None = None  # the precompiled one for another kernel that boots next

    @property
    def driver_key(self) -> str:
        """The inventory's section that decides on this machine's driver."""
        return f"pools.{self.expected.pool}.driver"

    def finding(self, rule: str, evidence: str = "", *, severity: str = "", **words: object) -> Finding:
        """Return the finding of a rule in findings.toml, with the words that it names; evidence is what was read."""
        known = {"expected": self.expected, "host": self.host, "key": self.driver_key, **words}
        return fill(_texts(rule), self.expected.node, evidence, severity, **known)


@cache
def _texts(rule: str) -> Mapping[str, str]:
    import tomllib  # noqa: PLC0415 - only a check pays for it

    table: Any = tomllib.loads(resources.files(__package__).joinpath("findings.toml").read_text(encoding="utf-8"))
    for name in rule.split("."):
        table = table[name]
    return cast("Mapping[str, str]", table)


Rule = Callable[[CheckedHost], Iterator[Finding]]
"""Yields what it finds about a machine that is to have a GPU; nothing if all is well or if the facts do not say."""
