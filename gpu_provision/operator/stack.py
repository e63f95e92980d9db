"""Convert an inventory's cluster part to a GPUStack and back."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from gpu_provision import releases
from gpu_provision.inventory.document import Document, Source, SourceError
from gpu_provision.inventory.json_schema import ADDRESSES, cluster_part, schema
from gpu_provision.inventory.loader import validate_source
from gpu_provision.inventory.references import find_references
from gpu_provision.model import codes
from gpu_provision.model.cluster import Kind, Manifest, ObjectRef
from gpu_provision.model.findings import Finding
from gpu_provision.model.inventory import Inventory

GROUP, VERSION, PLURAL = "gpu-provision.io", "v1alpha1", "gpustacks"
STACK = Kind(f"{GROUP}/{VERSION}", "GPUStack")

# Namespace of the controller, and name of all its objects, including the Lease of the leader election.
CONTROLLER_NAMESPACE, CONTROLLER_NAME = "gpu-operator", "gpu-provision-operator"
DEFAULT_LEASE = f"{CONTROLLER_NAMESPACE}/{CONTROLLER_NAME}"
FINALIZER = f"{GROUP}/stack"  # blocks the deletion until the controller has uninstalled the stack
# Annotations
NAMESPACE_ANNOTATION = f"{GROUP}/namespace"  # namespace of the stack's operands; the controller's first write
LEASE_ANNOTATION = f"{GROUP}/lease"  # the controllers' lease, if it is not the default one
ON_DELETE, KEEP = f"{GROUP}/on-delete", "keep"  # the deletion of the stack keeps its installed objects
ROLLBACK_ANNOTATION = (
    f"{GROUP}/back-to"  # of a rolled back stack: the restored run, and the generation that restores it
)
LEADER_VERSION = f"{GROUP}/version"  # annotation of the lease: the leader's version

NAMESPACE_IS_FIXED = "The namespace of a stack cannot be changed: what is in the old one would be left behind."
PROXY_NEEDS_NONE = "A stack has no proxy that needs credentials: who may read stacks would see them."

_DUMPER: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)  # the C dumper is ten times faster; some wheels lack it
_PLACE = re.compile(r"^(?::\d+){0,2} ?(?P<path>.*)$", re.DOTALL)
_OTHER_LINE = re.compile(r", first in line \d+")


def stack_label(stack: Manifest) -> str:
    """Return the name of a stack in findings: ``gpustack/prod``."""
    return f"{STACK.kind.lower()}/{stack['metadata']['name']}"


def spec_of(data: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the spec of an inventory's stack, and the paths of the inventory that the spec lacks.

    The spec always names the release, since the default differs between controller versions.
    """
    part, left = cluster_part(data)
    spec = {key: value for key, value in part.items() if key != "cluster" or value}
    return {"release": releases.DEFAULT} | spec, left


def stack_of(data: Mapping[str, Any]) -> Manifest:
    """Return the GPUStack of an inventory."""
    metadata = {"name": data.get("name", "")}
    return {"apiVersion": STACK.api_version, "kind": STACK.kind, "metadata": metadata, "spec": spec_of(data)[0]}


def local_values(inventory: Document) -> tuple[Finding, ...]:
    """Return an error for each value that the inventory reads from a file or variable of this machine."""
    part, _ = cluster_part(inventory.data)
    return tuple(
        Finding(
            code=codes.NOT_FOR_RESOURCE,
            where=inventory.location((*path, source)),
            what=f"A stack of the cluster takes no value from `{source}`: its controller runs on another machine.",
            evidence=name,
            fix=f"Keep it in a Secret of the cluster: {path[-1]}: {{secret: {{name: ..., key: ...}}}}",
        )
        for path, source, name in find_references(part)
    )


def rollback_annotation(run: int, generation: int) -> dict[str, str]:
    """Return the annotation that a generation of a stack restores the spec of a run; none for run 0."""
    return {ROLLBACK_ANNOTATION: f"{run} {generation}"} if run else {}


