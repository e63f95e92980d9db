"""docs/findings.md, made from the CODES tables of all packages: ``make docs`` writes it."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Iterator, Mapping

import gpu_provision

_HEAD = """\
# Findings

Everything that gpu-provision reports carries a code, says where and what, shows what was seen, and names a fix.
Codes are stable: a code keeps its meaning, and one that is no longer used is not used again.
This page is made by `make docs` from the tables in the code.
"""
_AREAS = {
    "GP0": "Command line",
    "GP1": "Inventory",
    "GP2": "Planning",
    "GP3": "Cluster",
    "GP4": "Components",
    "GP5": "Runs and validations",
    "GP6": "Hosts",
    "GP7": "Sandbox",
    "GP8": "Acceptance tests",
}


def tables() -> Iterator[tuple[str, Mapping[str, str]]]:
    """Yield the CODES table of every module called ``codes``, with the module's name."""
    for module in pkgutil.walk_packages(gpu_provision.__path__, "gpu_provision."):
        if module.name.endswith(".codes"):
            yield module.name, importlib.import_module(module.name).CODES


def page() -> str:
    """Return docs/findings.md. Raises ValueError if two tables use one code."""
    titles = _joined(tables())
    areas = sorted({code[:3] for code in titles})
    return "\n".join([_HEAD, *(_section(area, titles) for area in areas)])


def _joined(found: Iterator[tuple[str, Mapping[str, str]]]) -> dict[str, str]:
    titles: dict[str, str] = {}
    for name, codes in found:
        twice = sorted(titles.keys() & codes.keys())
        if twice:
            message = f"{name} uses {', '.join(twice)} again"
            raise ValueError(message)
        titles.update(codes)
    return titles


def _section(area: str, titles: Mapping[str, str]) -> str:
    rows = [f"| {code} | {titles[code].removesuffix('.')} |" for code in sorted(titles) if code.startswith(area)]
    return "\n".join([f"## {_AREAS.get(area, area)}", "", "| code | meaning |", "|---|---|", *rows, ""])


if __name__ == "__main__":
    sys.stdout.write(page())
