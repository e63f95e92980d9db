"""Plan files: written by ``plan --out``, carried out by ``apply PLAN`` if nothing has moved meanwhile."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_provision import files
from gpu_provision.cli.output import writing
from gpu_provision.hosts.result import HostsResult
from gpu_provision.model import codes
from gpu_provision.model.codes import USAGE
from gpu_provision.model.findings import Finding, RunFailedError, UsageError
from gpu_provision.model.inventory import Inventory
from gpu_provision.model.plan import Plan
from gpu_provision.output import plan_file
from gpu_provision.output.object_text import display_value

if TYPE_CHECKING:
    from gpu_provision.api.jobs import ApplyJob
    from gpu_provision.api.results import StackPlan
    from gpu_provision.cli.options import PartOptions

_UNWRITABLE = ("the plan cannot be written", "name another file with --out")
_TOLD = 20  # lines of what has moved; a fleet that has moved altogether would be thousands


def save(path: Path, work: ApplyJob, plan: StackPlan, *, ignored: tuple[str, ...]) -> None:
    """Write a plan to a file that only its owner can read, whole or not at all. Raises UsageError."""
    scope = {
        "hosts": work.hosts,
        "cluster": work.cluster,
        "limit": list(work.limit),
        "targets": list(work.targets or ()),
        "ignored": list(ignored),
    }
    document = plan_file.create(
        work.inventory,
        plan.cluster,
        plan.hosts,
        tool=version("gpu-provision"),
        made_at=datetime.now(UTC).isoformat(timespec="seconds"),
        cluster_id=work.cluster_id(),
        salt=secrets.token_hex(16),
        scope=scope,
    )
    with writing(path, *_UNWRITABLE):
        files.put(path, json.dumps(document, indent=2, sort_keys=True) + "\n", private=True)


def check_path(file: str) -> Path:
    """Return where a plan goes. Raises UsageError if it cannot be written there."""
    path = Path(file)
    with writing(path, *_UNWRITABLE):
        files.try_place(path)
    return path


@dataclass(frozen=True, slots=True)
class SavedPlan:
    """A reviewed plan: a run carries out exactly this, or nothing."""

    path: Path
    document: Mapping[str, Any]

    @property
    def inventory(self) -> str:
        """The file that the plan was made from."""
        return str(self.document["inventory"]["path"])

    @property
    def ignored(self) -> tuple[str, ...]:
        """Findings of preflight that do not stop the run."""
        return tuple(self.document["scope"]["ignored"])

    @property
    def scope(self) -> dict[str, Any]:
        """What takes part, as fields of an `ApplyJob`."""
        scope = self.document["scope"]
        parts = {"limit": tuple(scope["limit"]), "targets": tuple(scope["targets"]) or None}
        return {**parts, "hosts": bool(scope["hosts"]), "cluster": bool(scope["cluster"])}

    def check_inventory(self, inventory: Inventory) -> None:
        """Raise RunFailedError if this is not the inventory that the plan was made from."""
        then = self.document["inventory"]
        if inventory.name != then["name"]:
            what = f"the plan is of inventory {then['name']}, and this is {inventory.name}"
            raise RunFailedError(self._finding(codes.OTHER_INVENTORY, what, inventory.path))
        if plan_file.inventory_digest(inventory, then["salt"]) != then["digest"]:
            what = f"the inventory has changed since the plan was made ({self.document['made_at']})"
            raise RunFailedError(self._finding(codes.OTHER_INVENTORY, what, inventory.path))

    def check_cluster(self, work: ApplyJob) -> None:
        """Raise RunFailedError if the plan was made for another cluster than the one that answers."""
        then, now = self.document["cluster"], work.cluster_id()
        if now != then["id"]:
            what = f"the plan was made for another cluster: {then['name']}"
            evidence = f"the namespace kube-system has the uid {now} there, and had {then['id']} in the plan"
            raise RunFailedError(self._finding(codes.OTHER_CLUSTER, what, evidence))

    def check_hosts(self, on_hosts: HostsResult | None) -> None:
        """Raise RunFailedError if hosts would be changed otherwise than planned."""
        self._refuse("hosts are no longer as they were planned for", plan_file.host_changes(self.document, on_hosts))

    def check_plan(self, plan: Plan) -> None:
        """Raise RunFailedError if the cluster would be changed otherwise than planned."""
        moved = plan_file.cluster_changes(self.document, plan)
        self._refuse("the cluster is no longer as it was planned for; nothing is written there", moved)

    def _refuse(self, what: str, moved: tuple[str, ...]) -> None:
        if moved:
            more = [f"and {len(moved) - _TOLD} more"] if len(moved) > _TOLD else []
            raise RunFailedError(self._finding(codes.MOVED, what, "\n    ".join([*moved[:_TOLD], *more])))

    def _finding(self, code: str, what: str, evidence: str) -> Finding:
        fix = "make a new plan and look at it: gpu-provision plan --out FILE"
        return Finding(code=code, where=str(self.path), what=what, evidence=evidence, fix=fix)


def load_plan(path: Path) -> SavedPlan:
    """Return the plan of a file. Raises RunFailedError if it is none, or damaged, or of another version."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        json.dumps(document, ensure_ascii=False).encode()  # what cannot be written could not be reported, either
    except (OSError, ValueError, RecursionError) as error:
        raise _damaged(path, getattr(error, "strerror", None) or str(error)) from error
    if not isinstance(document, dict) or document.get("format") != plan_file.FORMAT:
        raise _damaged(path, f'it has no "format": "{plan_file.FORMAT}"')
    if document.get("version") != plan_file.VERSION:
        raise RunFailedError(
            Finding(
                code=codes.OTHER_FORMAT,
                where=str(path),
                what=f"the plan is of version {display_value(document.get('version'))} of plan files,"
                f" and this tool knows {plan_file.VERSION}",
                evidence=f"made by gpu-provision {display_value(document.get('tool', 'of an unknown version'))}",
                fix="make the plan with the same gpu-provision that applies it",
            )
        )
    if document.get("seal") != plan_file.seal(document):
        raise _damaged(path, "its seal does not fit its content: it was changed, or is not complete")
    misfit = plan_file.misfit(document)
    if misfit:
        raise _damaged(path, f"it does not fit the schema of plan files at {misfit}")
    return SavedPlan(path, document)


def _damaged(path: Path, why: str) -> RunFailedError:
    return RunFailedError(
        Finding(
            code=codes.NO_PLAN,
            where=str(path),
            what="this is no plan that can be applied",
            evidence=why,
            fix="make a new one: gpu-provision plan --out FILE",
        )
    )


def refuse_options(part: PartOptions) -> None:
    """Raise UsageError for options beside a plan file that the file itself has decided."""
    decided: dict[str, object] = {"--limit": part.limit, "--target": part.targets, "--ignore": part.ignored}
    decided |= {"--hosts-only": part.hosts_only, "--cluster-only": part.cluster_only}
    given = [name for name, value in decided.items() if value]
    if given:
        raise UsageError(
            Finding(
                code=USAGE,
                where=" ".join(given),
                what="a plan file says itself what takes part",
                fix="leave the option out, or give it to gpu-provision plan --out FILE",
            )
        )
