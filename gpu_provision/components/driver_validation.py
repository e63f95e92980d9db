"""Driver validation: on every GPU node, a CUDA vectorAdd that does not ask Kubernetes for a GPU.

The validator's pod runs it in an init container, so this component has no objects of its own. Its state is
that of the init container, see `gpu_provision.planning.verdicts`.
"""

from __future__ import annotations

from gpu_provision.model.cluster import Manifest, RenderContext
from gpu_provision.model.inventory import Inventory
from gpu_provision.model.specs import ValidatorSpec

NAME = "driver_validation"
TITLE = "Driver validation"
REQUIRES: tuple[str, ...] = ("driver", "toolkit")


def spec(inventory: Inventory) -> ValidatorSpec:
    """Return the validator's spec, whose image holds vectorAdd; drivers of hosts are validated, too."""
    return inventory.specs.validator


def manifests(_spec: ValidatorSpec, _context: RenderContext) -> list[Manifest]:
    """Return nothing: the validator has the container."""
    return []
