"""What a run can go on from if somebody follows the stack already."""

from __future__ import annotations

from typing import NamedTuple

from gpu_provision.cluster.watching import Mirror
from gpu_provision.engine.standing import Standing
from gpu_provision.engine.view import View


class Live(NamedTuple):
    """Live copies of what a run follows, and what was worked out of them; for a thread of its own."""

    mirror: Mirror
    view: View
    standing: Standing
