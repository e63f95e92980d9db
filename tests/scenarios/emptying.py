"""What a cluster holds while no scenario uses it, and the way back to that: everything that scenarios made goes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import NamedTuple

from gpu_provision.sandbox.client import load_credentials
from tests.contract.client import MERGE, SECONDS, Object, Server, until
from tests.contract.servers import has_defaults

FIRST_NAMESPACES = frozenset({"default", "kube-node-lease", "kube-public", "kube-system"})
"""Namespaces that every cluster has."""
_ORDER = {"Node": 0, "Namespace": 1, "Pod": 3}
"""Without nodes there are no new pods of DaemonSets, and a namespace that is on its way out takes no new object."""
_OF_CONTROLLERS = frozenset({"Endpoints", "EndpointSlice", "Event", "Lease"})
"""Kinds of which Kubernetes' own programs change objects at any time."""
_PAUSE_SECONDS = 0.1
_SHOWN = 10
_VERSIONS = frozenset({"generation", "managedFields", "resourceVersion"})


class _Found(NamedTuple):
    collection: str
    resource: Object
    item: Object

    @property
    def path(self) -> str:
        return f"{self.collection}/{self.item['metadata']['name']}"

    @property
    def kind(self) -> str:
        return str(self.resource["kind"])

    @property
    def turn(self) -> int:
        return _ORDER.get(self.kind, 2)

    @property
    def is_of_controllers(self) -> bool:
        """Whether it is the account of a controller: each makes its own when it starts."""
        return self.item["metadata"].get("namespace") == "kube-system" and self.kind in {"ServiceAccount", "Secret"}

    @property
    def can_be_deleted(self) -> bool:
        """Whether it stays gone: the server itself makes the API services of definitions, and removes them."""
        is_of_server = "kube-aggregator.kubernetes.io/automanaged" in self.item["metadata"].get("labels", {})
        return not is_of_server and (self.kind == "Pod" or "deletionTimestamp" not in self.item["metadata"])

    @property
    def lasting(self) -> Object:
        """What only scenarios change."""
        if self.kind in _OF_CONTROLLERS:
            return {}
        metadata = {key: value for key, value in self.item["metadata"].items() if key not in _VERSIONS}
        others = {"metadata", "status", "rules" if "aggregationRule" in self.item else ""}
        return {key: value for key, value in self.item.items() if key not in others} | {"metadata": metadata}


class Bare:
    """A cluster without anything of scenarios."""

    def __init__(self, kubeconfig: Path, is_leftover: Callable[[str, Object], bool] = lambda *_: False) -> None:
        """Remember every object of the cluster but leftovers, told by kind and object; needs an administrator."""
        self._server = Server("real", kubeconfig, kubeconfig.parent, load_credentials(kubeconfig))
        until(self._is_complete)
        found = self._listing(self._resources())
        self._wanted = {each.path: each.lasting for each in found if not is_leftover(each.kind, each.item)}
        self._collections = {path.rpartition("/")[0] for path in self._wanted}

    def close(self) -> None:
        self._server.close()

    def restore(self) -> None:
        """Delete all other objects; fail if one stays, or if one of those remembered has changed or is gone."""
        give_up = time.monotonic() + SECONDS
        asked = every = list(self._resources())
        while True:
            found = {each.path: each for each in self._listing(asked)}
            others = self._delete_others(found)
            changed = self._changed(found) if asked is every else []
            if asked is every and not others and not changed:
                return
            differing = [each.path for each in others] + changed
            assert time.monotonic() < give_up, f"the cluster is not as it was: {', '.join(differing[-_SHOWN:])}"
            kinds = {each.kind for each in others}
            asked = [(base, resource) for base, resource in every if resource["kind"] in kinds] or every
            time.sleep(_PAUSE_SECONDS)

    def _is_complete(self) -> bool:
        """Whether a server that has just started has made all that it makes once."""
        return all(has_defaults(self._server, name) for name in FIRST_NAMESPACES) and not self._server.is_gone(
            "/api/v1/namespaces/default/services/kubernetes"
        )

    def _delete_others(self, found: Mapping[str, _Found]) -> list[_Found]:
        """Delete what is not remembered; return what was still there."""
        others = sorted((found[path] for path in found.keys() - self._wanted.keys()), key=lambda each: each.turn)
        for path in dict.fromkeys(self._deletion(each) for each in others if each.can_be_deleted):
            self._server.delete(f"{path}?gracePeriodSeconds=0&propagationPolicy=Background")
        filled = {each.item["metadata"].get("namespace") for each in others}
        for each in others:
            if "deletionTimestamp" in each.item["metadata"] and each.item["metadata"]["name"] not in filled:
                self._let_go(each)
        return others

    def _changed(self, found: Mapping[str, _Found]) -> list[str]:
        """Return the paths of what is remembered and is gone, or is otherwise now."""
        return [path for path, item in self._wanted.items() if path not in found or found[path].lasting != item]

    def _deletion(self, each: _Found) -> str:
        """Return what to delete: the object, or its collection in a namespace if nothing remembered is in that.

        The collection of definitions would be deleted at once, and their objects be there again with the next ones.
        """
        is_whole = each.resource["namespaced"] and "deletecollection" in each.resource["verbs"]
        return each.collection if is_whole and each.collection not in self._collections else each.path

    def _let_go(self, each: _Found) -> None:
        """Take the finalizers of what is deleted: nothing is left that would do it, and namespaces wait 5 seconds."""
        if each.kind == "Namespace":
            answer = self._server.ask("PUT", f"{each.path}/finalize", {**each.item, "spec": {"finalizers": []}})
        elif each.item["metadata"].get("finalizers") and each.kind != "CustomResourceDefinition":
            answer = self._server.ask("PATCH", each.path, {"metadata": {"finalizers": None}}, MERGE)
        else:
            return
        # A conflict: the controller of namespaces has just taken them itself, and the next look sees it.
        assert answer.code in {HTTPStatus.OK, HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT}, answer

    def _listing(self, resources: Iterable[tuple[str, Object]]) -> Iterator[_Found]:
        """Yield every object of these resources, but for the accounts of controllers."""
        seen = set()
        for base, resource in resources:
            for item in self._get(f"{base}/{resource['name']}").get("items") or ():
                metadata = item["metadata"]
                place = f"/namespaces/{metadata['namespace']}" if resource["namespaced"] else ""
                found = _Found(f"{base}{place}/{resource['name']}", resource, item)
                if metadata["uid"] not in seen and not found.is_of_controllers:
                    seen.add(metadata["uid"])  # two groups have Events
                    yield found

    def _resources(self) -> Iterator[tuple[str, Object]]:
        """Yield every resource in one version of its group, with the path of that."""
        yield from self._with_names(["/api/v1"])
        for group in self._get("/apis")["groups"]:
            yield from self._with_names([f"/apis/{version['groupVersion']}" for version in group["versions"]])

    def _with_names(self, versions: list[str]) -> Iterator[tuple[str, Object]]:
        names = set()
        for version in versions:
            for resource in self._get(version).get("resources", ()):
                if {"list", "delete"} <= set(resource["verbs"]) and resource["name"] not in names:
                    names.add(resource["name"])
                    yield version, resource

    def _get(self, path: str) -> Object:
        """Return what is at a path; nothing if the definition that it came from has gone meanwhile."""
        answer = self._server.ask("GET", path)
        assert answer.code in {HTTPStatus.OK, HTTPStatus.NOT_FOUND}, answer
        return dict(answer.body) if answer.code == HTTPStatus.OK else {}
