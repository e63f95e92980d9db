"""A GPUStack: an inventory's cluster part as a custom resource, and the inventory that it declares."""

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
from gpu_provision.inventory.values import find_references
from gpu_provision.model import codes
from gpu_provision.model.cluster import Kind, Manifest, ObjectRef
from gpu_provision.model.findings import Finding
from gpu_provision.model.inventory import Inventory

GROUP, VERSION, PLURAL = "gpu-provision.io", "v1alpha1", "gpustacks"
STACK = Kind(f"{GROUP}/{VERSION}", "GPUStack")

# Where the controller is, and what everything of it is called, also the Lease by which controllers agree on the leader.
CONTROLLER_NAMESPACE, CONTROLLER_NAME = "gpu-operator", "gpu-provision-operator"
DEFAULT_LEASE = f"{CONTROLLER_NAMESPACE}/{CONTROLLER_NAME}"
FINALIZER = f"{GROUP}/stack"  # holds a stack that is deleted until the controller has taken it off the cluster
# Annotations
HOME = f"{GROUP}/namespace"  # where the stack's operands are; the controller writes it before anything else
LED_BY = f"{GROUP}/lease"  # the lease of the controllers that look after the stack, if it is not the default one
ON_DELETE, KEEP = f"{GROUP}/on-delete", "keep"  # the stack's deletion leaves all that it has installed
BACK_TO = f"{GROUP}/back-to"  # of a rolled back stack: number of the run, and generation that declares that
LEADER_VERSION = f"{GROUP}/version"  # of the leader's lease: the version of the controller that leads

NAMESPACE_IS_FIXED = "The namespace of a stack cannot be changed: what is in the old one would be left behind."
PROXY_NEEDS_NONE = "A stack has no proxy that needs credentials: who may read stacks would see them."

_DUMPER: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)  # C is ten times faster; not every wheel has it
_PLACE = re.compile(r"^(?::\d+){0,2} ?(?P<path>.*)$", re.DOTALL)
_OTHER_LINE = re.compile(r", first in line \d+")


def stack_label(stack: Manifest) -> str:
    """Return what findings call a stack: ``gpustack/prod``."""
    return f"{STACK.kind.lower()}/{stack['metadata']['name']}"


def spec_of(data: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the spec of an inventory's stack, and the paths of what of the inventory it does not have.

    The release is always named: another version of the controller would take another one for granted.
    """
    kept, left = cluster_part(data)
    said = {key: value for key, value in kept.items() if key != "cluster" or value}
    return {"release": releases.DEFAULT} | said, left


def stack_of(data: Mapping[str, Any]) -> Manifest:
    """Return the stack of an inventory."""
    metadata = {"name": data.get("name", "")}
    return {"apiVersion": STACK.api_version, "kind": STACK.kind, "metadata": metadata, "spec": spec_of(data)[0]}


def local_values(inventory: Document) -> tuple[Finding, ...]:
    """Return a finding for each value of an inventory that its stack cannot have: it is one of this machine."""
    part, _ = cluster_part(inventory.data)
    return tuple(
        Finding(
            code=codes.NOT_FOR_RESOURCE,
            where=inventory.where((*path, source)),
            what=f"A stack of the cluster takes no value from `{source}`: its controller runs on another machine.",
            evidence=name,
            fix=f"Keep it in a Secret of the cluster: {path[-1]}: {{secret: {{name: ..., key: ...}}}}",
        )
        for path, source, name in find_references(part)
    )


def rollback_annotation(run: int, generation: int) -> dict[str, str]:
    """Return the annotation that a generation of a stack brings back what a run declared; none for no run."""
    return {BACK_TO: f"{run} {generation}"} if run else {}


def rollback_run(stack: Manifest) -> int:
    """Return the number of the run whose declaration a stack brings back; 0 if it was changed since, or does not."""
    run, _, generation = _annotation(stack, BACK_TO).partition(" ")
    is_current = generation == str(stack["metadata"].get("generation", 0))
    return int(run) if is_current and re.fullmatch(r"[0-9]{1,18}", run) else 0


def is_released(stack: Manifest) -> bool:
    """Whether what the stack has installed stays when it is deleted."""
    return _annotation(stack, ON_DELETE) == KEEP


def namespace_of(stack: Manifest) -> str:
    """Return the namespace that the stack has been installed in; empty before that, or if it is not a name."""
    found = _annotation(stack, HOME)
    return found if _is_name(found) else ""


def lease_of(stack: Manifest | None) -> ObjectRef:
    """Return the lease by which the controllers of a stack agree on the leader."""
    found = _annotation(stack, LED_BY) if stack else ""
    is_valid = found.count("/") == 1 and all(map(_is_name, found.split("/")))
    return ObjectRef("coordination.k8s.io/v1", "Lease", *(found if is_valid else DEFAULT_LEASE).split("/"))


def _annotation(stack: Manifest, key: str) -> str:
    return str((stack["metadata"].get("annotations") or {}).get(key, ""))


def _is_name(text: str) -> bool:
    """Whether a text can be an object's name: annotations become parts of paths at the API server."""
    return re.fullmatch(schema()["$defs"]["object_name"]["pattern"], text) is not None


def namespace_changed(stack: Manifest, inventory: Inventory) -> Finding | None:
    """Return the error that a stack declares another namespace than the one that it is installed in."""
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
    """Return the inventory that a stack declares, None if it cannot be used, and what the loader says.

    Findings name places in the stack. No key of it has a file read: those that would are no part of a stack.
    """
    name, label = stack["metadata"]["name"], stack_label(stack)
    proxy = (stack.get("spec") or {}).get("proxy")
    if isinstance(proxy, Mapping) and (key := next((key for key in ADDRESSES if "@" in str(proxy.get(key, ""))), None)):
        # To leave it out in silence would be no help.
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
        return None, (_placed(error.finding, label),)
    found = tuple(_placed(finding, label) for finding in findings.all)
    return (replace(inventory, path="", warnings=()) if inventory else None), found  # the controller reports them


def _placed(finding: Finding, label: str) -> Finding:
    """Return a finding that says where in the stack; its lines are those of a generated text."""
    found = _PLACE.match(finding.where.removeprefix(label))
    path = found["path"] if found else ""
    field = "metadata.name" if path == "name" else f"spec.{path}" if path else ""
    return replace(finding, where=f"{label} {field}".rstrip(), what=_OTHER_LINE.sub("", finding.what))
