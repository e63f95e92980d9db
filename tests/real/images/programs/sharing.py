"""What a device plugin, GPU Feature Discovery and the MPS control daemon read of the plugin's configuration."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from types import FrameType

import yaml

from gpu_provision.sandbox.operand_rules import Mig, Offer, find_offer


class Changed(Exception):
    """The config-manager has sent SIGHUP: there is another configuration."""


def heed_changes() -> None:
    """Make SIGHUP an exception."""
    signal.signal(signal.SIGHUP, _change)


def _change(_number: int, _frame: FrameType | None) -> None:
    raise Changed


def read_offer(mig: Mig | None) -> Offer:
    """Return what to offer by MIG and by the configuration file, if there is one."""
    file = os.environ.get("CONFIG_FILE", "")
    text = Path(file).read_text() if file else ""
    return find_offer(yaml.safe_load(text), mig, strategy=os.environ.get("MIG_STRATEGY", "none"))