def rollback_run(stack: Manifest) -> int:
    """Return the number of the run that a stack's present generation restores; 0 if it restores none."""
    run, _, generation = _annotation(stack, ROLLBACK_ANNOTATION).partition(" ")
    is_current = generation == str(stack["metadata"].get("generation", 0))
    return int(run) if is_current and re.fullmatch(r"[0-9]{1,18}", run) else 0


def is_released(stack: Manifest) -> bool:
    """Whether the deletion of the stack keeps its installed objects."""
    return _annotation(stack, ON_DELETE) == KEEP


def namespace_of(stack: Manifest) -> str:
    """Return the namespace of the installed stack; empty before the installation, and for an invalid name."""
    name = _annotation(stack, NAMESPACE_ANNOTATION)
    return name if _is_name(name) else ""


def lease_of(stack: Manifest | None) -> ObjectRef:
    """Return the leader election lease of a stack's controllers."""
    value = _annotation(stack, LEASE_ANNOTATION) if stack else ""
    is_valid = value.count("/") == 1 and all(map(_is_name, value.split("/")))
    return ObjectRef("coordination.k8s.io/v1", "Lease", *(value if is_valid else DEFAULT_LEASE).split("/"))


def _annotation(stack: Manifest, key: str) -> str:
    return str((stack["metadata"].get("annotations") or {}).get(key, ""))


def _is_name(text: str) -> bool:
    """Whether a text is a valid object name: annotations become parts of API paths."""
    return re.fullmatch(schema()["$defs"]["object_name"]["pattern"], text) is not None


def namespace_changed(stack: Manifest, inventory: Inventory) -> Finding | None:
    """Return the error that a stack declares another namespace than that of its installation."""
    home, wanted = namespace_of(stack), inventory.cluster.namespace
    if home in {"", wanted}:
        return None
    return Finding(
        code=codes.NAMESPACE_CHANGED,
        where=f"{stack_label(stack)} spec.cluster.namespace",
        what=NAMESPACE_IS_FIXED,
        evidence=f"it is in {home}, and declares {wanted}",
        fix=f"Set it back to {home}; or delete the stack, and create it again.",
    )


def inventory_of(stack: Manifest) -> tuple[Inventory | None, tuple[Finding, ...]]:
    """Return the inventory that a stack declares, None if it is invalid, and the loader's findings.

    Findings name fields of the stack. A stack has no keys that read files.
    """
    name, label = stack["metadata"]["name"], stack_label(stack)
    proxy = (stack.get("spec") or {}).get("proxy")
    if isinstance(proxy, Mapping) and (key := next((key for key in ADDRESSES if "@" in str(proxy.get(key, ""))), None)):
        # A proxy without its credentials would fail later, with a message that is harder to understand.
        credentials = Finding(
            code=codes.PROXY_CREDENTIALS,
            where=f"{label} spec.proxy.{key}",
            what=PROXY_NEEDS_NONE,
            fix="Declare a proxy that needs none; or none, and name package sources in driver.repo_config.",
        )
        return None, (credentials,)
    spec, _ = cluster_part(stack.get("spec") or {})
    data = {"name": name, "cluster": spec.pop("cluster", {}), **spec}
    text = yaml.dump(data, Dumper=_DUMPER, sort_keys=False, allow_unicode=True)
    digest = hashlib.sha256(text.encode()).hexdigest()
    try:
        inventory, findings = validate_source(
            Source(name=label, path=Path("/", name), text=text, digest=digest, is_local=False)
        )
    except SourceError as error:
        return None, (_relocate(error.finding, label),)
    found = tuple(_relocate(finding, label) for finding in findings.all)
    return (replace(inventory, path="", warnings=()) if inventory else None), found  # the controller reports them


def _relocate(finding: Finding, label: str) -> Finding:
    """Replace the place in the generated text by the field of the stack."""
    match = _PLACE.match(finding.where.removeprefix(label))
    path = match["path"] if match else ""
    field = "metadata.name" if path == "name" else f"spec.{path}" if path else ""
    return replace(finding, where=f"{label} {field}".rstrip(), what=_OTHER_LINE.sub("", finding.what))
