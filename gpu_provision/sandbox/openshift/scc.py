"""Admission of pods by SecurityContextConstraints, as far as the pods of the stack and common workloads touch it.

The rules, the order of the constraints and the texts are those of openshift/apiserver-library-go: a pod gets the first
constraint that its service account or its creator may use and that allows it, and what that sets by default.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import resources as files
from typing import Any

import yaml

from gpu_provision.sandbox import objects
from gpu_provision.sandbox.api import Object
from gpu_provision.sandbox.apiserver.auth import AccessRequest, Authorizer, groups_of
from gpu_provision.sandbox.apiserver.errors import StatusError
from gpu_provision.sandbox.apiserver.registry import Registry, WriteOptions
from gpu_provision.sandbox.apiserver.resources import RequestInfo
from gpu_provision.sandbox.apiserver.store import Store, StoredObject

_GROUP, _PLURAL = "security.openshift.io", "securitycontextconstraints"
_STORAGE = f"{_GROUP}/{_PLURAL}"
_SCC, _SUBJECT = "openshift.io/scc", "security.openshift.io/validated-scc-subject-type"
_REQUIRED = "openshift.io/required-scc"
_UIDS, _MCS, _GROUPS = (f"openshift.io/sa.scc.{key}" for key in ("uid-range", "mcs", "supplemental-groups"))
_FIRST_UID, _UID_BLOCK, _UID_BLOCKS = 1_000_000_000, 10_000, 99_999
_CATEGORIES = 1024
_HOST_NAMESPACES = (
    ("hostNetwork", "allowHostNetwork", "Host network is not allowed to be used"),
    ("hostPID", "allowHostPID", "Host PID is not allowed to be used"),
    ("hostIPC", "allowHostIPC", "Host IPC is not allowed to be used"),
)
# Points of a constraint: the fewer, the more restrictive it is, and the earlier it is tried.
_FLAG_POINTS = (("allowPrivilegedContainer", 1_600_000), ("allowHostPorts", 800_000), ("allowHostNetwork", 400_000))
_HOST_VOLUME_POINTS, _OTHER_VOLUME_POINTS = 200_000, 100_000
_TRIVIAL_VOLUMES = {"secret", "configMap", "emptyDir", "downwardAPI", "projected", "none"}
_RUN_AS_POINTS = {"RunAsAny": 40_000, "MustRunAsNonRoot": 30_000, "MustRunAsRange": 20_000, "MustRunAs": 10_000}
_MAX_CAPABILITY_POINTS = 9_999
_PROFILES = {"RuntimeDefault": "runtime/default", "Unconfined": "unconfined"}


def standard_constraints() -> Iterator[Object]:
    """Yield the constraints of a new cluster, a ClusterRole to use each, and the binding that lets everyone use one."""
    table = yaml.safe_load((files.files(__package__) / "constraints.yaml").read_text("utf-8"))
    rbac = "rbac.authorization.k8s.io"
    for name, own in table["constraints"].items():
        metadata = {"name": name}
        yield {"apiVersion": f"{_GROUP}/v1", "kind": "SecurityContextConstraints", "metadata": metadata,
               **objects.deep_copy(table["standard"]), **own}  # fmt: skip
        rule = {"apiGroups": [_GROUP], "resources": [_PLURAL], "resourceNames": [name], "verbs": ["use"]}
        role = {"name": f"system:openshift:scc:{name}"}
        yield {"apiVersion": f"{rbac}/v1", "kind": "ClusterRole", "metadata": role, "rules": [rule]}
    everyone = {"apiGroup": rbac, "kind": "Group", "name": "system:authenticated"}
    reference = {"apiGroup": rbac, "kind": "ClusterRole", "name": "system:openshift:scc:restricted-v2"}
    metadata = {"name": reference["name"]}
    yield {"apiVersion": f"{rbac}/v1", "kind": "ClusterRoleBinding", "metadata": metadata, "roleRef": reference,
           "subjects": [everyone]}  # fmt: skip


def install(registry: Registry) -> None:
    """Give each namespace its range of users, and admit new pods."""

    def on_namespace(before: StoredObject | None, after: StoredObject | None) -> None:
        if before is None and after is not None:
            _allocate(registry, objects.name(after.object))

    registry.on_change("/namespaces", on_namespace)
    for item in registry.store.select("/namespaces"):
        _allocate(registry, objects.name(item.object))
    registry.on_create("/pods", lambda pod, how: admit(registry.store, pod, how))


def _allocate(registry: Registry, namespace: str) -> None:
    info = registry.catalog.find("", "v1", "namespaces")
    item = registry.store.get("/namespaces", namespace)
    if info is None or item is None or _UIDS in objects.annotations_of(item.object):
        return
    number = zlib.crc32(namespace.encode())
    uids = f"{_FIRST_UID + number % _UID_BLOCKS * _UID_BLOCK}/{_UID_BLOCK}"
    level = f"s0:c{number % _CATEGORIES},c{number // _CATEGORIES % _CATEGORIES}"
    added = {_UIDS: uids, _GROUPS: uids, _MCS: level}

    def annotate(obj: Object) -> Object:
        obj["metadata"]["annotations"] = {**objects.annotations_of(obj), **added}
        return obj

    registry.patch(RequestInfo(info, "", namespace), annotate, WriteOptions("cluster-policy-controller"))


@dataclass(frozen=True, slots=True)
class _Ranges:
    """What a namespace gives its pods."""

    first_uid: int
    uids: int
    level: str

    @classmethod
    def of(cls, namespace: Object) -> _Ranges:
        found = objects.annotations_of(namespace)
        first, _, count = found.get(_UIDS, f"{_FIRST_UID}/{_UID_BLOCK}").partition("/")
        return cls(int(first), int(count), found.get(_MCS, "s0:c1,c0"))


def admit(store: Store, pod: Object, how: WriteOptions) -> None:
    """Set what the first constraint that allows the pod sets. Raises StatusError 403 if none does."""
    metadata = pod["metadata"]
    item = store.get("/namespaces", metadata["namespace"])
    ranges = _Ranges.of(item.object if item else {"metadata": {}})
    denied: list[str] = []
    required = (metadata.get("annotations") or {}).get(_REQUIRED)
    constraints = [each.object for each in store.select(_STORAGE)]
    for constraint in sorted(constraints, key=_order):
        name = objects.name(constraint)
        if required and name != required:
            continue
        subject = _subject(store, constraint, pod, how.user)
        if subject is None:
            denied.append(f'provider "{name}": Forbidden: not usable by user or serviceaccount')
            continue
        candidate = objects.deep_copy(pod["spec"])
        _set_defaults(candidate, constraint, ranges)
        problems = list(_problems(candidate, constraint, ranges))
        if not problems:
            pod["spec"] = candidate
            metadata["annotations"] = {**(metadata.get("annotations") or {}), _SCC: name, _SUBJECT: subject}
            return
        denied += problems
    raise _forbidden(metadata.get("generateName") or metadata["name"], denied)


def _forbidden(name: str, denied: Iterable[str]) -> StatusError:
    found = list(dict.fromkeys(denied))
    why = found[0] if len(found) == 1 else f"[{', '.join(found)}]"
    message = f'pods "{name}" is forbidden: unable to validate against any security context constraint: {why}'
    return StatusError(403, "Forbidden", message, details={"name": name, "kind": "pods"})


def _subject(store: Store, constraint: Object, pod: Object, user: str) -> str | None:
    """Return who may use a constraint for a pod: its ``serviceaccount`` or the ``user`` that creates it."""
    namespace, account = pod["metadata"]["namespace"], pod["spec"].get("serviceAccountName") or "default"
    for kind, who in (("serviceaccount", f"system:serviceaccount:{namespace}:{account}"), ("user", user)):
        if not who:
            continue
        if who in (constraint.get("users") or ()) or set(groups_of(who)) & set(constraint.get("groups") or ()):
            return kind
        access = AccessRequest("use", _GROUP, _PLURAL, namespace, objects.name(constraint))
        if Authorizer(store, who).is_allowed(access):
            return kind
    return None


def _order(constraint: Object) -> tuple[int, int, str]:
    return -(constraint.get("priority") or 0), _points(constraint), objects.name(constraint)


def _points(constraint: Object) -> int:
    volumes, total = set(constraint.get("volumes") or ()), 0
    total += sum(points for flag, points in _FLAG_POINTS if constraint.get(flag))
    if volumes & {"hostPath", "*"}:
        total += _HOST_VOLUME_POINTS
    elif volumes - _TRIVIAL_VOLUMES:
        total += _OTHER_VOLUME_POINTS
    for strategy in ("seLinuxContext", "runAsUser"):
        total += _RUN_AS_POINTS.get((constraint.get(strategy) or {}).get("type", ""), 0)
    allowed, dropped = constraint.get("allowedCapabilities") or (), constraint.get("requiredDropCapabilities") or ()
    own = 5000 + 300 * len(constraint.get("defaultAddCapabilities") or ())
    own += 4000 if {"*", "ALL"} & set(allowed) else 10 * len(allowed)
    own -= 3000 if "ALL" in dropped else 50 * len(dropped)
    return total + min(max(own, 0), _MAX_CAPABILITY_POINTS)


def _type_of(constraint: Object, strategy: str) -> str:
    return str((constraint.get(strategy) or {}).get("type", "RunAsAny"))


def _containers(spec: Object) -> Iterator[tuple[str, Object]]:
    for field in ("initContainers", "containers"):
        for index, container in enumerate(spec.get(field) or ()):
            yield f".{field}[{index}]", container


def _set_defaults(spec: Object, constraint: Object, ranges: _Ranges) -> None:
    """Set what a constraint sets on a pod that leaves it open."""
    of_pod: Object = spec.get("securityContext") or {}
    if _type_of(constraint, "seLinuxContext") == "MustRunAs" and not of_pod.get("seLinuxOptions"):
        of_pod["seLinuxOptions"] = {"level": ranges.level}
    for field, value in (("fsGroup", ranges.first_uid), ("supplementalGroups", [ranges.first_uid])):
        if _type_of(constraint, field) == "MustRunAs" and of_pod.get(field) is None:
            of_pod[field] = value
    if "runtime/default" in (constraint.get("seccompProfiles") or ()) and not of_pod.get("seccompProfile"):
        of_pod["seccompProfile"] = {"type": "RuntimeDefault"}
    spec["securityContext"] = of_pod
    for _, container in _containers(spec):
        own = _container_defaults(container.get("securityContext") or {}, of_pod, constraint, ranges)
        container.update({"securityContext": own} if own else {})


def _container_defaults(given: Object, of_pod: Object, constraint: Object, ranges: _Ranges) -> Object:
    """Return the security context of a container with what a constraint sets."""
    own, strategy = dict(given), _type_of(constraint, "runAsUser")
    user = own.get("runAsUser", of_pod.get("runAsUser"))
    if user is None and strategy == "MustRunAsRange":
        user = own["runAsUser"] = ranges.first_uid
    is_limited = bool(user) or (user is None and strategy == "MustRunAsNonRoot")
    if is_limited and own.get("runAsNonRoot", of_pod.get("runAsNonRoot")) is None:
        own["runAsNonRoot"] = True
    if constraint.get("allowPrivilegeEscalation") is False and own.get("allowPrivilegeEscalation") is None:
        own["allowPrivilegeEscalation"] = False
    if dropped := constraint.get("requiredDropCapabilities"):
        capabilities: Object = own.get("capabilities") or {}
        own["capabilities"] = {**capabilities, "drop": sorted({*(capabilities.get("drop") or ()), *dropped})}
    return own


def _invalid(path: str, value: Any, why: str) -> str:
    return f"{path}: Invalid value: {json.dumps(value)}: {why}"


def _problems(spec: Object, constraint: Object, ranges: _Ranges) -> Iterator[str]:
    """Yield why a constraint does not allow a pod."""
    head, of_pod = f"provider {objects.name(constraint)}: ", spec["securityContext"]
    yield from _pod_problems(f"{head}.spec.securityContext", spec, constraint, ranges)
    for place, container in _containers(spec):
        path, own = f"{head}{place}", container.get("securityContext") or {}
        yield from _user_problems(path, {**of_pod, **own}, constraint, ranges)
        level = (own.get("seLinuxOptions") or of_pod.get("seLinuxOptions") or {}).get("level", "")
        yield from _level_problems(f"{path}.seLinuxOptions", level, constraint, ranges)
        annotation = f"container.seccomp.security.alpha.kubernetes.io/{container['name']}"
        yield from _profile_problems(annotation, {**of_pod, **own}, constraint)
        yield from _privilege_problems(path, own, constraint)
        yield from _namespace_problems(path, spec, constraint)
        for port in container.get("ports") or ():
            if port.get("hostPort") and not constraint.get("allowHostPorts"):
                yield _invalid(f"{path}{place}.hostPort", port["hostPort"], "Host ports are not allowed to be used")


def _namespace_problems(path: str, spec: Object, constraint: Object) -> Iterator[str]:
    for field, flag, why in _HOST_NAMESPACES:
        if spec.get(field) and not constraint.get(flag):
            yield _invalid(f"{path}.{field}", value=True, why=why)


def _privilege_problems(path: str, own: Object, constraint: Object) -> Iterator[str]:
    if own.get("privileged") and not constraint.get("allowPrivilegedContainer"):
        yield _invalid(f"{path}.privileged", value=True, why="Privileged containers are not allowed")
    yield from _capability_problems(path, own.get("capabilities") or {}, constraint)
    if constraint.get("readOnlyRootFilesystem") and not own.get("readOnlyRootFilesystem"):
        why = "ReadOnlyRootFilesystem must be set to true"
        yield _invalid(f"{path}.readOnlyRootFilesystem", value=False, why=why)
    if constraint.get("allowPrivilegeEscalation") is False and own.get("allowPrivilegeEscalation"):
        why = "Allowing privilege escalation for containers is not allowed"
        yield _invalid(f"{path}.allowPrivilegeEscalation", value=True, why=why)


def _pod_problems(path: str, spec: Object, constraint: Object, ranges: _Ranges) -> Iterator[str]:
    of_pod = spec["securityContext"]
    file_groups = [of_pod["fsGroup"]] if of_pod.get("fsGroup") is not None else []
    for field, found in (("fsGroup", file_groups), ("supplementalGroups", of_pod.get("supplementalGroups") or [])):
        if _type_of(constraint, field) == "MustRunAs":
            wrong = (group for group in found if not _in_range(group, ranges))
            yield from (_invalid(f"{path}.{field}", found, f"{group} is not an allowed group") for group in wrong)
    yield from _profile_problems("seccomp.security.alpha.kubernetes.io/pod", of_pod, constraint)
    level = (of_pod.get("seLinuxOptions") or {}).get("level", "")
    yield from _level_problems(f"{path}.seLinuxOptions", level, constraint, ranges)
    yield from _namespace_problems(path, spec, constraint)
    volumes = constraint.get("volumes") or ()
    # A real server has added the volume of the account's token by now.
    token: list[Object] = [] if spec.get("automountServiceAccountToken") is False else [{"projected": {}}]
    for index, volume in enumerate([*(spec.get("volumes") or ()), *token]):
        kind = next((key for key in volume if key != "name"), "")
        if "*" not in volumes and kind not in volumes:
            yield _invalid(f"spec.volumes[{index}]", kind, f"{kind} volumes are not allowed to be used")


def _profile_problems(annotation: str, context: Object, constraint: Object) -> Iterator[str]:
    given = context.get("seccompProfile") or {}
    profile = _PROFILES.get(given.get("type", ""), f"localhost/{given.get('localhostProfile', '')}") if given else ""
    allowed = constraint.get("seccompProfiles") or ()
    if "*" in allowed or profile in allowed or not profile:
        return
    valid = f"{profile} is not an allowed seccomp profile. Valid values are [{' '.join(allowed)}]"
    why = valid if allowed else "seccomp may not be set"
    yield f"pod.metadata.annotations[{annotation}]: Forbidden: {why}"


def _in_range(number: int, ranges: _Ranges) -> bool:
    return ranges.first_uid <= number < ranges.first_uid + ranges.uids


def _user_problems(path: str, context: Object, constraint: Object, ranges: _Ranges) -> Iterator[str]:
    strategy, user = _type_of(constraint, "runAsUser"), context.get("runAsUser")
    if strategy == "MustRunAsRange" and user is not None and not _in_range(user, ranges):
        limits = f"must be in the ranges: [{ranges.first_uid}, {ranges.first_uid + ranges.uids - 1}]"
        yield _invalid(f"{path}.runAsUser", user, limits)
    elif strategy == "MustRunAsNonRoot" and user == 0:
        yield _invalid(f"{path}.runAsUser", user, "running with the root UID is forbidden")


def _level_problems(path: str, level: str, constraint: Object, ranges: _Ranges) -> Iterator[str]:
    if _type_of(constraint, "seLinuxContext") == "MustRunAs" and level != ranges.level:
        yield _invalid(f"{path}.level", level, f"must be {ranges.level}")


def _capability_problems(path: str, capabilities: Object, constraint: Object) -> Iterator[str]:
    allowed = constraint.get("allowedCapabilities") or ()
    if "*" in allowed:
        return
    known = {*allowed, *(constraint.get("defaultAddCapabilities") or ())}
    for each in capabilities.get("add") or ():
        if each not in known:
            yield _invalid(f"{path}.capabilities.add", each, "capability may not be added")
