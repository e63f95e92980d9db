"""Plan files: ``plan --out`` writes one, ``apply PLAN`` applies it if hosts and cluster are unchanged.

The schema is output/plan.schema.json, the page docs/plan-files.md.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from importlib.resources import files as resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_provision import files
from gpu_provision.cli.output import report_write_errors
from gpu_provision.components.objects import digest
from gpu_provision.hosts.result import NO_HOSTS, HostsResult
from gpu_provision.model import codes
from gpu_provision.model.codes import USAGE
from gpu_provision.model.findings import Finding, RunFailedError, UsageError
from gpu_provision.model.inventory import Inventory
from gpu_provision.model.plan import Action, Plan
from gpu_provision.output import plan as plan_view
from gpu_provision.output import status as status_view
from gpu_provision.output.findings import output_schema
from gpu_provision.output.object_text import display_value, redact

if TYPE_CHECKING:
    from gpu_provision.api.jobs import ApplyJob
    from gpu_provision.api.results import StackPlan

FORMAT, VERSION = "gpu-provision plan", 1
Document = Mapping[str, Any]

_SEEN = ("resourceVersion", "generation")  # of the observed object; these change with its status, too
_MAX_LENGTH = 200  # characters of a schema error
_DIGITS = 64  # of a SHA-256 digest
_ENDS = {"create": "created", "update": "updated", "delete": "deleted", "run": "run"}
_TOLD = 20  # differences that are listed; a large fleet can have thousands
_UNWRITABLE = ("the plan cannot be written", "name another file with --out")


def save(path: Path, work: ApplyJob, planned: StackPlan, *, ignored: tuple[str, ...]) -> None:
    """Write a plan to a file that only its owner can read, whole or not at all. Raises UsageError."""
    document = plan_document(work, planned, ignored=ignored, cluster_uid=cluster_id(work))
    with report_write_errors(path, *_UNWRITABLE):
        files.write_atomic(path, json.dumps(document, indent=2, sort_keys=True) + "\n", private=True)


def check_path(file: str) -> Path:
    """Return the path of a plan file. Raises UsageError if it cannot be written."""
    path = Path(file)
    with report_write_errors(path, *_UNWRITABLE):
        files.check_writable(path)
    return path


def cluster_id(work: ApplyJob) -> str:
    """Return the unique id of the cluster, the uid of namespace kube-system; empty if it takes no part."""
    if not work.cluster:
        return ""
    from gpu_provision.kube.observe import NAMESPACE
    from gpu_provision.reconcile.session import Session

    namespaces = Session(work.inventory).cluster.list(NAMESPACE, field_selector="metadata.name=kube-system").items
    return str(namespaces[0]["metadata"]["uid"]) if namespaces else ""


def plan_document(work: ApplyJob, planned: StackPlan, *, ignored: tuple[str, ...], cluster_uid: str) -> dict[str, Any]:
    """Return the document of a plan.

    Args:
        ignored: Findings of preflight that do not stop the run.
        cluster_uid: Result of `cluster_id`.
    """
    inventory, salt = work.inventory, secrets.token_hex(16)
    document = {
        "format": FORMAT,
        "version": VERSION,
        "tool": version("gpu-provision"),
        "made_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "inventory": {
            "name": inventory.name,
            "path": inventory.path,
            "salt": salt,
            "digest": _inventory_digest(inventory, salt),
        },
        "cluster": {"id": cluster_uid, "name": planned.cluster.cluster},
        "scope": {
            "hosts": work.hosts,
            "cluster": work.cluster,
            "limit": list(work.limit),
            "targets": list(work.targets or ()),
            "ignored": list(ignored),
        },
        "plan": _plan_document(planned.cluster),
        "hosts": status_view.hosts_document(planned.hosts),
    }
    return {**document, "seal": seal_digest(document)}


def _plan_document(plan: Plan) -> dict[str, Any]:
    """Return a plan as JSON, each change with a digest of its manifest; empty without a manifest."""
    document = plan_view.document(plan)
    for each, change in zip(document["changes"], plan.changes, strict=True):
        each["content"] = ""
        if (manifest := change.manifest) is not None:
            metadata = {key: value for key, value in manifest.get("metadata", {}).items() if key not in _SEEN}
            each["content"] = digest(redact({**manifest, "metadata": metadata}), _DIGITS)
    return document


def _inventory_digest(inventory: Inventory, salt: str) -> str:
    """Return a digest that resists guessing: the inventory may contain passwords."""
    key = hashlib.scrypt(inventory.digest.encode(), salt=bytes.fromhex(salt), n=2**14, r=8, p=1, dklen=32)
    return key.hex()


def seal_digest(document: Document) -> str:
    """Return a digest of all other fields. It detects edited and incomplete files, and is no signature."""
    return digest({key: value for key, value in document.items() if key != "seal"}, _DIGITS)


def schema() -> Document:
    """Return the JSON Schema (draft 2020-12) of plan files; some of its definitions are those of ``--json``."""
    own: Document = json.loads(resources("gpu_provision.output").joinpath("plan.schema.json").read_text("utf-8"))
    known, named, wanted = output_schema()["$defs"], set[str](), [own]
    while wanted:  # also definitions that definitions refer to
        new = {*re.findall(r'"#/\$defs/(\w+)', json.dumps(wanted))} - named
        named |= new
        wanted = [known[name] for name in new]
    return {**own, "$defs": {name: known[name] for name in sorted(named)}}


def cluster_changes(document: Document, plan: Plan) -> tuple[str, ...]:
    """Return the differences of the current plan of the cluster, a line for each object, field or node.

    Of the rollout: the waves of nodes, evictions and cordons. Times and budgets may differ.
    """
    then, now = document["plan"], _plan_document(plan)
    before, after = then.get("resource") or {}, now["resource"] or {}
    moved = []
    if before.get("name") != after.get("name"):
        alone = "this command alone, without an operator"
        moved.append(f"carried out by {after.get('name', alone)}, planned was: by {before.get('name', alone)}")
    elif before != after:
        moved.append(f"{after['name']} is to change otherwise than planned")
    nodes = _differences(_nodes(then["rollout"]), _nodes(now["rollout"]), "its driver is not replaced")
    return (*moved, *_object_differences(_index_by_object(then), _index_by_object(now)), *nodes)


def host_changes(document: Document, on_hosts: HostsResult | None) -> tuple[str, ...]:
    """Return the differences of the current plan of hosts, a line for each host."""
    current = status_view.hosts_document(on_hosts or NO_HOSTS)
    then, now = ({f"host {each['host']}": _host(each) for each in hosts} for hosts in (document["hosts"], current))
    return tuple(_differences(then, now, "takes no part"))


def _differences(then: Mapping[str, Any], now: Mapping[str, Any], missing: str) -> Iterator[str]:
    """Yield differences by key; the last element of a value is its text."""
    for key in sorted({*then, *now}):
        before, after = then.get(key, (missing,)), now.get(key, (missing,))
        if before != after:
            yield f"{key}: {after[-1]}, planned was: {before[-1]}"


def _host(each: Document) -> tuple[str, ...]:
    seen = (str(each[key]) for key in ("changes", "failed", "reboot_needed", "driver"))
    return *seen, "; ".join(each["changes"]) or each["reason"] or "nothing to change"


def _index_by_object(plan: Document) -> dict[str, Document]:
    """Index changes by object and action, without objects that are only not ready."""
    changes = {}
    for each in plan["changes"]:
        if each["action"] != Action.WAIT.value:
            ref = each["object"]
            name = f"{ref['namespace']}/{ref['name']}" if ref["namespace"] else ref["name"]
            changes[f"{ref['kind']} {name} would be {_ENDS[each['action']]}"] = each
    return changes


def _object_differences(then: Mapping[str, Document], now: Mapping[str, Document]) -> Iterator[str]:
    yield from (f"{name}, which was not planned" for name in now if name not in then)
    for name, before in then.items():
        if name in now:
            about, moved = (
                name.partition(" would be ")[0],
                [*_differences(_fields(before), _fields(now[name]), "as it is")],
            )
            yield from (f"{about}: {line.replace(': ', ' ', 1)}" for line in moved)
            if not moved and before["content"] != now[name]["content"]:
                yield f"{about}: the content to apply differs"
        # A run that reboots hosts first may have created a namespace for its lock.
        elif before["object"]["kind"] != "Namespace" or before["action"] != Action.CREATE.value:
            yield f"no longer: {name}"


def _fields(change: Document) -> dict[str, tuple[Any, ...]]:
    """Return the fields of a change; for a MachineConfig also which nodes reboot, and how many at a time."""
    reboots = "; ".join(change["effects"]) if change["component"] == "machine_config" else ""
    fields: dict[str, tuple[Any, ...]] = {
        field["path"]: (field["old"], field["new"], f"{display_value(field['old'])} -> {display_value(field['new'])}")
        for field in change["fields"]
    }
    return {**fields, **({"effect": (reboots,)} if reboots else {})}


def _nodes(rollout: Document | None) -> dict[str, tuple[str]]:
    """Return the text of each node's part in the rollout."""
    if rollout is None:
        return {}
    nodes = {
        **dict.fromkeys(rollout.get("marked", ()), "keeps its driver"),
        **dict.fromkeys(rollout["under_way"], "is under way"),
        **{each["node"]: f"is skipped: {each['reason']}" for each in rollout["skipped"]},
    }
    for number, wave in enumerate(rollout["waves"], start=1):
        for each in wave["nodes"]:
            parts = [f"wave {number}{', a canary' if wave['canary'] else ''}"]
            # Owners, as generated pod names change with every restart.
            owners = {f"{pod['namespace']}/{pod['owner'] or pod['name']}" for pod in each["evicts"]}
            parts += [f"evicts {', '.join(sorted(owners))}"] if owners else []
            parts += [f"cordoned by {each['cordoned_by']}"] if each["cordoned_by"] else []
            nodes[each["node"]] = ", ".join(parts)
    return {f"node {node}": (text,) for node, text in nodes.items()}


