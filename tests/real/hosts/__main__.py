"""Builds what the tests of hosts start from: ``python -m tests.real.hosts``."""

from __future__ import annotations

import sys

from tests.real.hosts import image, nspawn, rootfs


def main() -> int:
    """Build what can be built here, and say where it is; say what is missing for the rest."""
    status = 1
    for hosts, part in {"virtual machines": image, "light hosts": rootfs, "hosts with systemd": nspawn}.items():
        if reason := part.missing():
            sys.stderr.write(f"{hosts} cannot run: {reason}\n")
            continue
        sys.stdout.write(f"{hosts} start from {part.RECIPE.built()}\n")
        status = 0
    return status


if __name__ == "__main__":
    sys.exit(main())
