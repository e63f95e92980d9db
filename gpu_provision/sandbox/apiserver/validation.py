"""Validation of bodies: unknown and mistyped fields, and frequent errors in built-in kinds."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from importlib import resources as files
from typing import Any

import yaml

from gpu_provision.sandbox.api import Object
from gpu_provision.sandbox.apiserver.custom_resources import find_untyped, keep_known
from gpu_provision.sandbox.apiserver.errors import Cause, invalid_value, refuse, required, unsupported_value
from gpu_provision.sandbox.apiserver.fieldmanager.schema import FieldShape, Type, builtin_type
from gpu_provision.sandbox.apiserver.resources import ResourceInfo
from gpu_provision.sandbox.objects import matches_selector, value_at


def validate_fields(body: Any, info: ResourceInfo, mode: str) -> Object:
    """Return a body without unknown fields.

    Raises StatusError 400 for unknown fields in mode Strict, for scalars of another type than their field's, and for a
    body that is no object.
    """
    body = {} if body is None else body
    if not isinstance(body, dict):
        refuse(f"the body is no object: a {info.kind} is expected")
    unknown: list[str] = []
    refusal = f'{info.kind} in version "{info.version}" cannot be handled as a {info.kind}: '
    known = body
    if info.custom:
        known = keep_known(body, info, unknown)
    elif types := builtin_type(info.api_version, info.kind):
        try:
            known = _keep_known(body, types.root, "", unknown)
        except TypeError as error:
            refuse(f"{refusal}json: {error}")
    if unknown and mode == "Strict":
        texts = ", ".join(f'unknown field "{path}"' for path in unknown)
        refuse(f"{refusal}strict decoding error: {texts}")
    return known


_SCALARS: dict[str, tuple[str, tuple[type, ...]]] = {
    "string": ("string", (str,)),
    "number": ("int32", (int, float)),
    "boolean": ("bool", (bool,)),
}


def _keep_known(value: Any, kind: Type, path: str, unknown: list[str]) -> Any:
    """Return a value without unknown fields; add their paths to ``unknown``.

    Raises TypeError, with the API server's message, for a scalar of another type than its field's.
    """
    start = path.removesuffix(".")
    wanted, types = _SCALARS.get(kind.scalar or "", ("", (object,)))
    if value is not None and (not isinstance(value, types) or (isinstance(value, bool) and wanted == "int32")):
        names = {bool: "bool", int: "number", float: "number", str: "string", list: "array"}
        found = names.get(type(value), "object")
        message = f"cannot unmarshal {found} into Go struct field {start} of type {wanted}"
        raise TypeError(message)
    if isinstance(value, dict) and (kind.fields or kind.shape is FieldShape.MAP):
        is_open = kind.item is not None or not kind.fields
        unknown.extend(f"{path}{name}" for name in value if not is_open and name not in kind.fields)
        return {
            name: _keep_known(part, kind.field_type(name), f"{path}{name}.", unknown)
            for name, part in value.items()
            if is_open or name in kind.fields
        }
    if isinstance(value, list) and kind.item is not None:
        return [_keep_known(part, kind.item, f"{start}[{index}].", unknown) for index, part in enumerate(value)]
    return value


_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = re.compile(rf"^{_LABEL}(\.{_LABEL})*$")
_PATH_SEGMENT = re.compile(r"^(?!\.{1,2}$)[^/%]+$")
_DNS_LABEL = re.compile(rf"^{_LABEL}$")
_VALUE = re.compile(r"^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$")
_KEY_NAME = re.compile(r"^([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]$")
_LABEL_LENGTH, _NAME_LENGTH = 63, 253
_MAX_DATA_BYTES = 1024 * 1024
_STANDARD_FINALIZERS = ("kubernetes", "orphan", "foregroundDeletion")
_TEXTS: dict[str, str] = yaml.safe_load((files.files(__package__) / "validation.yaml").read_text("utf-8"))


def _to_json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def _name_causes(name: str, info: ResourceInfo) -> Iterator[Cause]:
    pattern, length, text = _SUBDOMAIN, _NAME_LENGTH, _TEXTS["subdomain"]
    if info.group == "rbac.authorization.k8s.io":
        pattern, text = _PATH_SEGMENT, "may not contain '/' or '%'"
    elif info.storage in ("/namespaces", "/services"):
        pattern, length, text = _DNS_LABEL, _LABEL_LENGTH, _TEXTS["label"]
    if not pattern.fullmatch(name) or len(name) > length:
        yield invalid_value("metadata.name", _to_json(name), text)


def _label_causes(labels: Any, field: str) -> Iterator[Cause]:
    for key, value in (labels or {}).items():
        name = key.rpartition("/")[2]
        if not _KEY_NAME.fullmatch(name) or len(name) > _LABEL_LENGTH:
            yield invalid_value(field, _to_json(key), _TEXTS["label key"])
        if not _VALUE.fullmatch(value):
            yield invalid_value(field, _to_json(value), _TEXTS["label value"])
        if len(value) > _LABEL_LENGTH:
            yield invalid_value(field, _to_json(value), f"must be no more than {_LABEL_LENGTH} bytes")


def _container_causes(spec: Object, path: str) -> Iterator[Cause]:
    if not spec.get("containers"):
        yield required(f"{path}.containers")
    names: set[str] = set()
    volumes = {volume.get("name") for volume in spec.get("volumes") or ()}
    for field in ("initContainers", "containers"):
        for index, container in enumerate(spec.get(field) or ()):
            here, name = f"{path}.{field}[{index}]", container.get("name")
            if not name:
                yield required(f"{here}.name")
            elif name in names:
                yield Cause("FieldValueDuplicate", f"Duplicate value: {_to_json(name)}", f"{here}.name")
            elif not _DNS_LABEL.fullmatch(name):
                yield invalid_value(f"{here}.name", _to_json(name), _TEXTS["label"])
            names.add(name)
            if not container.get("image"):
                yield required(f"{here}.image")
            yield from _mount_causes(container, here, volumes)


def _mount_causes(container: Object, path: str, volumes: set[Any]) -> Iterator[Cause]:
    paths: set[str] = set()
    for index, mount in enumerate(container.get("volumeMounts") or ()):
        here = f"{path}.volumeMounts[{index}]"
        if mount.get("name") not in volumes:
            yield Cause("FieldValueNotFound", f"Not found: {_to_json(mount.get('name'))}", f"{here}.name")
        where = mount.get("mountPath")
        if not where:
            yield required(f"{here}.mountPath")
        elif where in paths:
            yield invalid_value(f"{here}.mountPath", _to_json(where), "must be unique")
        paths.add(where or "")


def _pod_spec_causes(spec: Object, path: str, policies: tuple[str, ...]) -> Iterator[Cause]:
    yield from _container_causes(spec, path)
    if spec.get("restartPolicy") not in policies:
        yield unsupported_value(f"{path}.restartPolicy", str(spec.get("restartPolicy")), policies)
    for index, volume in enumerate(spec.get("volumes") or ()):
        if not volume.get("name"):
            yield required(f"{path}.volumes[{index}].name")


def _template_causes(obj: Object, policies: tuple[str, ...]) -> Iterator[Cause]:
    template = value_at(obj, "spec", "template") or {}
    yield from _label_causes(value_at(template, "metadata", "labels"), "spec.template.labels")
    yield from _pod_spec_causes(template.get("spec") or {}, "spec.template.spec", policies)


def _workload_causes(obj: Object) -> Iterator[Cause]:
    selector = value_at(obj, "spec", "selector")
    if not selector:
        yield required("spec.selector")
    else:
        labels = value_at(obj, "spec", "template", "metadata", "labels") or {}
        if not matches_selector(selector, labels):
            yield invalid_value(
                "spec.template.metadata.labels", _to_json(labels), "`selector` does not match template `labels`"
            )
    yield from _template_causes(obj, ("Always",))


def _service_causes(obj: Object) -> Iterator[Cause]:
    spec = obj.get("spec") or {}
    if not spec.get("ports") and spec.get("clusterIP") != "None" and spec.get("type") != "ExternalName":
        yield required("spec.ports")
    for index, port in enumerate(spec.get("ports") or ()):
        if not port.get("port"):
            yield required(f"spec.ports[{index}].port")


def _definition_causes(obj: Object) -> Iterator[Cause]:
    spec, name = obj.get("spec") or {}, obj["metadata"].get("name")
    expected = f"{value_at(spec, 'names', 'plural')}.{spec.get('group')}"
    if name != expected:
        yield invalid_value("metadata.name", _to_json(name), 'must be spec.names.plural+"."+spec.group')
    stored = [version for version in spec.get("versions") or () if version.get("storage")]
    if len(stored) != 1:
        text = "must have exactly one version marked as storage version"
        yield invalid_value("spec.versions", _to_json([row.get("name") for row in spec.get("versions") or ()]), text)
    for index, version in enumerate(spec.get("versions") or ()):
        here, schema = f"spec.versions[{index}].schema.openAPIV3Schema", value_at(version, "schema", "openAPIV3Schema")
        if not schema:
            yield required(here, "Required value: schemas are required")
            continue
        for path, place in find_untyped(schema, here):
            yield required(f"{path}.type", f"Required value: must not be empty {place}")


def _size_causes(obj: Object) -> Iterator[Cause]:
    parts = [*(obj.get("data") or {}).values(), *(obj.get("binaryData") or {}).values()]
    if sum(len(part.encode()) for part in parts) > _MAX_DATA_BYTES:
        yield Cause("FieldValueTooLong", f"Too long: must have at most {_MAX_DATA_BYTES} bytes", "[]")


_CHECKS: dict[str, Callable[[Object], Iterator[Cause]]] = {
    "/configmaps": _size_causes,
    "/pods": lambda obj: _pod_spec_causes(obj.get("spec") or {}, "spec", ("Always", "OnFailure", "Never")),
    "/secrets": _size_causes,
    "/services": _service_causes,
    "apps/daemonsets": _workload_causes,
    "apps/deployments": _workload_causes,
    "apps/replicasets": _workload_causes,
    "apps/statefulsets": _workload_causes,
    "batch/jobs": lambda obj: _template_causes(obj, ("OnFailure", "Never")),
    "apiextensions.k8s.io/customresourcedefinitions": _definition_causes,
}
_POD_MUTABLE = ("activeDeadlineSeconds", "tolerations", "terminationGracePeriodSeconds", "nodeName", "schedulingGates")


def _reference_causes(metadata: Object) -> Iterator[Cause]:
    for index, name in enumerate(metadata.get("finalizers") or ()):
        if "/" not in name and name not in _STANDARD_FINALIZERS:
            why = "name is neither a standard finalizer name nor is it fully qualified"
            yield invalid_value(f"metadata.finalizers[{index}]", _to_json(name), why)
    for owner in metadata.get("ownerReferences") or ():
        for field, name in (("apiVersion", "version"), ("kind", "kind"), ("name", "name"), ("uid", "uid")):
            if not owner.get(field):
                yield invalid_value(f"metadata.ownerReferences.{field}", '""', f"{name} must not be empty")


def object_causes(obj: Object, info: ResourceInfo) -> Iterator[Cause]:
    """Yield the errors of an object."""
    metadata = obj["metadata"]
    yield from _name_causes(metadata["name"], info)
    yield from _label_causes(metadata.get("labels"), "metadata.labels")
    yield from _reference_causes(metadata)
    for field in info.required:
        if value_at(obj, *field.split(".")) in (None, "", [], {}):
            yield required(field)
    if check := _CHECKS.get(info.storage):
        yield from check(obj)


def change_causes(old: Object, new: Object, info: ResourceInfo) -> Iterator[Cause]:
    """Yield the forbidden changes of an object."""
    added = set(new["metadata"].get("finalizers") or ()) - set(old["metadata"].get("finalizers") or ())
    if added and old["metadata"].get("deletionTimestamp"):
        names = ", ".join(f'"{name}"' for name in sorted(added))
        why = "no new finalizers can be added if the object is being deleted, found new finalizers"
        yield Cause("FieldValueForbidden", f"Forbidden: {why} []string{{{names}}}", "metadata.finalizers")
    for field in info.immutable:
        if (after := value_at(new, *field.split("."))) != value_at(old, *field.split(".")):
            yield invalid_value(field, _to_json(after), "field is immutable")
    if info.storage == "/pods" and _immutable_pod_spec(old["spec"]) != _immutable_pod_spec(new["spec"]):
        yield Cause("FieldValueForbidden", _TEXTS["pod update"], "spec")
    if info.storage in ("/configmaps", "/secrets") and old.get("immutable") and old.get("data") != new.get("data"):
        message = "Forbidden: field is immutable when `immutable` is set"
        yield Cause("FieldValueForbidden", message, "data")


def _immutable_pod_spec(spec: Object) -> Object:
    rest = {key: value for key, value in spec.items() if key not in _POD_MUTABLE}
    for field in ("containers", "initContainers"):
        rest[field] = [{**container, "image": ""} for container in spec.get(field) or ()]
    return rest
