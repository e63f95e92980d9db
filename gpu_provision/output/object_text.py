"""Objects of the cluster as text: fields, YAML and diffs, without secrets.

Environment variables are hidden, except those that the inventory's schema exempts. Digests of environments are hidden
as well: a digest confirms a guess at a short secret.
"""

from __future__ import annotations

import contextlib
import copy
import difflib
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

import yaml

from gpu_provision.inventory.redaction import hide_credentials, hide_users, is_shown_variable, looks_secret
from gpu_provision.model.plan import Action, Change, FieldChange, Plan
from gpu_provision.output.text import PLAIN, Style

_DIFF_COLORS = {"+": "green", "-": "red", "@": "cyan"}


def diff_text(plan: Plan, style: Style = PLAIN) -> str:
    """Return the diff of every object that would be created, updated or deleted. Secrets are hidden."""
    changes = (change for change in plan.changes if change.action not in {Action.WAIT, Action.RUN})
    return paint_diff((line for change in changes for line in diff_lines(change)), style)


def diff_lines(change: Change) -> list[str]:
    """Return the lines of one object's diff, of managed fields only."""
    name, after, before = str(change.ref), change.manifest or {}, dict[str, Any]()
    if change.action is Action.DELETE:
        return [f"--- {name}", "+++ /dev/null"]
    if change.action not in {Action.CREATE, Action.RUN}:
        with contextlib.suppress(LookupError, AttributeError, TypeError):  # a path leads nowhere
            made = dict(after)
            for field in change.fields:
                made = put_field(made, field.path, field.old)
            before = made
    if before or change.action is not Action.UPDATE:
        old, new = (to_yaml(redact(each)).splitlines() if each else [] for each in (before, after))
        source = name if before else "/dev/null"
        if lines := [*difflib.unified_diff(old, new, fromfile=source, tofile=name, lineterm="")]:
            return lines
    return [f"--- {name}", *(f"@ {field_line(change.ref.kind, field)}" for field in change.fields)]


def paint_diff(lines: Iterable[str], style: Style) -> str:
    """Return the lines of a unified diff in its colors."""
    return "\n".join(
        style.bold(line) if line.startswith(("---", "+++")) else style.paint(_DIFF_COLORS.get(line[:1], ""), line)
        for line in lines
    )


_STEP = re.compile(r'"(?P<quoted>[^"]*)"|(?P<plain>[^.\["]+)|\[(?P<item>[^\]]*)\]')
_ITEM_KEYS = ("name", "containerPort", "port", "mountPath", "devicePath")


class ListStep(str):
    """A step into a list: the item's name, key or position."""

    __slots__ = ()


def path_steps(path: str) -> tuple[str, ...]:
    """Return the steps of a path."""
    return tuple(
        ListStep(step["item"]) if step["item"] is not None else step["quoted"] or step["plain"]
        for step in _STEP.finditer(path)
    )


def put_field(value: Any, path: str, new: Any) -> Any:
    """Return a copy of a JSON value with another value at ``path``; None removes it.

    Raises LookupError, AttributeError or TypeError if the path leads nowhere.
    """
    result = copy.deepcopy(value)
    *steps, last = path_steps(path)
    parent = result
    for step in steps:
        parent = parent[_position(parent, step)] if isinstance(step, ListStep) else parent.setdefault(step, {})
    if isinstance(last, ListStep):
        position = _position(parent, last, len(parent) if new is not None else None)
        parent[position : position + 1] = [] if new is None else [new]
    elif new is None:
        parent.pop(last, None)
    else:
        parent[last] = new
    return result


def _position(items: Any, step: str, missing: int | None = None) -> int:
    for position, item in enumerate(items):
        if isinstance(item, dict) and any(str(item.get(key)) == step for key in _ITEM_KEYS):
            return position
    if step.isdigit() and int(step) < len(items):
        return int(step)
    if missing is None:
        raise LookupError(step)
    return missing


HIDDEN = "(changed)"
_MAX_LENGTH = 72
_DIGEST = "gpu-provision.io/digest"
_DIGESTS = (f'"{_DIGEST}"', "env[DRIVER_CONFIG_DIGEST].value")
_ARGUMENT = re.compile(r"(?P<name>--?[\w-]+)=.")


def is_secret(kind: str, path: str) -> bool:
    """Return whether a field's value is secret: of a Secret, of most variables, or a digest of these."""
    steps = path_steps(path)
    variable, inside = _variable_of(steps)
    hidden = bool(variable) and not is_shown_variable(variable) and inside in {(), ("value",)}
    return kind == "Secret" or steps[-1:] == (_DIGEST,) or hidden


