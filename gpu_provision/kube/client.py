"""The verbs on a cluster's objects: get, list, watch, apply, patch, create, evict, delete; plain dicts in and out."""

from __future__ import annotations

import contextlib
import json
import os
import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from http import HTTPStatus
from typing import Any, NamedTuple, TypedDict

import msgspec

from gpu_provision.kube import retry
from gpu_provision.kube.config import api_client
from gpu_provision.kube.errors import LOG, AlreadyExistsError, ConflictError, ExpiredError, NotFoundError, no_api_server
from gpu_provision.kube.transport import CONNECT_SECONDS, WATCH_READ_SECONDS, Answer, Connection, Done, WatchStream
from gpu_provision.kube.trim import keep_all
from gpu_provision.model.cluster import Kind, Manifest, ObjectRef, Permission, ref_of
from gpu_provision.model.findings import InvalidError
from gpu_provision.planning.diff import FIELD_MANAGER, has_applied_fields, has_sent_fields

_MERGE_PATCH = "application/merge-patch+json"
_APPLY_PATCH = "application/apply-patch+yaml"
_METADATA_ALONE = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"
_ONE_METADATA_ALONE = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"
_PAGE = 1000  # objects of an answer: of pods some 8 MB, and five times that as dicts
_LOG_BYTES, _LOG_SECONDS = 1 << 20, 10.0  # of a log; for how long it is asked for: it is evidence, nothing waits for it
_STATUS_CHANGES = 5  # of an object whose edit is undone; controllers write a status several times a second in a rollout
_AUTHORIZATION = "authorization.k8s.io/v1"
_NOWHERE = "gpu-provision.none"  # no namespace can have this name, so only what holds everywhere holds there


_SERVED = {
    "apiextensions.k8s.io/v1": "CustomResourceDefinition",
    "apps/v1": "ControllerRevision DaemonSet Deployment",
    "config.openshift.io/v1": "ClusterVersion Proxy",
    "coordination.k8s.io/v1": "Lease",
    "gpu-provision.io/v1alpha1": "GPUStack",
    "image.openshift.io/v1": "ImageStream",
    "machineconfiguration.openshift.io/v1": "MachineConfig MachineConfigPool",
    "monitoring.coreos.com/v1": "PodMonitor PrometheusRule ServiceMonitor",
    "networking.k8s.io/v1": "NetworkPolicy",
    "nfd.k8s-sigs.io/v1alpha1": "NodeFeature",
    "node.k8s.io/v1": "RuntimeClass",
    "nvidia.com/v1": "ClusterPolicy",
    "nvidia.com/v1alpha1": "NVIDIADriver",
    "policy/v1": "PodDisruptionBudget",
    "policy/v1beta1": "PodDisruptionBudget",  # before Kubernetes 1.22
    "rbac.authorization.k8s.io/v1": "ClusterRole ClusterRoleBinding Role RoleBinding",
    **{f"resource.k8s.io/{version}": "ResourceClaim" for version in ("v1", "v1alpha3", "v1beta1", "v1beta2")},
    "scheduling.k8s.io/v1": "PriorityClass",
    "security.openshift.io/v1": "SecurityContextConstraints",
    "v1": "ConfigMap Event LimitRange Namespace Node Pod ResourceQuota Secret Service ServiceAccount",
}


def _plural(kind: str) -> str:
    word = kind.lower()
    if word.endswith("constraints"):
        return word
    return f"{word[:-1]}ies" if word.endswith("y") else f"{word}es" if word.endswith("s") else f"{word}s"


KINDS: Mapping[Kind, str] = {Kind(each, kind): _plural(kind) for each in _SERVED for kind in _SERVED[each].split()}
"""Every kind that this tool reads or writes, and its plural name in the REST path: no discovery is needed."""


def path_to(kind: Kind, namespace: str = "", name: str = "") -> str:
    """Return the REST path of an object, or of all objects of a kind if it has no name."""
    prefix = "/apis/" if "/" in kind.api_version else "/api/"
    scope = f"/namespaces/{namespace}" if namespace else ""
    return f"{prefix}{kind.api_version}{scope}/{KINDS[kind]}{f'/{name}' if name else ''}"


def path_of(ref: ObjectRef) -> str:
    """Return an object's REST path."""
    return path_to(ref.type, ref.namespace, ref.name)


class ObjectList(NamedTuple):
    """The objects of one LIST, and the version to watch from."""

    items: list[Manifest]
    resource_version: str


Query = Sequence[tuple[str, str]]
Keep = Callable[[Kind, Manifest | msgspec.Raw], Manifest]
"""Returns what is held of an object of a kind, which is JSON or decoded already."""


class _List(TypedDict, total=False):
    """The answer to a LIST, or to the deletion of many, its items not decoded yet."""

    metadata: dict[str, Any]
    items: list[msgspec.Raw] | None


