"""What an API server makes of a stack that it is given: the sandbox's pruning and defaults."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gpu_provision.inventory.document import read_source
from gpu_provision.inventory.yaml_parser import parse
from gpu_provision.model.cluster import Manifest
from gpu_provision.operator.crd import spec_schema
from gpu_provision.operator.stack import stack_of
from gpu_provision.sandbox.apiserver.custom_resources import fill_defaults, prune

SANDBOX = Path(__file__).parents[2] / "inventories" / "sandbox.yaml"


def data_of(file: Path) -> dict[str, Any]:
    """Return what a file says."""
    return parse(read_source(file))[0].data


def stored(file: Path) -> Manifest:
    """Return the stack of an inventory as a server stores it."""
    return as_stored(stack_of(data_of(file)))


def as_stored(stack: Manifest) -> Manifest:
    """Return a stack as a server stores it."""
    schema = spec_schema()
    return {**stack, "spec": fill_defaults(prune(stack["spec"], schema), schema)}
