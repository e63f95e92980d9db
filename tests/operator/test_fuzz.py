"""The controller's loader returns findings for invalid GPUStacks, and never raises."""

from __future__ import annotations

import json
from random import Random
from typing import Any

from gpu_provision.operator import stack as stacks
from gpu_provision.operator.crd import spec_schema
from gpu_provision.operator.schedule import OverlapChecker, ReconcileRequest
from gpu_provision.output import findings
from gpu_provision.sandbox.apiserver.custom_resources import fill_defaults, prune
from tests import fuzzing
from tests.operator.conftest import INVENTORIES, data_of

STACKS = [stacks.stack_of(data_of(file)) for file in INVENTORIES]
KEYS = (stacks.ROLLBACK_ANNOTATION, stacks.NAMESPACE_ANNOTATION, stacks.LEASE_ANNOTATION)
ANNOTATIONS = dict(zip(KEYS, ("3 7", "gpu-operator-resources", "kube-system/x"), strict=True))
STORED = {"uid": "u", "generation": 7, "creationTimestamp": "2026-11-22T09:00:00Z"}


def mutate(dice: Random) -> dict[str, Any]:
    """Return a stack with a mutated spec, pruned or not, and with any annotations."""
    stack = dice.choice(STACKS)
    spec = fuzzing.mutate_value(dice, stack["spec"])
    if isinstance(spec, dict) and dice.random() < 0.5:
        spec = fill_defaults(prune(spec, spec_schema()), spec_schema())
    annotations = {key: dice.choice([value, fuzzing.mutate_text(dice, value)]) for key, value in ANNOTATIONS.items()}
    metadata = {**stack["metadata"], **STORED, "annotations": annotations}
    text = json.dumps({**stack, "metadata": metadata, "spec": spec}, ensure_ascii=False)
    made: dict[str, Any] = json.loads(text.encode(errors="replace"))  # an API server stores no half characters
    return made


def read_stack(stack: dict[str, Any]) -> None:
    """Read a stack with all functions that the controller calls before a run."""
    inventory, found = stacks.inventory_of(stack)
    assert inventory or found
    findings.text(found)
    if inventory:
        stacks.namespace_changed(stack, inventory)
    stacks.rollback_run(stack), stacks.namespace_of(stack), stacks.lease_of(stack)
    request = ReconcileRequest(stack)
    request.observation()
    assert request.is_equivalent(request)
    other = {**STACKS[0], "metadata": stack["metadata"] | {"name": "other", "uid": "v"}}
    OverlapChecker().find_overlaps([stack, other], [])


def test_stacks_of_any_content_are_read() -> None:
    """Admitted by the schema or not."""
    fuzzing.check_reader(mutate, read_stack, count=fuzzing.COUNT // 3)
