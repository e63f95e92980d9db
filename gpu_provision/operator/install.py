"""Install the operator into a cluster, or uninstall it; check beforehand what would go wrong."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain

from gpu_provision.destroy import discovery
from gpu_provision.kube.client import Cluster
from gpu_provision.kube.errors import FieldConflictError
from gpu_provision.kube.informer import Mirror, Scope
from gpu_provision.kube.observe import NAMESPACE, POD
from gpu_provision.model import codes
from gpu_provision.model.cluster import Kind, Manifest, ObjectRef, ref_of
from gpu_provision.model.findings import Finding, Rejected, RunFailed, Severity
from gpu_provision.model.inventory import Inventory
from gpu_provision.operator import crd, manifests
from gpu_provision.operator.conflicts import warn_on_destroy
from gpu_provision.operator.crd import DEFINITION, LABELS, RULES_KEY, definition
from gpu_provision.operator.manifests import NAME, InstallOptions
from gpu_provision.operator.stack import STACK, inventory_of, label_of
from gpu_provision.rbac.roles import ALWAYS_THERE
from gpu_provision.reconcile.observer import scope_of_object

_UNKNOWN_KEY = "GP120"
_HOW_TO_TAKE_OVER = (
    "bring what is applied there to this version (gpu-provision operator render); "
    "or gpu-provision operator install --take-over, if no other tool applies it any more"
)


def check_unknown_keys(cluster: Cluster) -> None:
    """Raise RunFailed if stacks have keys that this version does not know: the API server would drop them unasked."""
    if found := [*_losses(cluster.list(STACK).items)]:
        raise RunFailed(*found)


def _losses(stacks: Iterable[Manifest]) -> Iterator[Finding]:
    for stack in stacks:
        name = stack["metadata"]["name"]
        unknown = (finding for finding in inventory_of(stack)[1] if finding.code == _UNKNOWN_KEY)
        for finding in unknown:
            yield Finding(
                code=codes.UNKNOWN_KEYS,
                where=finding.where,
                what="this version of gpu-provision has no such key; once installed, what is declared there is dropped",
                evidence=finding.what,
                fix=f"kubectl edit gpustack {name} takes it out, then install again. {finding.fix}",
            )


def check_conflicts(cluster: Cluster, wanted: Iterable[Manifest], manager: str) -> None:
    """Raise RunFailed if another manager has set fields otherwise; equal fields have several owners.

    Args:
        manager: Field manager that would apply what is wanted.
    """
    if found := [*_conflicts(cluster, wanted, manager)]:
        raise RunFailed(*found)


def _conflicts(cluster: Cluster, wanted: Iterable[Manifest], manager: str) -> Iterator[Finding]:
    for item in wanted:
        ref = ref_of(item)
        if not cluster.get(ref):
            continue
        try:
            cluster.apply(item, dry_run=True, manager=manager)
        except FieldConflictError as conflict:
            yield Finding(
                code=codes.OTHERS_FIELDS,
                where=str(ref),
                what=f"applied by {', '.join(sorted(conflict.managers))}, otherwise than this version installs it",
                evidence=conflict.findings[0].what.partition(": ")[2],
                fix=_HOW_TO_TAKE_OVER,
            )


def strip_refused_rules(cluster: Cluster, wanted: Manifest, manager: str) -> tuple[Manifest, tuple[Finding, ...]]:
    """Return the definition as the API server takes it, and a warning if that is without its rules.

    Raises:
        Rejected: Something else of it is refused.
    """
    plain = definition()
    if wanted == plain:
        return wanted, ()
    try:
        cluster.apply(wanted, dry_run=True, take_back=True, manager=manager)
    except Rejected as refusal:
        why = refusal.findings[0].evidence
        if RULES_KEY not in why:
            raise
        return plain, (_without_rules(wanted, why),)
    return wanted, ()


def _without_rules(wanted: Manifest, why: str) -> Finding:
    return Finding(
        code=codes.RULES_REFUSED,
        where=str(ref_of(wanted)),
        what="installed without rules in CEL, which this API server refuses; "
        "what is wrong with a stack is not told by kubectl apply, but in the stack's status",
        evidence=why,
        fix="nothing has to be done; in a repository that GitOps applies, have it so as well: "
        "gpu-provision operator render --kubernetes 1.28. Please report it with the version of the cluster",
        severity=Severity.WARNING,
    )


MANAGER = "gpu-provision-operator"
"""Field manager; another one than a stack's, which has some of the same namespaces."""