@dataclass(frozen=True, slots=True)
class SavedPlan:
    """A reviewed plan: a run makes exactly its changes, or none."""

    path: Path
    document: Document

    @property
    def inventory(self) -> str:
        """Path of the inventory file of the plan."""
        return str(self.document["inventory"]["path"])

    @property
    def ignored(self) -> tuple[str, ...]:
        """Findings of preflight that do not stop the run."""
        return tuple(self.document["scope"]["ignored"])

    @property
    def scope(self) -> dict[str, Any]:
        """The scope, as fields of an `ApplyJob`."""
        scope = self.document["scope"]
        parts = {"limit": tuple(scope["limit"]), "targets": tuple(scope["targets"]) or None}
        return {**parts, "hosts": bool(scope["hosts"]), "cluster": bool(scope["cluster"])}

    def check_inventory(self, inventory: Inventory) -> None:
        """Raise RunFailedError if the plan was made from another inventory."""
        then, what = self.document["inventory"], ""
        if inventory.name != then["name"]:
            what = f"the plan is of inventory {then['name']}, and this is {inventory.name}"
        elif _inventory_digest(inventory, then["salt"]) != then["digest"]:
            what = f"the inventory has changed since the plan was made ({self.document['made_at']})"
        if what:
            raise RunFailedError(self._finding(codes.OTHER_INVENTORY, what, inventory.path))

    def check_cluster(self, work: ApplyJob) -> None:
        """Raise RunFailedError if the plan was made for another cluster."""
        then, now = self.document["cluster"], cluster_id(work)
        if now != then["id"]:
            what = f"the plan was made for another cluster: {then['name']}"
            evidence = f"the namespace kube-system has the uid {now} there, and had {then['id']} in the plan"
            raise RunFailedError(self._finding(codes.OTHER_CLUSTER, what, evidence))

    def check_hosts(self, on_hosts: HostsResult | None) -> None:
        """Raise RunFailedError if the changes of hosts differ from the plan."""
        self._refuse("hosts are no longer as they were planned for", host_changes(self.document, on_hosts))

    def check_plan(self, plan: Plan) -> None:
        """Raise RunFailedError if the changes of the cluster differ from the plan."""
        what = "the cluster is no longer as it was planned for; nothing is written there"
        self._refuse(what, cluster_changes(self.document, plan))

    def _refuse(self, what: str, moved: tuple[str, ...]) -> None:
        if moved:
            more = [f"and {len(moved) - _TOLD} more"] if moved[_TOLD:] else []
            raise RunFailedError(self._finding(codes.STATE_CHANGED, what, "\n    ".join([*moved[:_TOLD], *more])))

    def _finding(self, code: str, what: str, evidence: str) -> Finding:
        fix = "make a new plan and look at it: gpu-provision plan --out FILE"
        return Finding(code=code, where=str(self.path), what=what, evidence=evidence, fix=fix)


