"""Settings of the GPU Operator that an inventory lacks, each with its place and the reason. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from gpu_provision.adopt import reference
from gpu_provision.adopt.reference import DRIVER, IMAGE, POLICY, POOL, VALUES, ReferenceRow, read_table
from gpu_provision.adopt.settings import EMPTY_VALUES, OperatorSettings, Path, is_env, leaves, value_at
from gpu_provision.inventory.document import quote_unprintable
from gpu_provision.inventory.redaction import HIDDEN, hide_users, looks_secret
from gpu_provision.model import codes
from gpu_provision.model.findings import Finding, Severity
from gpu_provision.model.text import did_you_mean

LOST = "This setting is not carried over."
_FIX = "Nothing, if no workload needs it."
_MAX_SHOWN = 100  # characters of a value
_NAMES_OF_SECRETS = frozenset({"imagePullSecrets", "secretEnv", "secretName"})


class UnsupportedSetting(NamedTuple):
    """A setting of the GPU Operator that an inventory lacks."""

    steps: Path
    value: str
    meaning: str
    is_needed: bool

    @property
    def path(self) -> str:
        """The field, as a ClusterPolicy names it."""
        return ".".join(self.steps)


def unsupported_settings(source: OperatorSettings) -> Iterator[UnsupportedSetting]:
    """Yield the settings that an inventory lacks, and that are neither defaults nor without effect."""
    yield from _driver_toolkit_off(source)
    for path, value in leaves(source.spec):
        if path and not reference.setting_of(".".join(path)) and not _is_pool_key(source.kind, path):
            row = _row_of(source.kind, path)
            if row == ReferenceRow() and source.kind == VALUES and value is False:  # a misspelt switch
                yield UnsupportedSetting(path, _shown(path, value), _explain_unknown(VALUES, path), is_needed=False)
            elif not (row.quiet or _is_default(path, value) or _is_off(row, source.spec)):
                meaning = row.reason or _explain_unknown(source.kind, path)
                yield UnsupportedSetting(path, _shown(path, value), meaning, row.needed)


def _driver_toolkit_off(source: OperatorSettings) -> Iterator[UnsupportedSetting]:
    """Yield the switch of the Driver Toolkit if it is off, and the source does not tell the platform."""
    path = ("operator", "use_ocp_driver_toolkit")
    if source.kind == POLICY and value_at(source.spec, ".".join(path)) is False and "platform" not in source.spec:
        meaning = (
            "A ClusterPolicy does not tell its platform: with --cluster the cluster tells it; on OpenShift, set "
            "`openshift.use_ocp_driver_toolkit: false`."
        )
        yield UnsupportedSetting(path, "false", meaning, is_needed=False)


def _row_of(kind: str, path: Path) -> ReferenceRow:
    name = ".".join(path)
    return reference.driver_row(name.removeprefix("driver.")) if kind == DRIVER else reference.row_of(kind, name)


def _is_pool_key(kind: str, path: Path) -> bool:
    """Whether a field of an NVIDIADriver is a key of a pool."""
    key = _row_of(kind, path).key if kind == DRIVER else ""
    return key.startswith(POOL) and reference.has_key(key)


def _is_default(path: Path, value: Any) -> bool:
    is_image = path[-1] in IMAGE and len(path) > 1  # of a component that is reported by its switch
    return value is False or is_image or value in (*EMPTY_VALUES, *defaults_of(path))


def defaults_of(path: Path) -> list[Any]:
    """Return the defaults of a field in reference.yaml; those of a section around it have it, too."""
    known = read_table("reference.yaml")["defaults"]
    found = [*known.get(path[-1], ())]
    for length in range(1, len(path) + 1):
        for default in known.get(".".join(path[:length]), ()):
            for step in path[length:]:
                default = default.get(step) if isinstance(default, dict) else None  # noqa: PLW2901  downwards
            found += [] if default is None else [default]
    return found


def _is_off(row: ReferenceRow, spec: Mapping[str, Any]) -> bool:
    return bool(row.only_with) and not value_at(spec, row.only_with)


def _explain_unknown(kind: str, path: Path) -> str:
    """Return that a field is none of the reference, or that an inventory has no such setting."""
    known = {*reference.field_names(POLICY), *(reference.field_names(VALUES) if kind == VALUES else ())}
    steps = {tuple(field.split(".")[:length]) for field in known for length in range(1, field.count(".") + 2)}
    if ".".join(path) in known or any(".".join(path[:length]) in known for length in range(1, len(path))):
        return "An inventory has no such setting."
    if path in steps:
        return "A mapping of keys to values is expected here."
    length = next(length for length in range(1, len(path) + 1) if path[:length] not in steps)
    alike = [each[-1] for each in steps if len(each) == length and each[:-1] == path[: length - 1]]
    near = did_you_mean(path[length - 1], alike)
    name = quote_unprintable(path[length - 1])
    return f"The GPU Operator {reference.version()} has no field {name} here. {near}".strip()


def _shown(path: Path, value: Any) -> str:
    """Return a value for people: of variables only the names, of other lists the length, no secrets."""
    if is_env(value) and value:
        return ", ".join(str(entry["name"]) for entry in value)
    if isinstance(value, (list, dict)):
        return f"{len(value)} {'entry' if len(value) == 1 else 'entries'}"
    text = str(value).lower() if isinstance(value, bool) else str(value)
    is_secret = "env" in path or (looks_secret(path[-1]) and path[-1] not in _NAMES_OF_SECRETS)
    return HIDDEN if is_secret else quote_unprintable(hide_users(text))[:_MAX_SHOWN]


def import_warning(where: str, what: str, *, evidence: str = "", fix: str = _FIX) -> Finding:
    """Return the warning about a setting that an import does not carry over as it is."""
    return Finding(
        code=codes.NOT_CARRIED_OVER, where=where, what=what, evidence=evidence, fix=fix, severity=Severity.WARNING
    )


def report_unsupported(source: OperatorSettings) -> Iterator[Finding]:
    """Yield a warning for each setting that an inventory lacks."""
    for each in unsupported_settings(source):
        yield import_warning(source.where(each.steps), f"{LOST} {each.meaning}", evidence=each.value)