_BUDGETS = ("policy/v1", "policy/v1beta1")
_LABELLED = ",".join(f"{key}={value}" for key, value in LABELS.items())
_RBAC = "rbac.authorization.k8s.io/v1"
_CONTROLLER = (
    *(Kind(version, "PodDisruptionBudget") for version in _BUDGETS),
    Kind("apps/v1", "Deployment"),
    Kind("networking.k8s.io/v1", "NetworkPolicy"),
)
_RIGHTS = (
    *(Kind(_RBAC, kind) for kind in ("ClusterRoleBinding", "RoleBinding", "ClusterRole", "Role")),
    Kind("v1", "ServiceAccount"),
)
_ROLE, _LEASE = Kind(_RBAC, "Role"), Kind("coordination.k8s.io/v1", "Lease")
_MOST_NAMED = 5
_BARE = {"apiVersion", "kind", "metadata"}

Say = Callable[[str], None]


def install(  # noqa: PLR0913 - what, and on which terms
    cluster: Cluster,
    shape: InstallOptions,
    stacks: Sequence[Inventory],
    *,
    take_over: bool = False,
    seconds: float,
    say: Say = lambda _: None,
) -> tuple[tuple[ObjectRef, ...], tuple[Finding, ...]]:
    """Make everything of the operator as it should be; return what was made or changed, and what a reader should know.

    Args:
        shape: For any version of Kubernetes; the cluster's own is asked.
        stacks: Those that the controller gets the rights for; none for stacks of any name.
        take_over: Whether fields that others have set otherwise are taken from them.
        seconds: How long the definition and the controller may take to be in force.
        say: Told what is waited for.

    Raises:
        RunFailed: It takes longer; or nothing is written, since others have fields, or stacks would lose keys.
        Refused, Rejected, Unreachable: As the API server answers.
    """
    until = time.monotonic() + seconds
    wanted = manifests.manifests(replace(shape, kubernetes=cluster.version()), stacks)
    check_unknown_keys(cluster)
    wanted[0], told = strip_refused_rules(cluster, wanted[0], MANAGER)
    if not take_over:
        check_conflicts(cluster, [item for item in wanted if not _is_bare(item)], MANAGER)
    write = partial(_applied, cluster, take_over=take_over)
    written = [*write(wanted[:1])]
    _await_object(cluster, ref_of(wanted[0]), _is_established, until, say)
    written += write(wanted[1:])
    if shape.image:
        deployment = ObjectRef("apps/v1", "Deployment", manifests.NAMESPACE, NAME)
        _await_object(cluster, deployment, _is_available, until, say)
    return tuple(written), told


def _applied(cluster: Cluster, wanted: Iterable[Manifest], *, take_over: bool) -> Iterator[ObjectRef]:
    for item in wanted:
        ref = ref_of(item)
        before = cluster.get(ref)
        if before and _is_bare(item):
            continue
        after = cluster.apply(item, take_back=take_over, manager=MANAGER).object
        if before is None or before["metadata"]["resourceVersion"] != after["metadata"]["resourceVersion"]:
            yield ref


def _is_bare(item: Manifest) -> bool:
    """Whether it is a namespace of stacks: that it is there is all that is asked."""
    return item.keys() == _BARE and item["metadata"].keys() == {"name"}


def _is_established(live: Manifest) -> bool:
    conditions = (live.get("status") or {}).get("conditions") or ()
    return any(each["type"] == "Established" and each["status"] == "True" for each in conditions)


def _is_available(deployment: Manifest) -> bool:
    status, wanted = deployment.get("status") or {}, deployment["spec"]["replicas"]
    is_current = bool(status.get("observedGeneration", 0) >= deployment["metadata"]["generation"])
    return is_current and all(
        status.get(key, 0) == wanted for key in ("replicas", "updatedReplicas", "availableReplicas")
    )


def _await_object(cluster: Cluster, ref: ObjectRef, is_so: Callable[[Manifest], bool], until: float, say: Say) -> None:
    where = f" -n {ref.namespace}" if ref.namespace else ""
    late = _late(str(ref), "is not ready in time", f"kubectl{where} describe {ref.kind.lower()}/{ref.name}")
    _await(
        cluster,
        scope_of_object(ref),
        lambda found: any(map(is_so, found)),
        until,
        lambda: say(f"waiting for {ref}"),
        late,
    )


def _await(  # noqa: PLR0913, PLR0917 - what, and what if not
    cluster: Cluster,
    scope: Scope,
    is_so: Callable[[Sequence[Manifest]], bool],
    until: float,
    on_wait: Callable[[], None],
    late: Finding,
) -> None:
    """Wait until something is so of the objects of a scope. Raises RunFailed if that is not in time."""
    with Mirror(cluster, (scope,)) as mirror:
        is_told = False
        while not is_so([*mirror.of(scope).values()]):
            left = until - time.monotonic()
            if left <= 0:
                raise RunFailed(late)
            if not is_told:
                on_wait()
                is_told = True
            mirror.wait(left)


