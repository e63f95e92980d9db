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
from gpu_provision.model.cluster import Kind, Manifest
from gpu_provision.model.findings import Finding
from gpu_provision.model.inventory import Inventory

GROUP, VERSION, PLURAL = "gpu-provision.io", "v1alpha1", "gpustacks"
STACK = Kind(f"{GROUP}/{VERSION}", "GPUStack")
FINALIZER = f"{GROUP}/stack"
"""Holds a stack that is deleted until the controller has taken it off the cluster, and looked."""

HOME = f"{GROUP}/namespace"
"""Annotation: where the stack's operands are; the controller writes it before anything else."""

LED_BY = f"{GROUP}/lease"
"""Annotation: by which lease those controllers agree that look after the stack, if it is another one than usual."""

ON_DELETE, KEEP = f"{GROUP}/on-delete", "keep"
"""Annotation of a stack whose deletion leaves all that it has installed."""

BACK_TO = f"{GROUP}/back-to"
"""Annotation of a stack that says what an earlier run declared: number of that run, and generation that says so."""

_DUMPER: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)  # C is ten times faster; not every wheel has it
_PLACE = re.compile(r"^(?::\d+){0,2} ?(?P<path>.*)$", re.DOTALL)
_OTHER_LINE = re.compile(r", first in line \d+")


def label_of(name: str) -> str:
    """Return what findings call a stack: ``gpustack/prod``."""
    return f"{STACK.kind.lower()}/{name}"


def stack_label(stack: Manifest) -> str:
    """Return what findings call a stack that was read."""
    return label_of(stack["metadata"]["name"])


def spec_of(data: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the spec of an inventory's stack, and the paths of what of the inventory it does not have.

    The release is always named: another version of the controller would take another one for granted.

    Args:
        data: The inventory as its file says it.
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
    metadata = stack["metadata"]
    run, _, generation = str((metadata.get("annotations") or {}).get(BACK_TO, "")).partition(" ")
    is_current = generation == str(metadata.get("generation", 0))
    return int(run) if is_current and re.fullmatch(r"[0-9]{1,18}", run) else 0


def namespace_of(stack: Manifest) -> str:
    """Return the namespace that the stack has been installed in; empty if it has not been yet, or is not named."""
    found = str((stack["metadata"].get("annotations") or {}).get(HOME, ""))
    return found if _is_name(found) else ""


def lease_of(stack: Manifest | None) -> str:
    """Return by which lease the controllers of a stack agree, as ``namespace/name``; empty for the usual one."""
    annotations = (stack["metadata"].get("annotations") or {}) if stack else {}
    found = str(annotations.get(LED_BY, ""))
    return found if found.count("/") == 1 and all(map(_is_name, found.split("/"))) else ""


def _is_name(text: str) -> bool:
    """Whether a text can be an object's name: annotations become parts of paths at the API server."""
    return re.fullmatch(schema()["$defs"]["object_name"]["pattern"], text) is not None


def namespace_changed(stack: Manifest, inventory: Inventory) -> Finding | None:
    """Return why a stack cannot be kept that declares another namespace than it has been installed in."""
    home, wanted = namespace_of(stack), inventory.cluster.namespace
    if home in {"", wanted}:
        return None
    return Finding(
        code=codes.NAMESPACE_CHANGED,
        where=f"{label_of(inventory.name)} spec.cluster.namespace",
        what=NAMESPACE_IS_FIXED,
        evidence=f"it is in {home}, and declares {wanted}",
        fix=f"Set it back to {home}; or delete the stack, and create it again.",
    )


NAMESPACE_IS_FIXED = "The namespace of a stack cannot be changed: what is in the old one would be left behind."


def inventory_of(stack: Manifest) -> tuple[Inventory | None, tuple[Finding, ...]]:
    """Return the inventory that a stack declares, None if it cannot be used, and what the loader says.

    Findings name places in the stack. Nothing that it says has a file read: what would is no part of it.
    """
    name = stack["metadata"]["name"]
    if problem := _with_credentials(stack):
        return None, (problem,)
    spec, _ = cluster_part(stack.get("spec") or {})
    data = {"name": name, "cluster": spec.pop("cluster", {}), **spec}
    text = yaml.dump(data, Dumper=_DUMPER, sort_keys=False, allow_unicode=True)
    label = label_of(name)
    source = Source(
        name=label, path=Path("/", name), text=text, digest=hashlib.sha256(text.encode()).hexdigest(), is_local=False
    )
    try:
        inventory, findings = validate_source(source)
    except SourceError as error:
        return None, (_placed(error.finding, label),)
    found = tuple(_placed(finding, label) for finding in findings.all)
    return (replace(inventory, path="", warnings=()) if inventory else None), found  # the controller reports them


def _with_credentials(stack: Manifest) -> Finding | None:
    """Return the finding about a proxy that needs credentials: leaving it out in silence would be no help."""
    proxy = (stack.get("spec") or {}).get("proxy")
    known = proxy if isinstance(proxy, Mapping) else {}
    key = next((key for key in ADDRESSES if "@" in str(known.get(key, ""))), None)
    if key is None:
        return None
    return Finding(
        code=codes.PROXY_CREDENTIALS,
        where=f"{stack_label(stack)} spec.proxy.{key}",
        what=PROXY_NEEDS_NONE,
        fix="Declare a proxy that needs none; or none, and name package sources in driver.repo_config.",
    )


PROXY_NEEDS_NONE = "A stack has no proxy that needs credentials: who may read stacks would see them."


def _placed(finding: Finding, label: str) -> Finding:
    """Return a finding that says where in the stack; its lines are those of a generated text."""
    found = _PLACE.match(finding.where.removeprefix(label))
    path = found["path"] if found else ""
    field = "metadata.name" if path == "name" else f"spec.{path}" if path else ""
    what = _OTHER_LINE.sub("", finding.what)
    return replace(finding, where=f"{label} {field}".rstrip(), what=what)
