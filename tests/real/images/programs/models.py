"""What is known of each GPU model, from the table that lies beside the programs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

_TABLE = Path(__file__).with_name("models.json")


class Model(NamedTuple):
    """A GPU model: ``memory`` in MiB, ``compute`` as ``major.minor``."""

    name: str
    memory: int
    compute: str
    family: str


def named(device: str) -> Model:
    """Return the model with a PCI device id; an unknown one has a plain name."""
    known = json.loads(_TABLE.read_text()) if _TABLE.exists() else {}
    return Model(*known.get(device, ("NVIDIA Graphics Device", 16384, "7.5", "turing")))
