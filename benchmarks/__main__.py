"""Measures what runs cost, with the goal of each figure and with what a user would run instead.

    python -m benchmarks [--real] [--markdown FILE] [--record FILE [--compare FILE]] [PART ...]

Without --real the API server is the sandbox's, and its nodes cost next to nothing: what is left is the tool and the API
server. With --real it is a real control plane with simulated kubelets; then the own time is that beyond the slowest
node's critical path, which is 4 s where the machine has time. All of it shares the processors of this machine, so times
are compared within one run. The part hosts needs root; takeover is measured only when it is named.
"""

from __future__ import annotations

import argparse
import os
import platform
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from benchmarks import controller, hosts, install, rollout, start, takeover
from benchmarks.processes import busy_seconds
from benchmarks.table import Row, compared, record, write

PARTS = ("start", "install", "rollout", "controller", "hosts", "takeover")


def main() -> None:
    """Print each row once it is known."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--real", action="store_true", help="on a real control plane")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="also write the table into this page's block")
    parser.add_argument("--record", type=Path, metavar="FILE", help="also add the figures to this file of runs (JSON)")
    parser.add_argument("--compare", type=Path, metavar="FILE", help="and compare its medians with those of this one")
    parser.add_argument("--nodes", type=int, nargs="*", default=[5, 200, 1000], metavar="COUNT", help="of clusters")
    parser.add_argument("--hosts", type=int, nargs="*", default=[1, 20, 50], metavar="COUNT", help="of hosts")
    parser.add_argument("--rollouts", nargs="*", default=["5:1", "100:10", "1000:50"], metavar="COUNT:PARALLEL")
    parser.add_argument("--joining", type=int, default=1000, metavar="COUNT", help="of nodes that join in a minute")
    parser.add_argument("--rest", type=float, default=60.0, metavar="SECONDS", help="to watch a controller at rest")
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], metavar="PART", help=", ".join(PARTS))
    chosen = parser.parse_args()
    before, rows = busy_seconds(), []
    for row in _rows(chosen, chosen.parts or PARTS[:-1]):
        rows.append(row)
        print(row, flush=True)
    busy, idle = (now - then for now, then in zip(busy_seconds(), before, strict=True))
    print(f"processors of this machine in use: {busy / (busy + idle):.0%}")
    if chosen.record:
        record(rows, chosen.record)
        print(*(compared(chosen.record, chosen.compare) if chosen.compare else ()), sep="\n")
    if chosen.markdown:
        machine = f"{os.cpu_count()} cores ({busy / (busy + idle):.0%} in use), Python {platform.python_version()}"
        name = "real control plane" if chosen.real else "sandbox"
        write(rows, chosen.markdown, name, f"{datetime.now(UTC).date()}, {name}; {machine}.")


def _rows(chosen: argparse.Namespace, parts: tuple[str, ...]) -> Iterator[Row]:
    for part in parts:
        match part:
            case "start":
                yield from start.rows()
            case "install":
                yield from install.lacking()
                yield from install.rows(chosen.nodes, real=chosen.real)
            case "rollout":
                pairs = [tuple(int(word) for word in text.split(":")) for text in chosen.rollouts]
                yield from rollout.rows(pairs, real=chosen.real)
            case "controller":
                yield from controller.rows(chosen.nodes, chosen.joining, chosen.rest, real=chosen.real)
            case "hosts":
                yield from hosts.rows(chosen.hosts)
            case _:
                yield from takeover.rows(real=chosen.real)


if __name__ == "__main__":
    main()
