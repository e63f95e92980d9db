"""Install the operator into a cluster or uninstall it; find lost keys, field conflicts and version skew."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from importlib.metadata import version

from gpu_provision.components.extra_objects import absent_kind_finding
from gpu_provision.destroy import discovery
from gpu_provision.diagnostics import pods
from gpu_provision.kube.client import KubeClient
from gpu_provision.kube.errors import FieldConflictError
from gpu_provision.kube.informer import InformerCache, Scope, scope_of_object
from gpu_provision.kube.observe import CRD, NAMESPACE, POD, served_groups
from gpu_provision.kube.openshift import CONFIG_GROUP
from gpu_provision.model import codes
from gpu_provision.model.cluster import Kind, Manifest, ObjectRef, ref_of
from gpu_provision.model.findings import Finding, ForbiddenError, InvalidError, RunFailedError, Severity
from gpu_provision.model.inventory import Inventory
from gpu_provision.model.openshift_specs import KUBERNETES, OPENSHIFT
from gpu_provision.model.text import join_limited
from gpu_provision.operator import manifests
from gpu_provision.operator.crd import CRD_NAME, LABELS, RULES_KEY, definition
from gpu_provision.operator.gitops import warn_if_declared_elsewhere
from gpu_provision.operator.manifests import InstallOptions
from gpu_provision.operator.stack import (
    CONTROLLER_NAME,
    CONTROLLER_NAMESPACE,
    STACK,
    inventory_of,
    lease_of,
    stack_label,
)
from gpu_provision.operator.status import condition_of
from gpu_provision.planning.diff import differences
from gpu_provision.rbac.roles import ALWAYS_THERE

MANAGER = "gpu-provision-operator"  # field manager, distinct from a stack's: both write to some namespaces

_UNKNOWN_KEY = "GP120"
_LABEL_SELECTOR = ",".join(f"{key}={value}" for key, value in LABELS.items())
_RBAC = "rbac.authorization.k8s.io/v1"
_SERVICE_MONITOR = Kind("monitoring.coreos.com/v1", "ServiceMonitor")
_NO_MONITOR = "and run this again; or turn operator.metrics.service_monitor off"
_CONTROLLER_KINDS = (
    Kind("policy/v1", "PodDisruptionBudget"),
    Kind("policy/v1beta1", "PodDisruptionBudget"),
    Kind("apps/v1", "Deployment"),
    Kind("networking.k8s.io/v1", "NetworkPolicy"),
    Kind("v1", "Service"),
    _SERVICE_MONITOR,
)
_RBAC_KINDS = (
    *(Kind(_RBAC, kind) for kind in ("ClusterRoleBinding", "RoleBinding", "ClusterRole", "Role")),
    Kind("v1", "ServiceAccount"),
)
_MAX_NAMED = 5

Say = Callable[[str], None]


def install(  # noqa: PLR0913 - objects and options
    cluster: KubeClient,
    shape: InstallOptions,
    stacks: Sequence[Inventory],
    *,
    take_over: bool = False,
    seconds: float,
    say: Say = lambda _: None,
) -> tuple[tuple[ObjectRef, ...], tuple[Finding, ...]]:
    """Apply all objects of the operator; return the created and changed ones, and warnings.

    The controller gets permissions for ``stacks``; without any, for stacks of any name. ``take_over`` forces fields of
    other managers. Raises RunFailedError if definition or controller are not ready in time, or, before any write, for
    field conflicts and for stacks that would lose keys.
    """
    until = time.monotonic() + seconds
    platform = OPENSHIFT if CONFIG_GROUP in served_groups(cluster) else KUBERNETES
    wanted = manifests.manifests(replace(shape, kubernetes=cluster.version(), platform=platform), stacks)
    if lost := [*_lost_keys(cluster)]:
        raise RunFailedError(*lost)
    wanted[0], warnings = strip_refused_rules(cluster, wanted[0], MANAGER)
    if "servicemonitors" not in cluster.served_resources(_SERVICE_MONITOR.api_version):
        lacking = [ref_of(item) for item in wanted if ref_of(item).type == _SERVICE_MONITOR]
        wanted = [item for item in wanted if ref_of(item) not in lacking]
        warnings = (*warnings, *(absent_kind_finding(ref, str(ref), _NO_MONITOR) for ref in lacking))
    if not take_over and (conflicts := [*_conflicts(cluster, wanted)]):
        raise RunFailedError(*conflicts)
    written = []
    for item in wanted:
        ref = ref_of(item)
        before = cluster.get(ref)
        if before is None or not _is_bare_namespace(item):
            after = cluster.apply(item, take_back=take_over, manager=MANAGER).object
            if before is None or before["metadata"]["resourceVersion"] != after["metadata"]["resourceVersion"]:
                written.append(ref)
        if ref.type == CRD:
            _await_object(cluster, ref, _is_established, until, say)
    if shape.image:
        _await_controller(cluster, until, say)
    return tuple(written), warnings


def _lost_keys(cluster: KubeClient) -> Iterator[Finding]:
    """Yield errors about stacks with keys that this version lacks: the API server would drop them silently."""
    for stack in cluster.list(STACK).items:
        name = stack["metadata"]["name"]
        for finding in inventory_of(stack)[1]:
            if finding.code == _UNKNOWN_KEY:
                yield Finding(
                    code=codes.UNKNOWN_KEYS,
                    where=finding.where,
                    what="this version of gpu-provision has no such key; after this, the API server would drop it",
                    evidence=finding.what,
                    fix=f"kubectl edit gpustack {name} removes it, then install again. {finding.fix}",
                )


def _conflicts(cluster: KubeClient, wanted: Iterable[Manifest]) -> Iterator[Finding]:
    """Yield the field conflicts with other managers; equal fields can have several owners."""
    for item in wanted:
        ref = ref_of(item)
        if _is_bare_namespace(item) or not cluster.get(ref):
            continue
        try:
            cluster.apply(item, dry_run=True, manager=MANAGER)
        except FieldConflictError as conflict:
            yield Finding(
                code=codes.OTHERS_FIELDS,
                where=str(ref),
                what=f"applied by {', '.join(sorted(conflict.managers))}, otherwise than this version installs it",
                evidence=conflict.findings[0].what.partition(": ")[2],
                fix="update the applied manifests to this version (gpu-provision operator render); "
                "or gpu-provision operator install --take-over, if no other tool applies it any more",
            )


def strip_refused_rules(cluster: KubeClient, wanted: Manifest, manager: str) -> tuple[Manifest, tuple[Finding, ...]]:
    """Return the definition that the API server accepts, and a warning if the CEL rules are left out.

    Raises InvalidError if the server refuses another part.
    """
    plain = definition()
    if wanted == plain:
        return wanted, ()
    try:
        cluster.apply(wanted, dry_run=True, take_back=True, manager=manager)
    except InvalidError as refusal:
        why = refusal.findings[0].evidence
        if RULES_KEY not in why:
            raise
        warning = Finding(
            code=codes.RULES_REFUSED,
            where=str(ref_of(wanted)),
            what="installed without rules in CEL, which this API server refuses; "
            "the controller reports violations in the stack's status instead",
            evidence=why,
            fix="nothing for this cluster; with GitOps, render the manifests with: "
            "gpu-provision operator render --kubernetes 1.28. Please report it with the version of the cluster",
            severity=Severity.WARNING,
        )
        return plain, (warning,)
    return wanted, ()


def _is_bare_namespace(item: Manifest) -> bool:
    """Whether a manifest is a namespace of stacks, which only has to exist."""
    return item.keys() == {"apiVersion", "kind", "metadata"} and item["metadata"].keys() == {"name"}


def _is_established(live: Manifest) -> bool:
    return condition_of(live, "Established").get("status") == "True"


def _is_available(deployment: Manifest) -> bool:
    status, wanted = deployment.get("status") or {}, deployment["spec"]["replicas"]
    is_current = bool(status.get("observedGeneration", 0) >= deployment["metadata"]["generation"])
    return is_current and all(
        status.get(key, 0) == wanted for key in ("replicas", "updatedReplicas", "availableReplicas")
    )


def _await_object(
    cluster: KubeClient, ref: ObjectRef, is_so: Callable[[Manifest], bool], until: float, say: Say
) -> None:
    where = f" -n {ref.namespace}" if ref.namespace else ""
    fix = f"kubectl{where} describe {ref.kind.lower()}/{ref.name}"
    late = Finding(code=codes.NOT_IN_TIME, where=str(ref), what="is not ready in time", fix=fix)
    _wait_until(cluster, scope_of_object(ref), lambda objects: any(map(is_so, objects)), late, until=until, say=say)


def _await_controller(cluster: KubeClient, until: float, say: Say) -> None:
    """Wait for the controller's pods. If they are not ready in time, the error has a pod's cause, such as its image."""
    deployment = ObjectRef("apps/v1", "Deployment", CONTROLLER_NAMESPACE, CONTROLLER_NAME)
    try:
        _await_object(cluster, deployment, _is_available, until, say)
    except RunFailedError as failure:
        (late,) = failure.findings
        found = cluster.list(POD, namespace=CONTROLLER_NAMESPACE, label_selector=_LABEL_SELECTOR).items
        causes = (f"{pod['metadata']['name']}: {pods.cause(pod)}" for pod in found if not pods.is_ready(pod))
        refusal = pods.replica_failure(cluster.get(deployment) or {})
        raise RunFailedError(replace(late, evidence=refusal or next(causes, ""))) from None


def _wait_until(  # noqa: PLR0913 - condition and timeout
    cluster: KubeClient,
    scope: Scope,
    is_so: Callable[[Sequence[Manifest]], bool],
    late: Finding,
    *,
    until: float,
    say: Say,
) -> None:
    """Wait for a condition of the objects of a scope. Raises RunFailedError after the deadline."""
    with InformerCache(cluster, (scope,)) as cache:
        is_reported = False
        while not is_so([*cache.list(scope).values()]):
            left = until - time.monotonic()
            if left <= 0:
                raise RunFailedError(late)
            if not is_reported:
                say(f"waiting for {late.where}")
                is_reported = True
            cache.wait(left)


def uninstall(
    cluster: KubeClient, *, with_stacks: bool, seconds: float, say: Say = lambda _: None
) -> tuple[tuple[ObjectRef, ...], tuple[Finding, ...]]:
    """Uninstall the operator; return the deleted objects and warnings.

    With ``with_stacks`` the controller first removes the stacks. ``seconds`` limits that, and then its own end.
    Raises RunFailedError, before any write, if stacks exist without ``with_stacks``, and for an object that remains.
    """
    stacks = cluster.list(STACK).items
    names = ", ".join(map(stack_label, stacks))
    if stacks and not with_stacks:
        refusal = Finding(
            code=codes.STACKS_EXIST,
            where=names,
            what="stacks exist, and only the operator can uninstall them",
            fix="remove them first, with everything that they have installed: --with-stacks; or "
            "keep the installed objects of a stack: gpu-provision operator release NAME",
        )
        raise RunFailedError(refusal)

    def await_end(scope: Scope, where: str, fix: str) -> None:
        late = Finding(code=codes.NOT_IN_TIME, where=where, what="still there", fix=fix)
        _wait_until(cluster, scope, lambda objects: not objects, late, until=time.monotonic() + seconds, say=say)

    deleted = _delete(cluster, stacks)
    if stacks:
        fix = "kubectl get gpus shows why; without a running controller, start one: gpu-provision operator run"
        await_end(Scope(STACK), names, fix)
    deleted += _delete(cluster, _list_labelled(cluster, _CONTROLLER_KINDS))
    await_end(Scope(POD, _LABEL_SELECTOR), "the controller's pods", f"kubectl -n {CONTROLLER_NAMESPACE} get pods")
    rights = _list_labelled(cluster, _RBAC_KINDS)
    homes = {item["metadata"]["namespace"] for item in rights if item["kind"] == "Role"} | {CONTROLLER_NAMESPACE}
    crd = ObjectRef(*CRD, "", CRD_NAME)
    deleted += _delete(cluster, [*rights, *filter(None, map(cluster.get, (lease_of(None), crd)))])
    await_end(scope_of_object(crd), str(crd), f"kubectl get crd {CRD_NAME} -o yaml shows what holds it")
    warnings = [finding for stack in stacks for finding in warn_if_declared_elsewhere(stack, "destroy")]
    kinds = discovery.listable_kinds(cluster)
    for name in sorted(homes - ALWAYS_THERE):
        namespace = cluster.get(ObjectRef(*NAMESPACE, "", name))
        if namespace and (foreign := discovery.foreign_objects_in(cluster, name, kinds, ())):
            stays = Finding(
                code=codes.NAMESPACE_STAYS,
                where=str(ref_of(namespace)),
                what="stays, since something is in it",
                evidence=join_limited(foreign, _MAX_NAMED),
                severity=Severity.WARNING,
            )
            warnings.append(stays)
        elif namespace:
            deleted += _delete(cluster, [namespace])
    return tuple(deleted), tuple(warnings)


def _list_labelled(cluster: KubeClient, kinds: Iterable[Kind]) -> list[Manifest]:
    return [item for kind in kinds for item in cluster.list(kind, label_selector=_LABEL_SELECTOR).items]


def _delete(cluster: KubeClient, items: Iterable[Manifest]) -> list[ObjectRef]:
    refs = []
    for item in items:
        refs.append(ref_of(item))
        cluster.delete(refs[-1], uid=item["metadata"]["uid"])
    return refs


def skew_findings(cluster: KubeClient, controller: str, lease: str) -> tuple[Finding, ...]:
    """Return warnings about a definition and a leader of other versions; an empty ``controller`` is unknown."""
    own_version, findings = version("gpu-provision"), list[Finding]()
    if controller not in {"", own_version}:
        other_controller = Finding(
            code=codes.OTHER_VERSION,
            where=lease,
            what=f"the controller is gpu-provision {controller}, and this is {own_version}",
            consequence="plan and apply may show differences that the controller does not see",
            fix="gpu-provision operator install --image IMAGE brings it to this version; or use its version here",
            severity=Severity.WARNING,
        )
        findings.append(other_controller)
    live = None
    with contextlib.suppress(ForbiddenError):  # a role that reads stacks need not read their definition
        live = cluster.get(ObjectRef(*CRD, "", CRD_NAME))
    # Both forms are current: the API server decides about CEL rules.
    changes = min((differences(definition(rules=rules), live) for rules in (True, False)), key=len) if live else ()
    if changes:
        other_definition = Finding(
            code=codes.OTHER_VERSION,
            where=f"CustomResourceDefinition {CRD_NAME}",
            what="the CustomResourceDefinition is of another version of gpu-provision",
            evidence=join_limited([each.path for each in changes], _MAX_NAMED),
            consequence="the API server drops unknown keys from stacks",
            fix="gpu-provision operator install brings it to this version",
            severity=Severity.WARNING,
        )
        findings.append(other_definition)
    return tuple(findings)
