"""Mutants: small faults put into the product, to measure whether the tests find them.

    python tools/mutants.py --seed 14 --count 40 > docs/evidence/mutants-14.json
    python tools/mutants.py run docs/evidence/mutants-14.json --results before.json [--suite real] [--only ID ...]
    python tools/mutants.py table docs/evidence/mutants-14.json before.json after.json

The list is the same for the same seed and source. An id names module, function, operator and a digest of the source
line, but no line number: ``run`` places a mutant again after an edit elsewhere, or after a rename of the module or the
function, and says so where the code no longer exists.

``run`` needs pytest and works in a temporary clone of HEAD. The working tree never changes, and what is not committed
takes no part. The steps are, each for the survivors of the one before:

1. near: files of tests that import the module, or carry its name;
2. far: files of tests that import a helper or a module that imports it;
3. driver: whole runs, by the table DRIVERS. The suites ``real`` and ``hosts`` have only this step, and one file of it.

A mutant that one suite has killed is left out of the next one. Each file runs without a mutant first. Files that fail
then are left out and listed under ``baseline``. In each step the cheapest files come first, up to ``--budget`` seconds
of their baseline. A mutant that runs out of time is killed. Results are merged into one file by id. ``table`` exits
with 1 if a mutant that was killed before survives after.
"""

from __future__ import annotations

import argparse
import ast
import ctypes
import hashlib
import importlib.util
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("reconcile", "kube", "rollout", "hosts", "planning", "operator", "inventory", "components", "output", "api")
PACKAGES += ("cli", "destroy", "adopt", "history", "verify")
SHOWN = ("id", "file", "function", "line", "was", "now")
KILLED = ("killed", "timeout")
STEPS = ("near", "far", "driver")
FEWEST = 3  # mutants of a package
SUITES = {"test": "not real and not hosts", "real": "real", "hosts": "hosts"}
LONG = 1  # whole runs for a mutant in the suites that take long
HOSTS = "tests/real/hosts/"
SCENARIO = "tests/scenarios/test_{}.py"
DRIVERS = {  # a pattern of modules -> whole runs that use them; the order is that of preference
    r"adopt": [SCENARIO.format("adoption")],
    r"destroy|prune": [SCENARIO.format("removal")],
    r"histor": [SCENARIO.format("history")],
    r"lock|lease": [SCENARIO.format("locks")],
    r"drift|diff": [SCENARIO.format("drift")],
    r"rollout|drain|maintenance|observe": [SCENARIO.format("rollouts"), SCENARIO.format("rollout_plans")],
    r"operator/": [SCENARIO.format("operator"), SCENARIO.format("operator_installation")],
    r"verify/": [SCENARIO.format("verify")],
    r"hosts/(operations/reboot|deploy)": [SCENARIO.format("reboots"), HOSTS + "test_reboot.py"],
    r"hosts/(operations/runtime|background_script)": [HOSTS + "test_surroundings.py"],
    r"hosts/": [HOSTS + "test_failures.py", HOSTS + "test_twenty.py"],
    r"kube/(node_shell|exec)": ["tests/real/node/test_k8s_node.py"],
    r"planning/|rollout": [SCENARIO.format("fleet_rollouts")],
    r"": [SCENARIO.format("main_job"), SCENARIO.format("refusals")],
    r"hosts/|inventory/": ["tests/deploys/test_hosts.py"],
}
SWAPS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "in": "not in", "is": "is not", "and": "or", "+": "-"}
SWAPS |= {now: was for was, now in SWAPS.items()}
OPERATION = re.compile(rb"not\s+in\b|is\s+not\b|in\b|is\b|and\b|or\b|[<>=!]=|[<>+-]")
LARGEST = 9  # an integer above it is mostly a timeout, a width or a size
UNSEEN = re.compile(  # logs, what never happens, and arguments and methods without an effect of their own
    r"_?log(ger|ging)?\.|print\(|assert_never\(|field\(|(\w+\.)?TypeVar\("
    r"|(strict|indent|daemon|slots|kw_only|frozen)=|def __repr__"
)
TEXT = set("'\"[")  # a + of these is no arithmetic


