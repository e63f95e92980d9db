"""ConfigMaps and Secrets that pods of the stack refer to, and that the stack does not make. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, NamedTuple

from gpu_provision.model.cluster import Manifest, ObjectRef, ref_of
from gpu_provision.model.codes import ABSENT, NOT_LOOKED_FOR
from gpu_provision.model.findings import Finding, Severity
from gpu_provision.planning.states import Desired


class Reference(NamedTuple):
    """That the pods of an object refer to another object.

    Attributes:
        user: The object with the pods, or the pod.
        component: What that belongs to.
        is_required: Whether the pods do not start without. Images are pulled without a pull secret, too.
    """

    ref: ObjectRef
    user: ObjectRef
    component: str
    is_required: bool = True


def references(desired: Desired) -> tuple[Reference, ...]:
    """Return what pods refer to, but for what is optional or made by the stack itself."""
    kinds = frozenset(_FIELDS.values())
    made = {ref_of(each) for manifests in desired.values() for each in manifests if each["kind"] in kinds}
    found = (
        reference
        for component, manifests in desired.items()
        for manifest in manifests
        for reference in _of_manifest(component, manifest)
    )
    return tuple(dict.fromkeys(each for each in found if each.ref not in made))


def _of_manifest(component: str, manifest: Manifest) -> Iterator[Reference]:
    spec = manifest.get("spec", {})
    pod = spec if manifest["kind"] == "Pod" else spec.get("template", {}).get("spec", {})
    user = ref_of(manifest)
    for kind, name in _required(pod):
        yield Reference(ObjectRef("v1", kind, user.namespace, name), user, component)
    for secret in pod.get("imagePullSecrets", ()):
        yield Reference(ObjectRef("v1", "Secret", user.namespace, secret["name"]), user, component, is_required=False)


def _required(pod: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield kind and name of each object without which a pod does not start."""
    volumes = pod.get("volumes", ())
    projected = (source for volume in volumes for source in volume.get("projected", {}).get("sources", ()))
    containers = (*pod.get("initContainers", ()), *pod.get("containers", ()))
    variables = (variable.get("valueFrom", {}) for each in containers for variable in each.get("env", ()))
    sources = chain(
        volumes, projected, variables, (source for each in containers for source in each.get("envFrom", ()))
    )
    for source in sources:
        for field, kind in _FIELDS.items():
            named = source.get(field, {})
            if named and not named.get("optional"):
                yield kind, named.get("name") or named["secretName"]


_FIELDS = {
    "configMap": "ConfigMap",
    "configMapRef": "ConfigMap",
    "configMapKeyRef": "ConfigMap",
    "secret": "Secret",
    "secretRef": "Secret",
    "secretKeyRef": "Secret",
}
"""Field of a volume, of a projected source or of an environment -> kind of what it names."""


def absences(
    found: Iterable[Reference],
    missing: Collection[ObjectRef],
    changing: Collection[ObjectRef],
    namespaces: Collection[str],
) -> Iterator[Finding]:
    """Yield a finding for each object that does not exist: an error where pods are about to be started that need it.

    Args:
        missing: What does not exist.
        changing: Objects whose pods a run would start or replace.
        namespaces: Those that exist.
    """
    by_ref: dict[ObjectRef, list[Reference]] = {}
    for reference in found:
        if reference.ref in missing:
            by_ref.setdefault(reference.ref, []).append(reference)
    for ref, uses in by_ref.items():
        yield _absent(ref, uses, changing, has_namespace=ref.namespace in namespaces)


def _absent(
    ref: ObjectRef, uses: Iterable[Reference], changing: Collection[ObjectRef], *, has_namespace: bool
) -> Finding:
    required = [use for use in uses if use.is_required]
    is_error = any(use.user in changing for use in required)
    components = ", ".join(dict.fromkeys(use.component for use in required or uses))
    if is_error:
        consequence = "their pods would not start; nothing is changed as long as it is missing"
    elif required:
        consequence = "pods that run go on without it; a pod that is started again does not start"
    else:
        consequence = "images are pulled without its credentials"
    return Finding(
        code=ABSENT,
        what=f"{ref.kind} {ref.name} does not exist, to which the pods of {components} refer",
        where=str(ref),
        consequence=consequence,
        fix=f"create it: {'' if has_namespace else f'kubectl create namespace {ref.namespace}; '}"
        f"kubectl -n {ref.namespace} create {_CREATE[ref.kind, bool(required)].format(name=ref.name)}; "
        "or correct its name in the inventory",
        severity=Severity.ERROR if is_error else Severity.WARNING,
    )


_CREATE = {
    ("ConfigMap", True): "configmap {name} --from-file=FILE",
    ("Secret", True): "secret generic {name} --from-file=FILE",
    ("Secret", False): "secret docker-registry {name} --docker-server=HOST --docker-username=USER",
}
"""Kind, and whether pods do not start without -> how kubectl creates it."""


def not_looked_for(unread: Collection[ObjectRef]) -> Iterator[Finding]:
    """Yield one warning about objects that our user may not read."""
    if unread:
        yield Finding(
            code=NOT_LOOKED_FOR,
            what="whether everything exists that pods refer to is not known: the right to read it is missing",
            where=", ".join(sorted(map(str, unread))),
            consequence="a pod that refers to what does not exist does not start",
            fix="gpu-provision rbac prints the rights, also this one: get, of these names alone",
            severity=Severity.WARNING,
        )