msgspec.json.Decoder(_List)  # before there are threads, as in `transport`


class ApplyResult(NamedTuple):
    """What an apply made of an object, and whether it created it."""

    object: Manifest
    created: bool


class GrantedRules(NamedTuple):
    """RBAC rules that hold for us somewhere; ``incomplete`` if an authorizer could not tell all of its rules."""

    rules: tuple[Mapping[str, Any], ...]
    incomplete: bool


class KubeClient(Connection):
    """One API server, one user, and the verbs on its objects."""

    def version(self) -> str:
        """Return the server's version, such as ``v1.34.1``; the cheapest question to see if anybody is there."""
        version = self._json("GET", "/version", "version").get("gitVersion")
        if not version:
            raise no_api_server(self._request_context("GET", "version"))
        return str(version)

    def served_resources(self, group_version: str) -> frozenset[str]:
        """Return the plural names of the resources of an API group version; empty if there is no such group."""
        with contextlib.suppress(NotFoundError):
            answer = self._json("GET", f"/apis/{group_version}", group_version)
            return frozenset(resource["name"] for resource in answer.get("resources", ()))
        return frozenset()

    def get_path(self, path: str, *, retry_seconds: float | None = None) -> Manifest:
        """Return the answer to a GET of any path; of objects in lists the metadata alone, if the server can do that."""
        return self._json("GET", path, path, accept=_METADATA_ALONE, retry_seconds=retry_seconds)

    def get_raw(self, path: str, query: Query, *, accept: str, retry_seconds: float | None = None) -> bytes:
        """Return what the server has at a path in this media type."""
        return bytes(self._send("GET", path, path, query=query, accept=accept, retry_seconds=retry_seconds).data)

    def whoami(self) -> str:
        """Return our user name at the server. Raises NotFoundError before Kubernetes 1.28."""
        answer = self._post_review("authentication.k8s.io/v1", "SelfSubjectReview", {})
        return str(answer["status"]["userInfo"].get("username", ""))

    def rules(self, namespace: str) -> GrantedRules:
        """Return the RBAC rules that hold for us in a namespace, or everywhere if it is empty."""
        answer = self._post_review(_AUTHORIZATION, "SelfSubjectRulesReview", {"namespace": namespace or _NOWHERE})
        status = answer.get("status") or {}
        return GrantedRules(tuple(status.get("resourceRules") or ()), bool(status.get("incomplete")))

    def can_i(self, wanted: Permission) -> bool:
        """Whether we may do something, by the word of all authorizers."""
        resource, _, part = wanted.resource.partition("/")
        attributes = {"verb": wanted.verb, "group": wanted.group, "resource": resource, "subresource": part}
        attributes |= {"namespace": wanted.namespace, "name": wanted.name}
        answer = self._post_review(_AUTHORIZATION, "SelfSubjectAccessReview", {"resourceAttributes": attributes})
        return bool(answer.get("status", {}).get("allowed"))

    def _post_review(self, api_version: str, kind: str, spec: Mapping[str, Any]) -> Manifest:
        # Posted like an object; every authenticated user may ask it about themselves.
        body = {"apiVersion": api_version, "kind": kind, "metadata": {}, "spec": dict(spec)}
        return self._json("POST", f"/apis/{api_version}/{kind.lower()}s", kind, body=body)

    def get(self, ref: ObjectRef) -> Manifest | None:
        """Return one object, or None if it does not exist."""
        try:
            return self.read(ref)
        except NotFoundError:
            return None

    def exists(self, ref: ObjectRef) -> bool:
        """Whether an object is there. Its content is not asked for if the server can leave it out, and never kept."""
        try:
            self._json("GET", path_of(ref), str(ref), accept=_ONE_METADATA_ALONE)
        except NotFoundError:
            return False
        return True

    def read(self, ref: ObjectRef) -> Manifest:
        """Return one object. Raises NotFoundError."""
        return self._json("GET", path_of(ref), str(ref))

    def list(  # noqa: PLR0913 - what a LIST may be about
        self,
        kind: Kind,
        *,
        namespace: str = "",
        label_selector: str = "",
        field_selector: str = "",
        retry_seconds: float | None = None,
        keep: Keep = keep_all,
    ) -> ObjectList:
        """Return all objects of a kind that match, page by page; none if the server does not serve the kind.

        ``keep`` decodes an object, or what is read of it; ``retry_seconds`` counts if the cluster's own are more.
        """
        named = {"apiVersion": kind.api_version, "kind": kind.kind}
        selectors, page = _selectors(label_selector, field_selector), [("limit", str(_PAGE))]
        found, ask = (
            ObjectList([], ""),
            partial(self._send_and_decode, _List, "GET", path_to(kind, namespace), KINDS[kind]),
        )
        while True:
            try:
                answer = ask(query=[*selectors, *page], retry_seconds=retry_seconds)
            except NotFoundError:
                return ObjectList([], "")
            except ExpiredError:
                if not page:
                    raise
                found, page = ObjectList([], ""), []  # it took longer than the server remembers: all at once, then
                continue
            metadata = answer.get("metadata", {})
            items = [{**named, **keep(kind, item)} for item in answer.get("items") or ()]
            # All pages show the objects as they were at the first one.
            found = ObjectList(found.items + items, found.resource_version or metadata.get("resourceVersion", ""))
            if not metadata.get("continue"):
                return found
            page = [("limit", str(_PAGE)), ("continue", metadata["continue"])]

    def apply(
        self, manifest: Manifest, *, dry_run: bool = False, take_back: bool = False, manager: str = FIELD_MANAGER
    ) -> ApplyResult:
        """Apply an object on the server's side; with ``take_back`` by force, to undo an edit of an object of the stack.

        With a resourceVersion in the manifest, nothing is written over what was not looked at; with a generation beside
        it, a change of the status alone does not count. Raises FieldConflictError, ConflictError, InvalidError.
        """
        query = [("fieldManager", manager), ("fieldValidation", "Strict")]
        query += [("dryRun", "All")] if dry_run else []
        query += [("force", "true")] if take_back else []
        ref = ref_of(manifest)
        done = self._recognize_write(ref, lambda live: has_applied_fields(live, manifest))
        response = self._patch(ref, manifest, query, _APPLY_PATCH, done=done)
        return ApplyResult(json.loads(response.data), response.status == HTTPStatus.CREATED)

    def _recognize_write(self, ref: ObjectRef, shows_it: Callable[[Manifest], bool]) -> Done:
        """Return what recognizes, when its repetition is refused, a write of our own whose answer was lost."""

        def done(refusal: InvalidError) -> Answer | None:
            live = self.get(ref) if isinstance(refusal, AlreadyExistsError | ConflictError) else None
            return Answer(json.dumps(live).encode()) if live is not None and shows_it(live) else None

        return done

    def _patch(  # noqa: PLR0913 - the parts of a PATCH
        self, ref: ObjectRef, body: Manifest, query: Query, content_type: str, *, done: Done, part: str = ""
    ) -> Any:
        path = f"{path_of(ref)}/{part}" if part else path_of(ref)
        send = partial(self._send, "PATCH", path, str(ref), query=query, content_type=content_type, done=done)
        for _ in range(_STATUS_CHANGES):
            try:
                return send(body=body)
            except ConflictError:
                looked_at = body.get("metadata", {})
                live = self.get(ref) if "generation" in looked_at else None
                if live is None or live["metadata"].get("generation") != looked_at["generation"]:
                    raise  # more than its status has changed
                body = {**body, "metadata": {**looked_at, "resourceVersion": live["metadata"]["resourceVersion"]}}
        return send(body=body)

    def patch_labels(self, ref: ObjectRef, uid: str, labels: Mapping[str, str | None]) -> Manifest:
        """Set labels of an existing object and remove those that are None; ``uid`` guards against a namesake."""
        return self.merge_patch(ref, {"metadata": {"uid": uid, "labels": dict(labels)}})

    def merge_patch(self, ref: ObjectRef, change: Mapping[str, Any], *, part: str = "") -> Manifest:
        """Merge a change into an object, or its subresource ``part``; None removes. Raises ConflictError as `apply`."""
        query = [("fieldManager", FIELD_MANAGER)]
        done = self._recognize_write(ref, lambda live: has_sent_fields(live, change))
        response = self._patch(ref, dict(change), query, _MERGE_PATCH, part=part, done=done)
        return dict(json.loads(response.data))

    def eviction_version(self) -> str:
        """Return the API version in which the server wants evictions: ``policy/v1``, before 1.22 ``policy/v1beta1``."""
        core = self._json("GET", "/api/v1", "v1")
        found = (resource for resource in core.get("resources", ()) if resource["name"] == "pods/eviction")
        eviction: dict[str, Any] = next(found, {})
        return f"{eviction.get('group', 'policy')}/{eviction.get('version', 'v1')}"

    def evict(self, pod: ObjectRef, uid: str, *, api_version: str) -> None:
        """Have a pod end as budgets allow. Raises EvictionBlockedError; NotFoundError, ConflictError if it is gone."""
        names, options = {"name": pod.name, "namespace": pod.namespace}, {"preconditions": {"uid": uid}}
        body = {"apiVersion": api_version, "kind": "Eviction", "metadata": names, "deleteOptions": options}
        self._json("POST", f"{path_of(pod)}/eviction", f"eviction of {pod}", body=body)

    def create(self, manifest: Manifest) -> Manifest:
        """Create an object, which has a name, so that a second try makes no second one. Raises AlreadyExistsError."""
        ref = ref_of(manifest)
        query = [("fieldManager", FIELD_MANAGER), ("fieldValidation", "Strict")]
        path, done = (
            path_to(ref.type, ref.namespace),
            self._recognize_write(ref, lambda live: has_sent_fields(live, manifest)),
        )
        return self._json("POST", path, str(ref), body=manifest, query=query, done=done)

    def replace(self, manifest: Manifest) -> Manifest:
        """Replace an object; its resourceVersion guards against writers in between. Raises InvalidError."""
        ref = ref_of(manifest)
        query = [("fieldManager", FIELD_MANAGER)]
        done = self._recognize_write(ref, lambda live: has_sent_fields(live, manifest))
        return self._json("PUT", path_of(ref), str(ref), body=manifest, query=query, done=done)

    def delete(self, ref: ObjectRef, *, uid: str = "", orphan: bool = False) -> None:
        """Delete an object if it has this uid; one that is gone is no error. With ``orphan``, what it owns stays."""
        body: dict[str, Any] = {"propagationPolicy": "Orphan" if orphan else "Background"}
        body |= {"preconditions": {"uid": uid}} if uid else {}

        def done(refusal: InvalidError) -> Answer | None:
            """With a uid, an earlier try whose answer was lost was carried out if another object has the name."""
            return Answer(b"{}") if isinstance(refusal, ConflictError) else None

        with contextlib.suppress(NotFoundError):
            self._json("DELETE", path_of(ref), str(ref), body=body, done=done)

    def delete_all(self, kind: Kind, namespace: str, *, label_selector: str, field_selector: str) -> None:
        """Delete all objects of a kind that are selected, in one request, whose answer has them all."""
        query, body = _selectors(label_selector, field_selector), {"propagationPolicy": "Background"}
        path = path_to(kind, namespace)
        self._send_and_decode(_List, "DELETE", path, KINDS[kind], query=query, body=body, accept=_METADATA_ALONE)

    def read_log(self, ref: ObjectRef, container: str, *, lines: int = 50, previous: bool = False) -> tuple[str, ...]:
        """Return the last lines that a container printed, up to 1 MiB. Raises LogUnavailableError."""
        query = [("container", container), ("tailLines", str(lines)), ("limitBytes", str(_LOG_BYTES))]
        query += [("previous", "true")] if previous else []
        response = self._send("GET", f"{path_of(ref)}/log", f"{LOG}{ref}", query=query, retry_seconds=_LOG_SECONDS)
        return tuple(response.data.decode(errors="replace").splitlines())

    def events(self, item: Manifest) -> Sequence[Manifest]:
        """Return Events about an object, 500 at most; the server keeps them for an hour or so."""
        metadata = item["metadata"]
        query = [("fieldSelector", f"involvedObject.uid={metadata['uid']}"), ("limit", "500")]
        path = path_to(Kind("v1", "Event"), metadata.get("namespace", ""))
        return self._json("GET", path, f"events of {ref_of(item)}", query=query).get("items") or ()

    def watch(
        self,
        kind: Kind,
        resource_version: str,
        *,
        namespace: str = "",
        label_selector: str = "",
        field_selector: str = "",
    ) -> WatchStream:
        """Start to watch a kind from a version on, in one namespace or in all of them."""
        query = [("watch", "true"), ("resourceVersion", resource_version), ("allowWatchBookmarks", "true")]
        query += [("timeoutSeconds", str(random.randint(240, 360)))]  # noqa: S311 - so that not all end at once
        query += _selectors(label_selector, field_selector)
        timeout = (3 * CONNECT_SECONDS, WATCH_READ_SECONDS)
        place = self._request_context("WATCH", KINDS[kind])
        response = self._send_once("GET", path_to(kind, namespace), place, query=query, timeout=timeout)
        return WatchStream(response, lambda: self.health.track(place))


def _selectors(labels: str, fields: str) -> list[tuple[str, str]]:
    return [(name, value) for name, value in (("labelSelector", labels), ("fieldSelector", fields)) if value]


def connect(kubeconfig: str = "", context: str = "", *, retry_seconds: float | None = None) -> KubeClient:
    """Return the cluster that a kubeconfig names; nothing is sent yet.

    Without a path that is $KUBECONFIG, ~/.kube/config or the pod's service account. The default of ``retry_seconds``
    is $GPU_PROVISION_API_TIMEOUT, see `Connection`. Raises UsageError.
    """
    from kubernetes.dynamic import DynamicClient

    api, named, user = api_client(kubeconfig, context)
    dynamic, server = DynamicClient(api, discoverer=lambda _client, _cache: None), api.configuration.host
    retry_seconds = retry.retry_seconds_of(os.environ) if retry_seconds is None else retry_seconds
    return KubeClient(dynamic, name=context or named or server, server=server, user=user, retry_seconds=retry_seconds)