def _are_gone(found: Sequence[Manifest]) -> bool:
    return not found


def uninstall(
    cluster: Cluster, *, with_stacks: bool, seconds: float, say: Say = lambda _: None
) -> tuple[tuple[ObjectRef, ...], tuple[Finding, ...]]:
    """Take the operator off a cluster; return what was deleted, and what a reader should know.

    Args:
        with_stacks: Whether stacks go first, which the controller takes off the cluster.
        seconds: How long the stacks may take, and then the controller.
        say: Told what is waited for.

    Raises:
        RunFailed: There are stacks, nothing was removed; or something does not go.
        Refused, Rejected, Unreachable: As the API server answers.
    """
    stacks = cluster.list(STACK).items
    gone = _without_stacks(cluster, stacks, with_stacks=with_stacks, seconds=seconds, say=say)
    gone += _deleted(cluster, _found(cluster, _CONTROLLER))
    late = _late("the controller's pods", "are still there", f"kubectl -n {manifests.NAMESPACE} get pods")
    until = time.monotonic() + seconds
    _await(cluster, Scope(POD, _LABELLED), _are_gone, until, lambda: say("waiting for the controller to end"), late)
    rights = _found(cluster, _RIGHTS)
    homes = {ref.namespace for ref, _ in rights if ref.type == _ROLE} | {manifests.NAMESPACE}
    gone += _deleted(cluster, [*rights, *_existing(cluster, _rest())])
    emptied, told = _emptied(cluster, sorted(homes - ALWAYS_THERE))
    return (*gone, *emptied), (*chain.from_iterable(map(warn_on_destroy, stacks)), *told)


def _without_stacks(
    cluster: Cluster, stacks: Sequence[Manifest], *, with_stacks: bool, seconds: float, say: Say
) -> list[ObjectRef]:
    if not stacks:
        return []
    if not with_stacks:
        raise RunFailed(_refusal([stack["metadata"]["name"] for stack in stacks]))
    refs = _deleted(cluster, [(ref_of(stack), stack) for stack in stacks])
    names = ", ".join(label_of(ref.name) for ref in refs)
    advice = "kubectl get gpus tells why; a controller has to run: gpu-provision operator run, if none does"
    late = _late(names, "is still there", advice)
    _await(cluster, Scope(STACK), _are_gone, time.monotonic() + seconds, lambda: say(f"waiting for {names}"), late)
    return refs


def _refusal(names: Sequence[str]) -> Finding:
    return Finding(
        code=codes.STACKS_EXIST,
        where=", ".join(map(label_of, names)),
        what="there are stacks, and only the operator takes them off the cluster",
        fix="--with-stacks removes them first, with everything that they have installed; "
        "gpu-provision operator release NAME lets one go, and leaves what it has installed",
    )


def _late(where: str, what: str, fix: str) -> Finding:
    return Finding(code=codes.NOT_IN_TIME, where=where, what=what, fix=fix)


def _rest() -> Iterator[ObjectRef]:
    yield ObjectRef(*_LEASE, manifests.NAMESPACE, NAME)
    yield ObjectRef(*DEFINITION, "", crd.NAME)


def _found(cluster: Cluster, kinds: Iterable[Kind]) -> list[tuple[ObjectRef, Manifest]]:
    lists = (cluster.list(kind, label_selector=_LABELLED).items for kind in kinds)
    return [(ref_of(item), item) for items in lists for item in items]


def _existing(cluster: Cluster, refs: Iterable[ObjectRef]) -> Iterator[tuple[ObjectRef, Manifest]]:
    for ref in refs:
        if live := cluster.get(ref):
            yield ref, live


def _deleted(cluster: Cluster, found: Iterable[tuple[ObjectRef, Manifest]]) -> list[ObjectRef]:
    refs = []
    for ref, live in found:
        cluster.delete(ref, uid=live["metadata"]["uid"])
        refs.append(ref)
    return refs


def _emptied(cluster: Cluster, names: Iterable[str]) -> tuple[list[ObjectRef], list[Finding]]:
    """Delete the namespaces that hold nothing any more; say what is in the others."""
    gone, kinds, told = [], discovery.listable_kinds(cluster), []
    for ref, live in _existing(cluster, (ObjectRef(*NAMESPACE, "", name) for name in names)):
        if seen := discovery.foreign_objects_in(cluster, ref.name, kinds, ()):
            told.append(_kept(ref, seen))
        else:
            gone += _deleted(cluster, [(ref, live)])
    return gone, told


def _kept(ref: ObjectRef, seen: Sequence[str]) -> Finding:
    return Finding(
        code=codes.NAMESPACE_STAYS,
        where=str(ref),
        what="stays, since something is in it",
        evidence=", ".join(seen[:_MOST_NAMED]),
        severity=Severity.WARNING,
    )
