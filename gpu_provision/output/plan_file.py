"""A plan as a document that can be kept, reviewed, and applied later if nothing has moved meanwhile. Pure.

Its schema is plan.schema.json beside this module, its page docs/plan-files.md.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from importlib.resources import files
from typing import Any

from gpu_provision.components.objects import digest
from gpu_provision.hosts.result import HostsResult
from gpu_provision.model.cluster import Manifest
from gpu_provision.model.inventory import Inventory
from gpu_provision.model.plan import Action, Change, Plan
from gpu_provision.output import plan as plan_view
from gpu_provision.output import status as status_view
from gpu_provision.output.findings import output_schema
from gpu_provision.output.object_text import display_value, redacted

FORMAT, VERSION = "gpu-provision plan", 1

Document = Mapping[str, Any]

_SEEN = ("resourceVersion", "generation")  # of the object that was looked at: they count status changes, too
_LONGEST = 200  # characters of what does not fit
_DIGITS = 64  # of digests: all that SHA-256 has
_ENDS = {"create": "created", "update": "updated", "delete": "deleted", "run": "run"}


def create(  # noqa: PLR0913 - all by name
    inventory: Inventory,
    plan: Plan,
    on_hosts: HostsResult | None,
    *,
    tool: str,
    made_at: str,
    cluster_id: str,
    salt: str,
    scope: Document,
) -> dict[str, Any]:
    """Return the document of a plan.

    Args:
        tool: Version of gpu-provision.
        made_at: When, RFC 3339.
        cluster_id: What no other cluster has; empty if no cluster takes part.
        salt: 16 random bytes in hex: an inventory may hold passwords, which cannot be found by trying.
        scope: What of the inventory takes part: ``hosts``, ``cluster``, ``limit``, ``targets``, ``ignored``.
    """
    document = {
        "format": FORMAT,
        "version": VERSION,
        "tool": tool,
        "made_at": made_at,
        "inventory": {
            "name": inventory.name,
            "path": inventory.path,
            "salt": salt,
            "digest": inventory_digest(inventory, salt),
        },
        "cluster": {"id": cluster_id, "name": plan.cluster},
        "scope": dict(scope),
        **_promised(plan, on_hosts),
    }
    return {**document, "seal": seal(document)}


def _promised(plan: Plan, on_hosts: HostsResult | None) -> dict[str, Any]:
    told = plan_view.document(plan)
    told["changes"] = [
        {**each, "content": _content(change)} for each, change in zip(told["changes"], plan.changes, strict=True)
    ]
    return {"plan": told, "hosts": status_view.hosts_document(on_hosts) if on_hosts else []}


def _content(change: Change) -> str:
    """Return a digest of the object to apply; empty for none."""
    if change.manifest is None:
        return ""
    return digest(redacted(_without_version(change.manifest)), _DIGITS)


def _without_version(manifest: Manifest) -> Manifest:
    metadata = {key: value for key, value in manifest.get("metadata", {}).items() if key not in _SEEN}
    return {**manifest, "metadata": metadata}


def inventory_digest(inventory: Inventory, salt: str) -> str:
    """Return a digest of an inventory file from which its content cannot be found by trying."""
    found = hashlib.scrypt(inventory.digest.encode(), salt=bytes.fromhex(salt), n=2**14, r=8, p=1, dklen=32)
    return found.hex()


def seal(document: Document) -> str:
    """Return a digest of everything but the seal: it detects an edited or incomplete file, and is no signature."""
    return digest({key: value for key, value in document.items() if key != "seal"}, _DIGITS)


def schema() -> Mapping[str, Any]:
    """Return the JSON Schema (draft 2020-12) of plan files; some of its definitions are those of ``--json``."""
    own: Document = json.loads(files("gpu_provision.output").joinpath("plan.schema.json").read_text("utf-8"))
    known = output_schema()["$defs"]
    return {**own, "$defs": {name: known[name] for name in sorted(_named(own, known))}}


def _named(part: Document, known: Document) -> set[str]:
    """Return the definitions that a part of a schema names, and those that they name."""
    found = set(re.findall(r'"#/\$defs/(\w+)', json.dumps(part)))
    return found.union(*(_named(known[name], known) for name in found))


def misfit(document: Document) -> str:
    """Return where a document does not fit the schema of plan files, and how; empty if it fits."""
    from jsonschema.exceptions import best_match  # noqa: PLC0415 - 40 ms that a command without a plan file need not pay
    from jsonschema.validators import Draft202012Validator  # noqa: PLC0415 - as above

    error = best_match(Draft202012Validator(schema()).iter_errors(document))
    if error is None:
        return ""
    names_key = error.validator in {"required", "additionalProperties"}
    how = (
        error.message
        if names_key
        else f"{display_value(error.instance)} is not of {error.validator} {error.validator_value}"
    )
    return f"{error.json_path}: {how[:_LONGEST]}"


def cluster_changes(document: Document, plan: Plan) -> tuple[str, ...]:
    """Return what a plan made now would do otherwise in the cluster, a line for each object, field or node."""
    then, now = document["plan"], _promised(plan, None)["plan"]
    return (
        *_moved_resource(then.get("resource"), now["resource"]),
        *_moved_objects(_by_object(then), _by_object(now)),
        *_moved_rollout(then["rollout"], now["rollout"]),
    )


def _moved_resource(then: Document | None, now: Document | None) -> Iterator[str]:
    """Yield what a plan says of the stack's resource otherwise: who carries it out, and what changes there."""
    if (then or {}).get("name") != (now or {}).get("name"):
        yield f"carried out by {_carrier(now)}, planned was: by {_carrier(then)}"
    elif then != now:
        yield f"{_carrier(now)} is to change otherwise than planned"


