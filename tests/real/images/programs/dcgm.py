"""DCGM's host engine, and the exporter that serves its figures to Prometheus."""

from __future__ import annotations

import csv
import os
import socket
import socketserver
import sys
from collections.abc import Iterable
from pathlib import Path

from . import gpus, models
from .process import end_when_told, flags, say, serve, stay

_PORT = 5555
_COLLECTORS = "/etc/dcgm-exporter/default-counters.csv"
_FIGURES = {
    "DCGM_FI_DEV_SM_CLOCK": 300,
    "DCGM_FI_DEV_MEM_CLOCK": 405,
    "DCGM_FI_DEV_GPU_TEMP": 34,
    "DCGM_FI_DEV_POWER_USAGE": 9.5,
    "DCGM_FI_DEV_GPU_UTIL": 0,
    "DCGM_FI_DEV_FB_USED": 0,
}
"""What an idle GPU measures; other fields are zero."""


def engine() -> int:
    """Listen on DCGM's port, until told to end."""
    end_when_told()
    try:
        gpus.usable()
    except gpus.NoDriver as problem:
        say(f"Error: Unable to start host engine: {problem}")
        return 1
    port = int(flags(sys.argv[1:]).get("port", str(_PORT)))
    say(f"Started host engine version 4 using port number: {port}")
    with socketserver.ThreadingTCPServer(("", port), socketserver.BaseRequestHandler) as server:
        server.serve_forever()
    return 0


def exporter() -> int:
    """Serve metrics, until told to end."""
    end_when_told()
    say("Starting dcgm-exporter")
    try:
        _, found = gpus.usable()
        _reach(os.environ.get("DCGM_REMOTE_HOSTENGINE_INFO", ""))
        rows = _rows(os.environ.get("DCGM_EXPORTER_COLLECTORS", _COLLECTORS))
    except (gpus.NoDriver, OSError) as problem:
        say(f'level=fatal msg="Error starting nv-hostengine: {problem}"')
        return 1
    listen = os.environ.get("DCGM_EXPORTER_LISTEN", ":9400")
    text = metrics(rows, found, os.environ.get("NODE_NAME") or socket.gethostname())
    serve(int(listen.rpartition(":")[2]), {"/metrics": lambda: (200, text), "/health": lambda: (200, "OK\n")})
    say("DCGM successfully initialized!", f"Starting webserver listening on {listen}")
    return stay()


def _reach(engine_address: str) -> None:
    """Connect to a host engine elsewhere, if there is one. Raises OSError."""
    if engine_address:
        host, _, port = engine_address.partition(":")
        socket.create_connection((host, int(port or _PORT)), timeout=10).close()


def _rows(collectors: str) -> list[list[str]]:
    """Return field, type and help of each metric that the collectors file wants."""
    with Path(collectors).open(newline="") as file:
        rows = [[cell.strip() for cell in row] for row in csv.reader(file)]
    return [row for row in rows if len(row) >= 3 and not row[0].startswith("#")]


def metrics(rows: Iterable[list[str]], found: Iterable[gpus.Gpu], host: str) -> str:
    """Return every figure of every GPU in Prometheus' text format."""
    found = list(found)
    lines = []
    for field, kind, help_text in (row[:3] for row in rows):
        if kind == "label":
            continue
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
    return models.named(gpu.device).memory if field == "DCGM_FI_DEV_FB_FREE" else _FIGURES.get(field, 0)