@dataclass(frozen=True)
class Mutant:
    """One fault; ``start`` and ``end`` are offsets in bytes."""

    id: str
    file: str
    function: str
    line: int
    was: str
    now: str
    start: int
    end: int
    put: str

    def source(self, original: bytes) -> bytes:
        """Return the file with the fault in it; all else is as it was, byte for byte."""
        return original[: self.start] + self.put.encode() + original[self.end :]


class Finder(ast.NodeVisitor):
    """Finds every mutant of a file."""

    def __init__(self, file: str, source: bytes) -> None:
        """Search the file."""
        self.file, self.source, self.scope = file, source, ["<module>"]
        self.starts = [0]
        for line in source.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))
        self.seen: dict[str, int] = defaultdict(int)
        self.found: list[Mutant] = []
        self.visit(ast.parse(source))

    def span(self, node: ast.AST) -> tuple[int, int]:
        """Return where a node begins and ends."""
        return self.starts[node.lineno - 1] + node.col_offset, self.starts[node.end_lineno - 1] + node.end_col_offset

    def add(self, operator: str, node: ast.AST, put: str, span: tuple[int, int] | None = None) -> None:
        """Add a mutant of this node, in which ``put`` takes the place of the node, or of a part of it."""
        (first, last), (start, end) = self.span(node), span or self.span(node)
        was = " ".join(self.source[first:last].decode().split())
        now = " ".join((self.source[first:start].decode() + put + self.source[end:last].decode()).split())
        line = self.source[self.starts[node.lineno - 1] : self.starts[node.lineno]].decode().strip()
        digest = hashlib.sha256(f"{line}\n{was}\n{now}".encode()).hexdigest()[:8]
        module = self.file.removeprefix("gpu_provision/").removesuffix(".py")
        function = ".".join(self.scope[1:] or self.scope)
        name = f"{module}:{function}:{operator}:{digest}"
        self.seen[name] += 1
        if self.seen[name] > 1:
            name += f".{self.seen[name]}"
        self.found.append(Mutant(name, self.file, function, node.lineno, was, now, start, end, put))

    def swap(self, operator: str, node: ast.AST, left: ast.AST, right: ast.AST) -> None:
        """Swap what stands between two operands."""
        start, end = self.span(left)[1], self.span(right)[0]
        between = self.source[start:end]
        found = OPERATION.search(between)
        if found and b"#" not in between:
            put = SWAPS[" ".join(found[0].decode().split())]
            self.add(operator, node, put, (start + found.start(), start + found.end()))

    def negate(self, test: ast.expr) -> None:
        """Negate a condition, unless another operator does the same."""
        same = isinstance(test, ast.Compare) and not isinstance(test.ops[0], (ast.Lt, ast.LtE, ast.Gt, ast.GtE))
        if not same and not isinstance(test, ast.UnaryOp | ast.Constant):
            start, end = self.span(test)
            self.add("if", test, f"not ({self.source[start:end].decode()})")

    def visit(self, node: ast.AST) -> None:  # noqa: C901, PLR0912 - a table of all operators
        """Add the mutants of a node and of what is in it."""
        match node:
            case ast.Compare():
                for left, right in pairwise([node.left, *node.comparators]):
                    self.swap("compare", node, left, right)
            case ast.BoolOp():
                self.swap("and-or", node, node.values[0], node.values[1])
            case ast.BinOp(op=ast.Add() | ast.Sub()) if not TEXT & set(ast.unparse(node)):
                self.swap("sign", node, node.left, node.right)
            case ast.UnaryOp(op=ast.Not()):
                start, end = self.span(node)
                self.add("not", node, self.source[start + len("not") : end].decode().strip())
            case ast.Constant(value=bool()):
                self.add("bool", node, str(not node.value))
            case ast.Constant(value=int()) if node.value <= LARGEST:
                self.add("number", node, str(node.value + 1))
            case ast.Return(value=ast.expr() as value) if not (isinstance(value, ast.Constant) and value.value is None):
                self.add("return", node, "None", self.span(value))
            case ast.If() | ast.IfExp() | ast.While():
                self.negate(node.test)
            case ast.comprehension():
                for test in node.ifs:
                    self.negate(test)
            case ast.Expr(value=ast.Call()) if not is_unseen(node.value):
                self.add("call", node, "pass")
            case ast.Break():
                self.add("loop", node, "continue")
            case ast.Continue():
                self.add("loop", node, "break")
        self.visit_parts(node)

    def visit_parts(self, node: ast.AST) -> None:
        """Go on inside, but not into annotations, decorators, defaults of arguments and texts."""
        if isinstance(node, ast.JoinedStr | ast.Raise | ast.arguments) or is_unseen(node):
            return
        scope = self.scope
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            self.scope = [*scope, node.name]
        for field, value in ast.iter_fields(node):
            if field not in ("annotation", "returns", "decorator_list"):
                for part in value if isinstance(value, list) else [value]:
                    if isinstance(part, ast.AST):
                        self.visit(part)
        self.scope = scope


