"""Proxies and certificates for hosts: files that have to be there, and secrets that are not to be."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path as FilePath

from gpu_provision.inventory.certificates import Trouble, troubles
from gpu_provision.inventory.checks.subject import Subject
from gpu_provision.inventory.document import Path
from gpu_provision.inventory.problems import Problem
from gpu_provision.inventory.redaction import has_password
from gpu_provision.inventory.resolve import needs_credentials
from gpu_provision.inventory.scope import ADDRESSES
from gpu_provision.inventory.source import absolute
from gpu_provision.model.findings import Finding, Severity


def check_files(subject: Subject) -> Iterator[Problem]:
    """Yield what is wrong with proxies and with files of certificates."""
    base = FilePath(subject.inventory.path).parent
    sections = list(_prerequisites(subject))
    yield from _certificates(subject, sections, base)
    proxies = [("proxy",), *((*path, "proxy") for path in sections)]
    for path in proxies:
        yield from _proxy(subject, path, base)
    shared = subject.data.get("proxy", {})
    if needs_credentials(shared) and subject.inventory.specs.driver.enabled:
        what = "The driver container is not told of this proxy: who may read pods would see its credentials."
        fix = "Set driver.env with a proxy that needs none, or driver.repo_config; or nothing, if it gets no packages."
        yield subject.warning("GP676", ("proxy",), what, fix)


def _prerequisites(subject: Subject) -> Iterator[Path]:
    key = "host_prerequisites"
    yield (key,)
    yield from (("pools", name, key) for name in subject.pools)
    yield from (("nodes", position, key) for position, node in enumerate(subject.nodes) if key in node)


def _at(subject: Subject, path: Path) -> dict[str, object]:
    section = subject.data
    for step in path:
        try:
            section = section[step]  # type: ignore[index]  # steps of lists are numbers
        except (KeyError, IndexError):
            return {}
    return section


def _certificates(subject: Subject, sections: list[Path], base: FilePath) -> Iterator[Problem]:
    told: set[str] = set()
    for path in sections:
        files = _at(subject, path).get("ca_certificates", ())
        for position, name in enumerate(files):  # type: ignore[arg-type, var-annotated]  # the schema has a list there
            if name and name not in told:
                told.add(name)
                place = (*path, "ca_certificates", position)
                for trouble in troubles(absolute(name, base)):
                    yield _problem(subject, place, name, trouble)


def _problem(subject: Subject, path: Path, name: str, trouble: Trouble) -> Problem:
    """Return the problem at the line that names the file; the line of the file itself is part of the evidence."""
    place = f"{name}, line {trouble.line}" if trouble.line else name
    severity = Severity.ERROR if trouble.is_error else Severity.WARNING
    finding = partial(
        Finding,
        code=trouble.code,
        where=subject.document.where(path),
        what=trouble.what,
        evidence=f"{place}: {trouble.evidence}" if trouble.evidence else place,
        fix=trouble.fix,
        severity=severity,
    )
    return Problem(line=subject.document.line(path), severity=severity, finding=finding)


def _proxy(subject: Subject, path: Path, base: FilePath) -> Iterator[Problem]:
    section = _at(subject, path)
    for key in ADDRESSES:
        if has_password(str(section.get(key, ""))) and subject.is_written((*path, key)):
            what = "The proxy's password stands in this file in plain text."
            fix = "Name a file that holds user:password in credentials_file, and keep that out of version control."
            yield subject.warning("GP163", (*path, key), what, fix)
    file = str(section.get("credentials_file", ""))
    if file and not FilePath(absolute(file, base)).is_file():
        what = "The file with the proxy's credentials does not exist on this machine."
        fix = f"Make it, with one line user:password, or correct the path ({absolute(file, base)})."
        yield subject.error("GP162", (*path, "credentials_file"), what, fix)
