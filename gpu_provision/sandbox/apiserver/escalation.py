"""No user grants what they do not hold: the check of roles and bindings before they are written."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

from gpu_provision.sandbox.api import Object
from gpu_provision.sandbox.apiserver.auth import Attempt
from gpu_provision.sandbox.apiserver.authorizer import GROUP, Authorizer, User, atoms, covers, user_of
from gpu_provision.sandbox.apiserver.calls import JSON, Call, Reply
from gpu_provision.sandbox.apiserver.registry import Registry
from gpu_provision.sandbox.apiserver.rest import handle
from gpu_provision.sandbox.apiserver.status import StatusError

_WRITES = ("POST", "PUT", "PATCH")


async def check(registry: Registry, authorizer: Authorizer, call: Call) -> None:
    """Refuse (403) a role or binding that grants more than its writer holds; 404 if a binding's role is missing.

    What the call would write is learned from a dry run of it. Raises StatusError.
    """
    user = user_of(call.user)
    if user.is_master or call.info.group != GROUP or call.method not in _WRITES:
        return
    tried = replace(call, query={**call.query, "dryRun": "All"}, headers={**call.headers, "Accept": JSON})
    made = await handle(registry, tried)
    if not isinstance(made, Reply):
        return
    new, namespace = json.loads(made.body), call.target.namespace
    before = registry.store.get(call.info.storage, new["metadata"]["name"], namespace)
    if before is not None and _lasting(new) == _lasting(before.object):
        return
    if "roleRef" in new:
        allowed, rules = _bound(authorizer, user, new["roleRef"], namespace)
    else:
        allowed = _may(authorizer, user, "escalate", call.info.plural, new["metadata"]["name"], namespace)
        rules = list(new.get("rules") or ())
        allowed = allowed or (before is not None and rules == list(before.object.get("rules") or ()))
    held = [grant.rule for grant in authorizer.grants(user, namespace)]
    missing = [part for rule in rules for part, wanted in atoms(rule) if not any(covers(one, wanted) for one in held)]
    if missing and not allowed:
        raise _refused(call, new["metadata"]["name"], user, missing)


def _lasting(item: Object) -> Object:
    """Return an object without what the garbage collector changes in it, and the books of who wrote what."""
    metadata = {key: value for key, value in item["metadata"].items() if key not in _OF_COLLECTOR}
    return {**item, "metadata": metadata}


_OF_COLLECTOR = frozenset({"finalizers", "managedFields", "ownerReferences", "resourceVersion"})


def _bound(authorizer: Authorizer, user: User, role: Object, namespace: str) -> tuple[bool, list[Object]]:
    """Return whether somebody may bind a role whatever it grants, and what it grants."""
    plural = "roles" if role["kind"] == "Role" else "clusterroles"
    if _may(authorizer, user, "bind", plural, role["name"], namespace):
        return True, []
    rules = authorizer.rules_of(role, namespace)
    if rules is None:
        details = {"name": role["name"], "group": GROUP, "kind": plural}
        raise StatusError(404, "NotFound", f'{plural}.{GROUP} "{role["name"]}" not found', details=details)
    return False, rules


def _may(  # noqa: PLR0913, PLR0917 - the parts of a permission
    authorizer: Authorizer, user: User, verb: str, plural: str, name: str, namespace: str
) -> bool:
    return authorizer.reason(user, Attempt(user.name, verb, GROUP, plural, namespace, name)) is not None


def _refused(call: Call, name: str, user: User, missing: list[Object]) -> StatusError:
    groups = " ".join(f'"{group}"' for group in user.groups)
    message = (
        f'{call.info.qualified} "{name}" is forbidden: user "{user.name}" (groups=[{groups}]) is attempting to grant '
        f"RBAC permissions not currently held:\n" + "\n".join(_shown(missing))
    )
    return StatusError(403, "Forbidden", message, details={"name": name, "group": GROUP, "kind": call.info.plural})


def _shown(missing: list[Object]) -> Iterator[str]:
    """Write rules as the real server does; parts that differ in the verb only stand in one line."""
    merged: dict[tuple[str, str, str], list[str]] = {}
    for part in missing:
        key = (part["apiGroups"][0], part["resources"][0], part.get("resourceNames", [""])[0])
        merged.setdefault(key, []).append(part["verbs"][0])
    for (group, resource, name), verbs in sorted(merged.items()):
        names = f', ResourceNames:["{name}"]' if name else ""
        listed = ", ".join(f'"{verb}"' for verb in verbs)
        yield f'{{APIGroups:["{group}"], Resources:["{resource}"]{names}, Verbs:[{listed}]}}'
