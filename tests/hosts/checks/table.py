"""The tables of docs/preflight.md, made from the cases and systems of the tests.

``python -m tests.hosts.checks.table`` writes them; a test sees that they are up to date.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from gpu_provision.model.codes import PREFLIGHT, meanings
from tests import data_file
from tests.hosts.checks.cases import cases

REPOSITORY = Path(__file__).parents[3]
PAGE = REPOSITORY / "docs/preflight.md"
SYSTEMS = REPOSITORY / "tests/hosts/facts/systems"


def findings() -> str:
    """Return every finding with its severities and the cases that provoke it."""
    provoked: dict[str, list[tuple[str, str]]] = {}
    for case in cases():
        for code, severity in (each.split() for each in case.finds):
            if not case.expects.get("ignore"):
                provoked.setdefault(code, []).append((severity, case.case))
    rows = [f"| {code} | {_severities(provoked.get(code, []))} | {title} | {_cases(provoked.get(code, []))} |"
            for code, (title, *_) in meanings().items() if code in PREFLIGHT]  # fmt: skip
    return "\n".join(["| code | severity | meaning | provoked in the tests by |", "|---|---|---|---|", *rows])


def systems() -> str:
    """Return every system whose answer is a data file of the tests, and where the answer came from."""
    rows = [_system(path) for path in sorted(SYSTEMS.glob("*.txt"))]
    return "\n".join(["| system | what it shows | source |", "|---|---|---|", *rows])


def page(text: str) -> str:
    for name, table in (("findings", findings()), ("systems", systems())):
        text = re.sub(
            f"(<!-- {name} -->\n).*?(<!-- end of {name} -->)",
            lambda found, table=table: f"{found[1]}{table}\n{found[2]}",
            text,
            flags=re.DOTALL,
        )
    return text


def _severities(found: list[tuple[str, str]]) -> str:
    return " or ".join(sorted({severity for severity, _ in found})) or "error"


def _cases(found: list[tuple[str, str]]) -> str:
    return "; ".join(dict.fromkeys(case for _, case in found)) or "tests/reconcile/test_preflight.py"


def _system(path: Path) -> str:
    requirement = data_file.document(path.with_suffix(".yaml").read_text(encoding="utf-8"))["requirement"]
    return f"| {path.stem} | {requirement} | {' '.join(_source(path))} |"


def _source(path: Path) -> Iterator[str]:
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            return
        yield line.removeprefix("# ").strip()


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
