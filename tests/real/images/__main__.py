"""``python -m tests.real.images ARCHIVE [INVENTORY]``: write the stand-in images of an inventory's manifests."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from gpu_provision.inventory import load
from tests.real.images.build import cached, of_inventory

_USAGE = "usage: python -m tests.real.images ARCHIVE [INVENTORY]"


def main(arguments: list[str]) -> int:
    """Write the archive and print what is in it."""
    if not 1 <= len(arguments) <= 2 or arguments[0].startswith("-"):
        sys.stderr.write(f"{_USAGE}\n")
        return 2
    inventory = arguments[1] if len(arguments) > 1 else "inventories/sandbox.yaml"
    images = of_inventory(load(inventory))
    shutil.copyfile(cached(images), Path(arguments[0]))
    sys.stdout.write("".join(f"{image}\n" for image in images))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