def _variable_of(steps: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """Return the variable whose field a path names, and the steps below it; empty if the path names none."""
    names = enumerate(steps[:-1], start=1)
    position = next((number for number, step in names if step == "env" and not isinstance(step, ListStep)), 0)
    return (steps[position], steps[position + 1 :]) if position else ("", ())


def display_value(value: Any) -> str:
    """Return a value on one line; ``(none)`` for None, long values are cut or counted."""
    if value is None:
        return "(none)"
    if isinstance(value, str) and "\n" in value:
        return f"({len(value.splitlines())} lines)"
    safe = redacted_value(value)
    text = safe if isinstance(value, str) else json.dumps(safe, sort_keys=True)
    return text if len(text) <= _MAX_LENGTH else f"{text[: _MAX_LENGTH - 3]}..."


def field_line(kind: str, field: FieldChange) -> str:
    """Return ``path: old -> new`` of an object of some kind."""
    if is_secret(kind, field.path):
        return f"{field.path}: {HIDDEN}"
    old, new = (display_value(field_value(kind, field.path, value)) for value in (field.old, field.new))
    return f"{field.path}: {old} -> {new}{'  (downgrade)' if is_downgrade(field) else ''}"


_SYSTEM = re.compile(r"-(ubuntu|ubi|distroless|rhel|rhcos|rocky|sles|debian).*")


def image_version(image: str) -> str:
    """Return the version of an image: its tag, up to the operating system."""
    name, _, tag = image.rpartition(":")
    return f"sha256:{tag[:12]}" if name.endswith("sha256") else _SYSTEM.sub("", tag)


def is_downgrade(field: FieldChange) -> bool:
    """Return whether an image changes to an earlier version of itself."""
    if not (field.path.endswith(".image") and isinstance(field.old, str) and isinstance(field.new, str)):
        return False
    if "@" in field.old or "@" in field.new:  # a digest is no number
        return False
    before, after = ([int(part) for part in re.findall(r"\d+", image_version(each))] for each in (field.old, field.new))
    return field.old.rpartition(":")[0] == field.new.rpartition(":")[0] and bool(after) and after < before


def field_document(kind: str, field: FieldChange) -> dict[str, Any]:
    """Return a changed field of an object of some kind as a JSON-able dict."""
    old, new = (field_value(kind, field.path, value) for value in (field.old, field.new))
    return {"path": field.path, "old": old, "new": new}


def field_value(kind: str, path: str, value: Any) -> Any:
    """Return a field's value for a document, without secrets."""
    if is_secret(kind, path):
        return HIDDEN
    steps = path_steps(path)
    is_variable = bool(_variable_of(steps)[0]) and isinstance(value, str)
    return hide_credentials(value) if is_variable else _redact_item(steps[-1], value)


def visible_fields(change: Change) -> tuple[FieldChange, ...]:
    """Return the fields to show: all except digests that follow from other fields."""
    fields = tuple(field for field in change.fields if not field.path.endswith(_DIGESTS))
    return fields or change.fields


def redacted_value(value: Any) -> Any:
    """Return a JSON value without secrets of environments, arguments and URLs."""
    if isinstance(value, str):
        named = _ARGUMENT.match(value)
        return f"{named['name']}={HIDDEN}" if named and looks_secret(named["name"]) else hide_users(value)
    if isinstance(value, dict):
        return {key: _redact_item(key, item) for key, item in value.items()}
    return [redacted_value(item) for item in value] if isinstance(value, list) else value


def _redact_item(key: str, value: Any) -> Any:
    """Return a mapping's value without secrets."""
    match key, value:
        case ("env", list()):
            return [
                {**item, "value": _redact_variable(str(item.get("name", "")), item["value"])}
                if isinstance(item, Mapping) and "value" in item
                else redacted_value(item)
                for item in value
            ]
        case ("env", dict()):  # of a GPUStack
            return {name: _redact_variable(name, item) for name, item in value.items()}
        case (str(name), str()) if name == _DIGEST:
            return HIDDEN
        case _:
            return redacted_value(value)


def _redact_variable(name: str, value: Any) -> Any:
    if not isinstance(value, str):  # a reference
        return value
    return hide_credentials(value) if is_shown_variable(name) else HIDDEN


def redact(manifest: dict[str, Any]) -> dict[str, Any]:
    """Return a manifest without a Secret's data and without the secrets of `redacted_value`."""
    safe: dict[str, Any] = redacted_value(manifest)
    for key in ("data", "stringData") if manifest.get("kind") == "Secret" else ():
        if key in safe:
            safe[key] = dict.fromkeys(safe[key] or {}, HIDDEN)
    return safe


try:
    from yaml import CSafeDumper as _Fastest  # several times as fast, if available
except ImportError:
    from yaml import SafeDumper as _Fastest  # type: ignore[assignment]


class _Dumper(_Fastest):
    """Writes multi-line strings as block text, and no aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        del data
        return True


_Dumper.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None),
)


def to_yaml(manifest: dict[str, Any]) -> str:
    """Return one object as a YAML document, without a document marker."""
    first = {key: manifest[key] for key in ("apiVersion", "kind", "metadata") if key in manifest}
    return yaml.dump(first | manifest, Dumper=_Dumper, sort_keys=False, default_flow_style=False, width=1000)


def yaml_stream(manifests: Iterable[dict[str, Any]]) -> str:
    """Return objects as a stream of YAML documents."""
    return "".join(f"---\n{to_yaml(manifest)}" for manifest in manifests)
