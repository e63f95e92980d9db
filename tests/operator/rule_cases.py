"""Stacks for the CEL rules of the definition, evaluated by cel-python or by an API server."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_provision.operator.stack import stack_of
from tests.data_file import document

POOL = {"gpu": {"model": "T4", "count": 1}, "node_selector": {"gpu": "yes"}}
SECRET = "hunter2"  # noqa: S105 - so that it is found where it must not be


@dataclass(frozen=True, slots=True)
class Case:
    spec: dict[str, Any]
    message: str = ""
    where: str = ""
    before: dict[str, Any] | None = None


def stack(spec: dict[str, Any]) -> dict[str, Any]:
    return {**stack_of({"name": "prod"}), "spec": {"pools": {"gpu": POOL}, **spec}}


CASES: dict[str, Case] = {
    name: Case(**each) for name, each in document(Path(__file__).with_suffix(".yaml").read_text()).items()
}
