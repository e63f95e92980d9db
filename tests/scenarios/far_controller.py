"""Runs a controller as one of another machine: its process cannot be seen. Argument: a kubeconfig."""

from __future__ import annotations

import secrets
import sys

from gpu_provision.cli import main
from gpu_provision.kube import lease


def start(kubeconfig: str) -> int:
    place = secrets.token_hex(4)
    lease._process_location = lambda: place  # type: ignore[assignment]
    return main(["operator", "run", "--port", "0", "--kubeconfig", kubeconfig])


if __name__ == "__main__":
    sys.exit(start(sys.argv[1]))