def _carrier(resource: Document | None) -> str:
    return str(resource["name"]) if resource else "this command alone, without an operator"


def host_changes(document: Document, on_hosts: HostsResult | None) -> tuple[str, ...]:
    """Return what a plan made now would do otherwise on hosts, a line for each host."""
    found = status_view.hosts_document(on_hosts) if on_hosts else ()
    then, now = ({f"host {each['host']}": _host(each) for each in hosts} for hosts in (document["hosts"], found))
    return tuple(_moved(then, now, "takes no part"))


def _moved(then: Mapping[str, Any], now: Mapping[str, Any], missing: str) -> Iterator[str]:
    """Yield what differs, by what it is about; the last element of a value is what it is called."""
    for key in sorted({*then, *now}):
        before, after = then.get(key, (missing,)), now.get(key, (missing,))
        if before != after:
            yield f"{key}: {after[-1]}, planned was: {before[-1]}"


def _host(each: Document) -> tuple[str, ...]:
    seen = (str(each[key]) for key in ("changes", "failed", "reboot_needed", "driver"))
    return *seen, "; ".join(each["changes"]) or each["reason"] or "nothing to change"


def _by_object(plan: Document) -> dict[str, Document]:
    """Index changes by what they do and to which object; that something is not ready yet is not a promise."""
    changes = (each for each in plan["changes"] if each["action"] != Action.WAIT.value)
    return {f"{_name(each['object'])} would be {_ENDS[each['action']]}": each for each in changes}


def _name(ref: Document) -> str:
    return f"{ref['kind']} {ref['namespace']}/{ref['name']}" if ref["namespace"] else f"{ref['kind']} {ref['name']}"


def _moved_objects(then: Mapping[str, Document], now: Mapping[str, Document]) -> Iterator[str]:
    yield from (f"{name}, which was not planned" for name in now if name not in then)
    yield from (f"no longer: {name}" for name in then if name not in now and not _is_room(then[name]))
    for name in then:
        if name in now:
            yield from _moved_fields(name.partition(" would be ")[0], then[name], now[name])


def _is_room(change: Document) -> bool:
    """Whether a namespace was to be made: the lock of the run itself, which reboots hosts first, may have needed it."""
    return bool(change["object"]["kind"] == "Namespace" and change["action"] == Action.CREATE.value)


def _moved_fields(name: str, then: Document, now: Document) -> Iterator[str]:
    moved = tuple(_moved(_fields(then), _fields(now), "as it is"))
    yield from (f"{name}: {line.replace(': ', ' ', 1)}" for line in moved)
    if not moved and then["content"] != now["content"]:
        yield f"{name}: the content to apply differs"


def _fields(change: Document) -> dict[str, tuple[Any, ...]]:
    return {
        field["path"]: (field["old"], field["new"], f"{display_value(field['old'])} -> {display_value(field['new'])}")
        for field in change["fields"]
    }


def _moved_rollout(then: Document | None, now: Document | None) -> Iterator[str]:
    """Yield which nodes go otherwise: their order, who is evicted, whose cordon stays. Times and budgets pass."""
    yield from _moved(_nodes(then), _nodes(now), "its driver is not replaced")


def _nodes(rollout: Document | None) -> dict[str, tuple[str]]:
    if rollout is None:
        return {}
    placed = {
        each["node"]: _outlook(number, wave["canary"], each)
        for number, wave in enumerate(rollout["waves"], start=1)
        for each in wave["nodes"]
    }
    skipped = {each["node"]: f"is skipped: {each['reason']}" for each in rollout["skipped"]}
    found = {
        **dict.fromkeys(rollout.get("marked", ()), "keeps its driver"),
        **dict.fromkeys(rollout["under_way"], "is under way"),
    }
    return {f"node {node}": (told,) for node, told in {**found, **skipped, **placed}.items()}


def _outlook(wave: int, canary: bool, each: Document) -> str:  # noqa: FBT001 - a key of the document
    parts = [f"wave {wave}{', a canary' if canary else ''}"]
    parts += [f"evicts {', '.join(_owners(each['evicts']))}"] if each["evicts"] else []
    parts += [f"cordoned by {each['cordoned_by']}"] if each["cordoned_by"] else []
    return ", ".join(parts)


def _owners(pods: Iterable[Document]) -> list[str]:
    """Return whose pods they are: the names of those that a controller makes change with every restart."""
    return sorted({f"{pod['namespace']}/{pod['owner'] or pod['name']}" for pod in pods})
