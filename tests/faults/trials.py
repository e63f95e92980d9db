"""Trials: a seed decides which requests of each scenario are spoiled; a row says how each of them went.

Scenarios follow one another on one cluster. Each begins with what it needs, made without the proxy, so that one that
fails does not decide about the next.
"""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpu_provision.sandbox.client import load_credentials
from tests.faults.doubles import audited, doubles
from tests.faults.draws import Draws, Fault
from tests.faults.proxy import Proxy
from tests.faults.scenarios import SCENARIOS, Stack
from tests.scenarios.world import World

_AGENT = "gpu-provision"
Open = Callable[[Path], contextlib.AbstractContextManager[World]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    seed: int
    scenario: str
    exit: str  # the exit code of the tool at first try, or why there is none
    seconds: float = 0.0
    after: str = ""  # what is not as it has to be afterwards, by an API server that answers well; empty if all is
    twice: Sequence[str] = ()  # what was created twice
    has_traceback: bool = False
    faults: Mapping[Fault, int]  # how many requests were spoiled

    @property
    def is_converged(self) -> bool:
        """Whether the tool came to its end at first try, with all that was to do done once."""
        return (self.exit, self.after, self.has_traceback) == ("0", "", False) and not self.twice


@dataclass(frozen=True, slots=True)
class Trials:
    open: Open  # a new world, in an empty folder
    rate: float  # the share of requests that is spoiled, from 0 to 1
    folder: Path  # for the files of each seed: what the tool said, as ``SCENARIO.log``, and ``SCENARIO/faults.log``

    def rows(self, pairs: Iterable[tuple[int, str]]) -> Iterator[Row]:
        """Run a scenario with a seed, for each pair, one after the other; an installation gets a bare cluster."""
        with contextlib.ExitStack() as opened:
            stack, is_bare = None, False
            for seed, name in pairs:
                if stack is None or (name == "install" and not is_bare):
                    opened.close()
                    folder = Path(opened.enter_context(tempfile.TemporaryDirectory()))
                    stack = Stack(opened.enter_context(self.open(folder)))
                row = self._row(stack, seed, name)
                is_bare = name == "destroy" and row.is_converged
                yield row

    def _row(self, stack: Stack, seed: int, name: str) -> Row:
        try:
            stack.prepare(name)
        except (AssertionError, subprocess.TimeoutExpired) as error:
            return Row(seed=seed, scenario=name, exit="not begun", after=str(error), faults={})
        log = stack.world.audit_log
        logged_so_far = log.stat().st_size if log else 0
        folder, draws = self.folder / f"seed-{seed}", Draws(f"{seed} {name}", self.rate)
        with Proxy(load_credentials(stack.world.kubeconfig), draws, folder / name) as stack.proxy:
            start = time.monotonic()
            outcome = SCENARIOS[name](stack)
            seconds = time.monotonic() - start
        (folder / f"{name}.log").write_text(outcome.text)
        return Row(
            seed=seed,
            scenario=name,
            exit=outcome.exit,
            seconds=seconds,
            after=stack.left(outcome) if name == "destroy" else stack.differences(),
            twice=doubles(audited(log, logged_so_far, _AGENT) if log else stack.proxy.writes),
            has_traceback="Traceback (most recent call last)" in outcome.text,
            faults=stack.proxy.spoiled,
        )


_HEADINGS = ("seed", "scenario", "exit", "seconds", "plan afterwards", "created twice", "traceback", "faults injected")
_SHOWN = 3
_AS_WANTED = {"destroy": "nothing left"}


def line(row: Row) -> str:
    ended = "converged" if row.is_converged else f"exit {row.exit}, {row.after or 'plan empty'}"
    return f"seed {row.seed} {row.scenario}: {ended}; {row.seconds:.1f} s, {sum(row.faults.values())} faults"


def table(rows: Sequence[Row]) -> str:
    converged = sum(row.is_converged for row in rows)
    lines = [_HEADINGS, ["---"] * len(_HEADINGS), *map(_cells, rows)]
    return "\n".join((*map(_joined, lines), "", f"{converged} of {len(rows)} converged.", ""))


def _joined(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _twice(names: Sequence[str]) -> str:
    shown = ", ".join(sorted(set(names))[:_SHOWN])
    return f"{len(names)}: {shown}".replace("|", "\\|") if names else "0"


def _cells(row: Row) -> tuple[str, ...]:
    return (
        str(row.seed),
        row.scenario,
        row.exit,
        f"{row.seconds:.1f}",
        (row.after or _AS_WANTED.get(row.scenario, "empty")).replace("|", "\\|").replace("\n", " "),
        _twice(row.twice),
        "yes" if row.has_traceback else "no",
        ", ".join(f"{count} {fault.value}" for fault, count in row.faults.items()) or "0",
    )
