"""What the command line's tests share: its outcome as a value, and hand-made answers of the library."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

from gpu_provision.hosts.result import HostsResult
from gpu_provision.model.cluster import ObjectRef
from gpu_provision.model.findings import ProvisionError
from gpu_provision.model.history import History
from gpu_provision.model.plan import Action, Change, DestroyResult, Drift, Plan
from gpu_provision.model.progress import LockHolder, RunResult, Status
from gpu_provision.output.findings import output_schema
from gpu_provision.reconcile.preflight import Judgement

REPOSITORY = Path(__file__).parents[2]
SANDBOX = REPOSITORY / "inventories" / "sandbox.yaml"
PROD = REPOSITORY / "inventories" / "prod.yaml"


@dataclass(frozen=True)
class Ran:
    """What one command returned and printed; its document fits the published schema."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        """The one JSON document on stdout."""
        parsed: dict[str, Any] = json.loads(self.out)
        _validator().validate(parsed)
        return parsed


@cache
def _validator() -> Draft202012Validator:
    return Draft202012Validator(output_schema())


Run = Callable[..., Ran]


def plan_of(*changes: Change) -> Plan:
    """Return a plan with these changes."""
    return Plan(inventory="sandbox", release="26.7.0", cluster="sandbox", components=("driver",), changes=changes)


CHANGE = Change(
    component="driver", action=Action.CREATE, ref=ObjectRef("v1", "ConfigMap", "gpu-operator-resources", "x")
)


@dataclass
class Fakes:
    """What the library answers; an exception is raised instead of returned."""

    plan: Plan | ProvisionError | Exception | KeyboardInterrupt
    result: RunResult | ProvisionError | KeyboardInterrupt
    status: Status
    hosts: HostsResult | None = None
    judgement: Judgement | ProvisionError = field(default_factory=lambda: Judgement(hosts=HostsResult(), findings=()))
    history: History = field(default_factory=lambda: History(()))
    applied: int = 0
    arguments: dict[str, Any] = field(default_factory=dict)
    lock: LockHolder | None = None
    drift: Drift = field(
        default_factory=lambda: Drift(inventory="sandbox", release="26.7.0", cluster="sandbox", differences=())
    )
    removal: DestroyResult | ProvisionError = field(default_factory=lambda: DestroyResult(cluster="sandbox"))
    torn_down: list[bool] = field(default_factory=list)