def is_unseen(node: ast.AST) -> bool:
    """Whether no test can see what this node does."""
    return isinstance(node, ast.Call | ast.keyword | ast.FunctionDef) and UNSEEN.match(ast.unparse(node)) is not None


def mutants(tree: Path, package: str = "") -> list[Mutant]:
    """Return all mutants of a package, or of the product."""
    files = sorted((tree / "gpu_provision" / package).rglob("*.py"))
    return [one for file in files for one in Finder(file.relative_to(tree).as_posix(), file.read_bytes()).found]


def chosen(tree: Path, seed: int, count: int) -> list[Mutant]:
    """Choose over the packages in proportion, at most one of a file, and over the operators in turn."""
    lots = random.Random(seed)  # noqa: S311 - the same seed, the same list
    every = {package: mutants(tree, package) for package in PACKAGES}
    weight = {package: len(found) for package, found in every.items()}
    quota = dict.fromkeys(PACKAGES, FEWEST)
    for _ in range(count - FEWEST * len(PACKAGES)):
        quota[max(PACKAGES, key=lambda package: weight[package] / (quota[package] + 1))] += 1
    result: list[Mutant] = []
    for package in PACKAGES:
        left, operators = every[package], sorted({one.id.split(":")[2] for one in every[package]})
        lots.shuffle(operators)
        for number in range(quota[package]):
            operator = operators[number % len(operators)]
            pick = lots.choice([one for one in left if one.id.split(":")[2] == operator] or left or every[package])
            result.append(pick)
            left = [one for one in left if one.file != pick.file]
    return sorted(result, key=lambda one: one.id)


def placed(name: str, found: list[Mutant]) -> Mutant | None:
    """Return the mutant of this id; after a rename, the only one of that function and line, or of that line."""
    for cut in range(3):
        same = [one for one in found if one.id.split(":", cut)[cut] == name.split(":", cut)[cut]]
        if len(same) == 1:
            return same[0]
    return None


