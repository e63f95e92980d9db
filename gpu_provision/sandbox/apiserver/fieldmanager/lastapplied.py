"""The annotation of client-side ``kubectl apply``, and how kubectl's server-side apply takes over from it."""

from __future__ import annotations

import json
from typing import Any, Final

from gpu_provision.sandbox.apiserver.fieldmanager.compare import compare, fields_of
from gpu_provision.sandbox.apiserver.fieldmanager.fieldset import FieldSet, difference
from gpu_provision.sandbox.apiserver.fieldmanager.schema import Object, Type

ANNOTATION: Final = "kubectl.kubernetes.io/last-applied-configuration"
_KUBECTL: Final = "kubectl"


def allowed(live: Object, root: Type, manager: str) -> FieldSet:
    """Return the fields that kubectl may take without a conflict: it set them by client-side apply before."""
    text = _annotations(live).get(ANNOTATION)
    if manager != _KUBECTL or not text:
        return {}
    try:
        config = json.loads(text)
    except ValueError:
        return {}
    if not isinstance(config, dict) or config.get("apiVersion") != live.get("apiVersion"):
        return {}
    changes = compare(config, live, root)
    return difference(difference(fields_of(config, root), changes.written), changes.removed)


def synced(obj: Object, config: Object, manager: str) -> Object:
    """Return the object with the annotation brought up to date, if kubectl applies and there is one."""
    if manager != _KUBECTL or not _annotations(obj).get(ANNOTATION):
        return obj
    annotations = {**_annotations(obj), ANNOTATION: _text(config)}
    return {**obj, "metadata": {**obj["metadata"], "annotations": annotations}}


def _text(config: Object) -> str:
    annotations = {name: value for name, value in _annotations(config).items() if name != ANNOTATION}
    metadata = {name: value for name, value in config["metadata"].items() if name != "annotations"}
    metadata |= {"annotations": annotations} if annotations else {}
    return json.dumps({**config, "metadata": metadata}, separators=(",", ":"), sort_keys=True) + "\n"


def _annotations(obj: Object) -> dict[str, Any]:
    found: dict[str, Any] = (obj.get("metadata") or {}).get("annotations") or {}
    return found
