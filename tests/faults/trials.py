"""Trials: a seed decides which requests of each scenario are spoiled; a row says how each of them went.

Scenarios follow one another on one cluster. Each begins with what it needs, made without the proxy, so that one that
fails does not decide about the next.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpu_provision.sandbox.kubeconfig import credentials
from tests.faults.bench import SCENARIOS, Bench
from tests.faults.doubles import audited, doubles
from tests.faults.draws import Draws, Fault
from tests.faults.proxy import Proxy

_AGENT = "gpu-provision"
_ALL = tuple(SCENARIOS)
Open = Callable[[], contextlib.AbstractContextManager[Bench]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """How a scenario went with a seed.

    Attributes:
        exit: The exit code of the tool at first try, or why there is none.
        after: What is not as it has to be afterwards, by an API server that answers well; empty if all is.
        twice: What was created twice.
        faults: How many requests were spoiled, by fault.
    """

    seed: int
    scenario: str
    exit: str
    seconds: float = 0.0
    after: str = ""
    twice: Sequence[str] = ()
    has_traceback: bool = False
    faults: Mapping[Fault, int]

    @property
    def is_converged(self) -> bool:
        """Whether the tool came to its end at first try, with all that was to do done once."""
        return (self.exit, self.after, self.has_traceback) == ("0", "", False) and not self.twice


@dataclass(frozen=True, slots=True)
class Trials:
    """How benches are opened and requests are spoiled.

    Attributes:
        open: Opens a bench on a bare cluster.
        rate: The share of requests that is spoiled, from 0 to 1.
        folder: For the files of each seed: what the tool said, as ``SCENARIO.log``, and ``SCENARIO/faults.log``.
    """

    open: Open
    rate: float
    folder: Path

    def rows(self, seeds: Iterable[int], scenarios: Sequence[str] = _ALL) -> Iterator[Row]:
        """Run scenarios with each seed; a cluster that a seed does not leave bare is not used again."""
        with contextlib.ExitStack() as opened:
            bench = None
            for seed in seeds:
                bench = bench or opened.enter_context(self.open())
                rows = list[Row]()
                for name in scenarios:
                    rows.append(self._row(bench, seed, name))
                    yield rows[-1]
                if not all(row.is_converged for row in rows) or scenarios[-1] != "destroy":
                    opened.close()
                    bench = None

    def _row(self, bench: Bench, seed: int, name: str) -> Row:
        try:
            if name != "install":
                bench.prepare()
        except AssertionError as error:
            return Row(seed=seed, scenario=name, exit="not begun", after=str(error), faults={})
        audited_so_far = bench.audit_log.stat().st_size if bench.audit_log else 0
        folder, draws = self.folder / f"seed-{seed}", Draws(f"{seed} {name}", self.rate)
        with Proxy(credentials(bench.world.kubeconfig), draws, folder / name) as bench.proxy:
            start = time.monotonic()
            outcome = SCENARIOS[name](bench)
            seconds = time.monotonic() - start
        (folder / f"{name}.log").write_text(outcome.text)
        after = bench.left() if name == "destroy" else bench.differences()
        writes = audited(bench.audit_log, audited_so_far, _AGENT) if bench.audit_log else bench.proxy.writes
        return Row(
            seed=seed,
            scenario=name,
            exit=outcome.exit,
            seconds=seconds,
            after=after,
            twice=doubles(writes),
            has_traceback="Traceback (most recent call last)" in outcome.text,
            faults=bench.proxy.spoiled,
        )
