"""Whether the parts of the operator are of one version: the client, the controller, and the definition of stacks."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import version

from gpu_provision.kube.client import Cluster
from gpu_provision.model import codes
from gpu_provision.model.cluster import Manifest, ObjectRef
from gpu_provision.model.findings import Finding, Refused, Severity
from gpu_provision.operator.crd import DEFINITION, NAME, definition
from gpu_provision.operator.stack import GROUP
from gpu_provision.planning.diff import differences

VERSION = f"{GROUP}/version"
"""Annotation of the lease by which controllers agree on who leads: the version of that one."""

_MOST_NAMED = 5


def mark() -> dict[str, str]:
    """Return the annotation that says which version this is."""
    return {VERSION: version("gpu-provision")}


def version_of(lease: Manifest) -> str:
    """Return the version of whoever leads by a lease; empty if it does not say, or nobody does."""
    is_led = (lease.get("spec") or {}).get("holderIdentity")
    annotations = (lease.get("metadata") or {}).get("annotations") or {}
    return str(annotations.get(VERSION) or "") if is_led else ""


def told(cluster: Cluster, controller: str, lease: str) -> tuple[Finding, ...]:
    """Return warnings about parts of another version than this one; one request.

    Args:
        controller: Version of the controller that leads; empty if it is not known.
        lease: By which it leads.

    Raises:
        Unreachable: The API server does not answer.
    """
    try:
        live = cluster.get(ObjectRef(*DEFINITION, "", NAME))
    except Refused:  # whoever may read stacks need not be allowed to read their definition
        live = None
    return (*_of_controller(controller, lease), *(_of_definition(live) if live else ()))


def _of_controller(theirs: str, lease: str) -> Iterator[Finding]:
    ours = version("gpu-provision")
    if theirs in {"", ours}:
        return
    yield Finding(
        code=codes.OTHER_VERSION,
        where=lease,
        what=f"the controller is gpu-provision {theirs}, and this is {ours}",
        consequence="plan and apply may see differences here that the controller does not see",
        fix="gpu-provision operator install --image IMAGE brings it to this version; or use its version here",
        severity=Severity.WARNING,
    )


def _of_definition(live: Manifest) -> Iterator[Finding]:
    """Yield the warning that stacks have other keys; rules in CEL are the API server's affair."""
    found = min((differences(definition(rules=rules), live) for rules in (True, False)), key=len)
    if not found:
        return
    more = f" and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
    yield Finding(
        code=codes.OTHER_VERSION,
        where=f"CustomResourceDefinition {NAME}",
        what="the definition of stacks is not that of this version of gpu-provision",
        evidence=", ".join(each.path for each in found[:_MOST_NAMED]) + more,
        consequence="keys that it does not know are dropped from stacks",
        fix="gpu-provision operator install brings it to this version",
        severity=Severity.WARNING,
    )
