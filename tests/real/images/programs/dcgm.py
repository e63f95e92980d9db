"""The exporter that serves DCGM's figures to Prometheus."""

from __future__ import annotations

import csv
import os
import socket
from collections.abc import Iterable
from pathlib import Path

from . import gpus
from .process import end_when_told, say, serve, stay

_COLLECTORS = "/etc/dcgm-exporter/default-counters.csv"
_FIGURES = {"DCGM_FI_DEV_SM_CLOCK": 300, "DCGM_FI_DEV_GPU_TEMP": 34, "DCGM_FI_DEV_POWER_USAGE": 9.5}
"""What an idle GPU measures; other fields are zero."""


def main() -> int:
    end_when_told()
    say("Starting dcgm-exporter")
    try:
        _, found = gpus.usable()
        with Path(os.environ.get("DCGM_EXPORTER_COLLECTORS", _COLLECTORS)).open(newline="") as file:
            rows = [[cell.strip() for cell in row] for row in csv.reader(file)]
    except (gpus.NoDriver, OSError) as problem:
        say(f'level=fatal msg="Error starting nv-hostengine: {problem}"')
        return 1
    listen = os.environ.get("DCGM_EXPORTER_LISTEN", ":9400")
    text = _metrics(
        (row[:3] for row in rows if len(row) >= 3), found, os.environ.get("NODE_NAME") or socket.gethostname()
    )
    serve(int(listen.rpartition(":")[2]), {"/metrics": lambda: (200, text), "/health": lambda: (200, "OK\n")})
    say("DCGM successfully initialized!", f"Starting webserver listening on {listen}")
    return stay()


def _metrics(rows: Iterable[list[str]], found: list[gpus.Gpu], host: str) -> str:
    """Return every figure of every GPU in Prometheus' text format; a row has field, type and help."""
    lines = []
    for field, kind, help_text in (row for row in rows if not row[0].startswith("#") and row[1] != "label"):
        lines += [f"# HELP {field} {help_text}", f"# TYPE {field} {kind}"]
        lines += [f"{field}{{{_labels(gpu, host)}}} {_figure(field, gpu)}" for gpu in found]
    return "".join(f"{line}\n" for line in lines)


def _labels(gpu: gpus.Gpu, host: str) -> str:
    said = {
        "gpu": str(gpu.index),
        "UUID": gpu.uuid,
        "pci_bus_id": gpu.address,
        "device": gpu.node,
        "modelName": gpu.name,
        "Hostname": host,
    }
    return ",".join(f'{name}="{value}"' for name, value in said.items())


def _figure(field: str, gpu: gpus.Gpu) -> float:
    return gpus.measured(gpu).memory if field == "DCGM_FI_DEV_FB_FREE" else _FIGURES.get(field, 0)