def load_plan(path: Path) -> SavedPlan:
    """Return the plan of a file. Raises RunFailedError for a damaged or unknown file, or another version."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        json.dumps(document, ensure_ascii=False).encode()  # text that cannot be encoded cannot be reported either
    except (OSError, ValueError, RecursionError) as error:
        raise _damaged_error(path, getattr(error, "strerror", None) or str(error)) from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise _damaged_error(path, f'it has no "format": "{FORMAT}"')
    if document.get("version") != VERSION:
        file_version = display_value(document.get("version"))
        finding = Finding(
            code=codes.OTHER_FORMAT,
            where=str(path),
            what=f"the plan is of version {file_version} of plan files, and this tool knows {VERSION}",
            evidence=f"made by gpu-provision {display_value(document.get('tool', 'of an unknown version'))}",
            fix="make the plan with the same gpu-provision that applies it",
        )
        raise RunFailedError(finding)
    if document.get("seal") != seal_digest(document):
        raise _damaged_error(path, "its seal does not fit its content: it was changed, or is not complete")
    if misfit := _schema_error(document):
        raise _damaged_error(path, f"it does not fit the schema of plan files at {misfit}")
    return SavedPlan(path, document)


def _schema_error(document: Document) -> str:
    """Return the first schema error of a plan file; empty for none."""
    from jsonschema.exceptions import best_match
    from jsonschema.validators import Draft202012Validator

    error = best_match(Draft202012Validator(schema()).iter_errors(document))
    if error is None:
        return ""
    how = f"{display_value(error.instance)} is not of {error.validator} {error.validator_value}"
    if error.validator in {"required", "additionalProperties"}:  # their messages name the key
        how = error.message
    return f"{error.json_path}: {how[:_MAX_LENGTH]}"


def _damaged_error(path: Path, why: str) -> RunFailedError:
    what, fix = "this is no plan that can be applied", "make a new one: gpu-provision plan --out FILE"
    return RunFailedError(Finding(code=codes.NO_PLAN, where=str(path), what=what, evidence=why, fix=fix))


def refuse_options(given: Document) -> None:
    """Raise UsageError for options that conflict with a plan file."""
    decided = {
        "--limit": "limit",
        "--target": "targets",
        "--ignore": "ignored",
        "--hosts-only": "hosts_only",
        "--cluster-only": "cluster_only",
    }
    if where := " ".join(option for option, name in decided.items() if given[name]):
        what = "a plan file says itself what takes part"
        fix = "leave the option out, or give it to gpu-provision plan --out FILE"
        raise UsageError(Finding(code=USAGE, where=where, what=what, fix=fix))
