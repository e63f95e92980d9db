"""Trials on an API server that answers badly, as a table: ``python -m tests.faults --help``."""

from __future__ import annotations

import argparse
import contextlib
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from itertools import product
from pathlib import Path

from tests.faults.scenarios import SCENARIOS
from tests.faults.trials import Row, Trials, line, table
from tests.scenarios.on_real import Lender, own_cluster, real_world
from tests.scenarios.on_sandbox import sandbox_world
from tests.scenarios.warm import Forge
from tests.scenarios.world import PROGRAM, World

_KEPT = Path("build/faults")


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.faults",
        description="Run the tool through a proxy that spoils a share of the API server's answers.",
    )
    parser.add_argument("--seeds", type=int, default=3, help="how many seeds; 3 by default")
    parser.add_argument("--first", type=int, default=1, help="the first seed, such as one to try again; 1 by default")
    parser.add_argument("--rate", type=float, default=0.2, help="share of requests that is spoiled; 0.2 by default")
    parser.add_argument("--table", type=Path, help="file for the table, Markdown; standard output by default")
    parser.add_argument("--sandbox", action="store_true", help="on the sandbox instead of a real control plane")
    parser.add_argument("--scenario", action="append", choices=list(SCENARIOS), help="only this one; can be repeated")
    return parser.parse_args(argv)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)  # noqa: T201 - the progress


def main(argv: Sequence[str]) -> int:
    arguments, rows, began = _arguments(argv), list[Row](), time.monotonic()
    seeds = range(arguments.first, arguments.first + arguments.seeds)
    chosen = [name for name in SCENARIOS if name in (arguments.scenario or SCENARIOS)]
    shutil.rmtree(_KEPT, ignore_errors=True)
    with contextlib.ExitStack() as running:
        plane = Path(running.enter_context(tempfile.TemporaryDirectory(prefix="faults-")))
        World.servers = {PROGRAM: running.enter_context(contextlib.closing(Forge()))}
        lender = running.enter_context(contextlib.closing(Lender(lambda: own_cluster(plane))))
        opened = sandbox_world if arguments.sandbox else partial(real_world, lender)
        trials = Trials(opened, arguments.rate, _KEPT.resolve())
        for row in trials.rows(product(seeds, chosen)):
            rows.append(row)
            _say(f"{time.monotonic() - began:4.0f} s: {line(row)}")
            if arguments.table:
                arguments.table.write_text(table(rows))
    if not arguments.table:
        print(table(rows), end="")  # noqa: T201 - what it is run for
    return 0 if all(row.is_converged for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