def imported(file: Path, known: set[str]) -> set[str]:
    """Return which of the known modules a file imports."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            full = {f"{node.module}.{alias.name}" for alias in node.names}
            names |= (full & known) or {node.module}
    return names & known


class Tests:
    """Which files of tests have to do with a module."""

    def __init__(self, tree: Path) -> None:
        """Read all imports of a tree."""
        files = [
            path.relative_to(tree) for top in ("gpu_provision", "tests") for path in sorted((tree / top).rglob("*.py"))
        ]
        names = {".".join(path.with_suffix("").parts).removesuffix(".__init__"): path for path in files}
        self.importers: dict[str, set[str]] = defaultdict(set)  # of a file, the files that import it
        for path in files:
            for name in imported(tree / path, set(names)):
                self.importers[str(names[name])].add(str(path))
            if path.name.startswith("test_"):
                for folder in path.parents:
                    self.importers[str(folder / "conftest.py")].add(str(path))

    def of(self, file: str, suite: str) -> dict[str, list[str]]:
        """Return the files of each step."""
        drivers = [test for pattern, tests in DRIVERS.items() if re.search(pattern, file) for test in tests]
        if suite != "test":
            return {"driver": [test for test in drivers if test.startswith(HOSTS) == (suite == "hosts")][:LONG]}
        path = Path(file)
        near = self.importers[file] | {str(Path("tests", *path.parts[1:-1], f"test_{path.stem}.py"))}
        far = {test for one in near for test in self.importers[one]} - near
        return {"near": sorted(filter(is_test, near)), "far": sorted(filter(is_test, far)), "driver": drivers}


def is_test(file: str) -> bool:
    """Whether pytest finds tests in it."""
    return Path(file).name.startswith("test_")


class Campaign:
    """Runs files of tests against mutants, in a clone of the repository."""

    def __init__(self, arguments: argparse.Namespace, clone: Path) -> None:
        """Read the results that there are already."""
        self.suite, self.budget, self.clone = arguments.suite, arguments.budget, clone / "copy"
        self.file, self.scratch = arguments.results, clone / "run"
        self.state: dict[str, Any] = {"of": {}, "baseline": {}, "mutants": {}}
        if self.file.exists():
            self.state = json.loads(self.file.read_text(encoding="utf-8"))
        of = {top: git("rev-parse", f"HEAD:{top}") for top in ("gpu_provision", "tests")}
        if self.state["of"] not in ({}, of):
            sys.exit(f"{self.file} has results of another tree: name another file")
        self.state["of"] = of
        self.baseline = self.state["baseline"].setdefault(self.suite, {})
        git("clone", "-q", "--shared", str(ROOT), str(self.clone))
        git("-C", str(self.clone), "checkout", "-q", "--detach", git("rev-parse", "HEAD"))
        self.tests, self.found = Tests(self.clone), mutants(self.clone)

    def run(self, names: list[str]) -> None:
        """Run each step for the mutants that survived the one before."""
        where = {name: placed(name, self.found) for name in names}
        for name in (name for name, one in where.items() if one is None):
            self.record(name, {"outcome": "cannot be placed"})
        for step in STEPS:
            waiting = []
            for name, one in where.items():
                known = {"outcome": "survived", "by": "", "seconds": 0.0, "files": []}
                known |= self.state["mutants"].get(name, {}).get(self.suite, {})
                if one and not outcome(self.state, name).startswith(KILLED):
                    tests = set(self.tests.of(one.file, self.suite).get(step, ())) - set(known["files"])
                    waiting.append((name, one, known, tests))
            self.measure({test for *_, tests in waiting for test in tests} - set(self.baseline))
            for name, one, known, tests in waiting:
                if files := self.fit(tests):
                    self.examine(one, known, files)
                    self.record(name, known)

    def measure(self, tests: set[str]) -> None:
        """Run files without a mutant: those that fail, and those without a test that ran, are no evidence."""
        files = sorted(test for test in tests if (self.clone / test).exists())
        if not files:
            return
        report = self.scratch.with_suffix(".xml")
        self.pytest(files, 3600, f"--junitxml={report}", "-o", "junit_family=xunit1", "--continue-on-collection-errors")
        measured = {file: {"tests": 0, "seconds": 0.0, "failed": 0} for file in files}
        for case in ET.parse(report).iter("testcase"):  # noqa: S314 - pytest has just written it
            entry = measured.get(case.get("file", ""))
            if entry and case.find("skipped") is None:
                entry["tests"] += 1
                entry["failed"] += any(case.find(fault) is not None for fault in ("failure", "error"))
                entry["seconds"] = round(entry["seconds"] + float(case.get("time", 0)), 2)
        self.baseline.update(measured)
        self.write()

    def fit(self, tests: set[str]) -> list[str]:
        """Return the files that are green, the cheapest first: as many as the budget has seconds for, at least one."""
        files, used = [], 0.0
        for seconds, file in sorted((self.baseline[test]["seconds"], test) for test in tests & set(self.baseline)):
            entry = self.baseline[file]
            if entry["tests"] and not entry["failed"] and (not files or used + seconds <= self.budget):
                used += seconds
                files.append(file)
        return files

    def examine(self, one: Mutant, result: dict[str, Any], files: list[str]) -> None:
        """Run files against one mutant."""
        limit = 120 + 5 * sum(self.baseline[file]["seconds"] for file in files)
        started, path = time.monotonic(), self.clone / one.file
        original, compiled = path.read_bytes(), Path(importlib.util.cache_from_source(str(path)))
        try:
            compiled.unlink(missing_ok=True)  # two versions within a second may be of one size
            path.write_bytes(one.source(original))
            code, output = self.pytest(files, limit, "-x")
        finally:
            path.write_bytes(original)
            compiled.unlink(missing_ok=True)
        failed = re.search(
            r"^(?:FAILED|ERROR|ImportError while loading conftest) '?(.*tests/.+?)(?: - .*|'.)?$", output, re.MULTILINE
        )
        if code and not failed:
            sys.exit(f"pytest ended with {code}, and no test failed; nothing is said of {one.id}\n{output}")
        result["outcome"] = {0: "survived", None: "timeout"}.get(code, "killed")
        result["by"] = failed[1] if failed else ""
        result["seconds"] = round(result["seconds"] + time.monotonic() - started, 1)
        result["files"] += files

    def record(self, name: str, result: dict[str, Any]) -> None:
        """Keep the result of a mutant."""
        self.state["mutants"].setdefault(name, {})[self.suite] = result
        self.write()
        print(time.strftime("%H:%M:%S"), self.suite, name, *(f"{k}={v}" for k, v in result.items() if k != "files"))

    def write(self) -> None:
        """Write all results."""
        self.state["mutants"] = dict(sorted(self.state["mutants"].items()))
        part = self.file.with_suffix(".part")
        part.write_text(json.dumps(self.state, indent=1) + "\n", encoding="utf-8")
        part.replace(self.file)

    def pytest(self, files: list[str], limit: float, *options: str) -> tuple[int | None, str]:
        """Run files of tests; return pytest's exit code, or None if it ran out of time, and its output."""
        programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", SUITES[self.suite]]
        command += [f"--basetemp={self.scratch}", *options, *files]
        environment = {**os.environ, "PYTHONPATH": str(self.clone), "PATH": programs}
        with tempfile.TemporaryFile("w+") as output:
            running = subprocess.Popen(
                command, cwd=self.clone, env=environment, stdout=output, stderr=output, start_new_session=True
            )
            try:
                code: int | None = running.wait(limit)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                end_descendants()
            output.seek(0)
            return code, output.read()


