"""Builds what the tests of hosts start from: ``python -m tests.real.hosts``."""

from __future__ import annotations

import sys

from tests.real.hosts import built, nspawn


def main() -> int:
    status = 1
    parts = {
        "virtual machines": (built.machines_missing, built.IMAGE),
        "light hosts": (built.namespaces_missing, built.ROOTFS),
        "hosts with systemd": (nspawn.missing, built.ROOTFS),
    }
    for hosts, (missing, recipe) in parts.items():
        if reason := missing():
            sys.stderr.write(f"{hosts} cannot run: {reason}\n")
            continue
        sys.stdout.write(f"{hosts} start from {recipe.built()}\n")
        status = 0
    return status


if __name__ == "__main__":
    sys.exit(main())
