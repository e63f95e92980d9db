"""Helpers for tests of the command line: its result, and fake results of the library."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

from gpu_provision.hosts.result import HostsResult
from gpu_provision.model.cluster import ObjectRef
from gpu_provision.model.history import History
from gpu_provision.model.plan import Action, Change, DestroyResult, Drift, Plan
from gpu_provision.model.progress import LockHolder, RunResult, Status
from gpu_provision.output.findings import output_schema
from gpu_provision.reconcile.preflight import PreflightReport

REPOSITORY = Path(__file__).parents[2]
SANDBOX = REPOSITORY / "inventories" / "sandbox.yaml"
PROD = REPOSITORY / "inventories" / "prod.yaml"


@dataclass(frozen=True)
class CommandResult:
    """Exit code and output of one command; its document fits the published schema."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        parsed: dict[str, Any] = json.loads(self.out)
        _validator().validate(parsed)
        return parsed


@cache
def _validator() -> Draft202012Validator:
    return Draft202012Validator(output_schema())


Run = Callable[..., CommandResult]


def plan_of(*changes: Change) -> Plan:
    return Plan(inventory="sandbox", release="26.7.0", cluster="sandbox", components=("driver",), changes=changes)


CHANGE = Change(
    component="driver", action=Action.CREATE, ref=ObjectRef("v1", "ConfigMap", "gpu-operator-resources", "x")
)


class Fakes:
    """Fake results of the library; an exception is raised instead of returned."""

    def __init__(self) -> None:
        """Plan one object to create; nothing fails."""
        self.plan: Plan | BaseException = plan_of(CHANGE)
        self.result: RunResult | BaseException = RunResult(changed=1, requests=5, seconds=1.0)
        self.status = Status(inventory="sandbox", cluster="sandbox", release="26.7.0", components=(), nodes=())
        self.hosts: HostsResult | None = None
        self.preflight_report: PreflightReport | BaseException = PreflightReport(hosts=HostsResult(), findings=())
        self.history = History(())
        self.applied = 0
        self.arguments: dict[str, Any] = {}
        self.lock: LockHolder | None = None
        self.drift = Drift(inventory="sandbox", release="26.7.0", cluster="sandbox", differences=())
        self.removal: DestroyResult | BaseException = DestroyResult(cluster="sandbox")
        self.torn_down: list[bool] = []