def end_descendants() -> None:
    """End what this process started: what a test left running has become a child of it."""
    me = os.getpid()
    while children := Path(f"/proc/{me}/task/{me}/children").read_text(encoding="utf-8").split():
        for child in children:
            os.kill(int(child), signal.SIGKILL)
            os.waitpid(int(child), 0)


def git(*arguments: str) -> str:
    """Return what git says."""
    return subprocess.check_output(["git", *arguments], cwd=ROOT, text=True).strip()


def outcome(results: dict[str, Any], name: str) -> str:
    """Return the last suite's outcome, or that of the suite that killed the mutant."""
    last = "not run"
    for suite in SUITES:
        if suite in results["mutants"].get(name, {}):
            result = results["mutants"][name][suite]
            last = result["outcome"] + (f" by {suite}: {result['by']}" if result.get("by") else "")
            if last.startswith(KILLED):
                break
    return last


def print_table(listed: list[dict[str, Any]], before: dict[str, Any], after: dict[str, Any]) -> bool:
    """Print a table in Markdown; return whether a mutant that was killed survives."""
    print("| id | fault | before | after |\n|---|---|---|---|")
    lost = False
    for one in listed:
        was, now = (outcome(results, one["id"]) for results in (before, after))
        lost |= was.startswith(KILLED) and now.startswith("survived")
        cells = (one["id"], f"`{one['was']}` -> `{one['now']}`", was, now)
        print("|", " | ".join(cell.replace("|", "\\|") for cell in cells), "|")
    return lost


def main() -> int:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=14)
    parser.add_argument("--count", type=int, default=40)
    verbs = parser.add_subparsers(dest="verb")
    run, table = verbs.add_parser("run"), verbs.add_parser("table")
    for verb, names in ((run, ["list"]), (table, ["list", "before", "after"])):
        for name in names:
            verb.add_argument(name, type=lambda path: json.loads(Path(path).read_text(encoding="utf-8")))
    run.add_argument("--results", type=Path, required=True)
    run.add_argument("--suite", choices=SUITES, default="test")
    run.add_argument("--only", nargs="+", metavar="ID")
    run.add_argument("--budget", type=float, default=300, help="seconds of tests for a mutant in each step")
    arguments = parser.parse_args()
    if arguments.verb == "table":
        return print_table(arguments.list, arguments.before, arguments.after)
    if arguments.verb == "run":
        ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
        with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
            Campaign(arguments, Path(folder)).run(arguments.only or [one["id"] for one in arguments.list])
        return 0
    rows = [{key: getattr(one, key) for key in SHOWN} for one in chosen(ROOT, arguments.seed, arguments.count)]
    print("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]")
    return 0


if __name__ == "__main__":
    sys.exit(main())
