"""A client for scenarios: reads and changes objects over one connection, named with kubectl's words.

`make test` needs no kubectl, and each kubectl costs a tenth of a second of a processor.
"""

from __future__ import annotations

import argparse
import http
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

import yaml

from gpu_provision.sandbox.client import load_credentials
from tests.contract.client import MERGE, STRATEGIC, Object, Server, Watch, until

_TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"


class _Resource(NamedTuple):
    version: str
    told: Mapping[str, Any]

    @property
    def words(self) -> set[str]:
        return {self.told["name"], self.told["kind"].lower(), *self.told.get("shortNames", ())}

    def path(self, namespace: str, name: str = "") -> str:
        """Return the path of an object, or of all; without a namespace those of every namespace."""
        base = f"/apis/{self.version}" if "/" in self.version else f"/api/{self.version}"
        place = f"{base}/namespaces/{namespace}" if namespace and self.told["namespaced"] else base
        return "/".join((place, self.told["name"], *([name] if name else ())))


class Client:
    """Asks the API server of a kubeconfig; a refusal fails.

    Where a method takes words, they are those of ``kubectl get``: kinds, names, ``-n``, ``-A``, ``-l`` and
    ``--field-selector``.
    """

    def __init__(self, kubeconfig: Path) -> None:
        self._server = Server("any", kubeconfig, kubeconfig.parent, load_credentials(kubeconfig))
        self._known: list[_Resource] = []

    def close(self) -> None:
        self._server.close()

    def get(self, *words: str) -> Any:
        asked = _parsed(words)
        if not asked.names:
            return {"kind": "List", "items": list(self._listed(asked))}
        (path,) = self._paths(asked)
        return self._server.get(path)

    def exists(self, *words: str) -> bool:
        """Say whether the objects that are named are there, or else the kinds."""
        asked = _parsed(words)
        is_known = all(self._resources(kind) for kind in asked.kinds)
        return is_known and not (asked.names and any(map(self._server.is_gone, self._paths(asked))))

    @property
    def version(self) -> str:
        return f"v{self._server.release}"

    def serves(self, version: str) -> bool:
        return not self._server.is_gone(f"/apis/{version}")

    def everything(self) -> Iterator[Object]:
        """Yield every object of every kind that can be listed."""
        self._discover()
        preferred = {
            (resource.version.rpartition("/")[0], resource.told["name"]): resource for resource in self._known[::-1]
        }
        for resource in preferred.values():
            if "list" not in resource.told["verbs"]:
                continue
            answer = self._server.ask("GET", resource.path(""))
            if answer.code != http.HTTPStatus.NOT_FOUND:  # its definition was deleted
                assert answer.code == http.HTTPStatus.OK, answer
                yield from _items(answer.body)

    def watch(self, *words: str) -> Watch:
        """Watch all objects of a kind; the first events are those that are there."""
        asked = _parsed(words)
        return self._server.watch(self._resource(asked.kinds[0]).path(asked.namespace))

    def table(self, *words: str) -> str:
        asked = _parsed(words)
        answer = self._server.ask("GET", self._resource(asked.kinds[0]).path(asked.namespace), accept=_TABLE)
        return str([row["cells"] for row in answer.body["rows"]])

    def logs(self, pod: str, namespace: str) -> str:
        answer = self._server.ask("GET", f"/api/v1/namespaces/{namespace}/pods/{pod}/log", accept="*/*")
        assert answer.code == http.HTTPStatus.OK, answer
        return str(answer.body)

    def apply(self, manifest: Object | str, manager: str = "kubectl") -> None:
        """Apply an object, or YAML of several, on the server's side; fields of other managers are taken over."""
        for item in yaml.safe_load_all(manifest) if isinstance(manifest, str) else (manifest,):
            answer = self._server.apply(self._path_of(item), item, manager=manager, force=True)
            assert answer.code in (http.HTTPStatus.OK, http.HTTPStatus.CREATED), answer

    def create(self, manifests: Iterable[Object], manager: str = "kubectl-create") -> None:
        for item in manifests:
            collection = self._path_of(item).rpartition("/")[0]
            self._server.make(f"{collection}?{urlencode({'fieldManager': manager})}", item)

    def replace(self, manifests: Iterable[Object], manager: str) -> None:
        """Replace objects by others, whatever their version."""
        for item in manifests:
            answer = self._server.ask("PUT", f"{self._path_of(item)}?{urlencode({'fieldManager': manager})}", item)
            assert answer.code == http.HTTPStatus.OK, answer

    def patch(
        self, *words: str, patch: Any, manager: str = "kubectl-patch", content_type: str = MERGE, part: str = ""
    ) -> None:
        """Patch objects, or a ``part`` of them such as their status."""
        for path in self._paths(_parsed(words)):
            whole = "/".join(filter(None, (path, part)))
            self._server.patch(f"{whole}?{urlencode({'fieldManager': manager})}", patch, content_type)

    def label(self, *words: str, labels: Mapping[str, str | None], manager: str = "kubectl-label") -> None:
        """Set labels, or take away those that are None."""
        self.patch(*words, patch={"metadata": {"labels": labels}}, manager=manager)

    def annotate(self, *words: str, annotations: Mapping[str, str | None]) -> None:
        self.patch(*words, patch={"metadata": {"annotations": annotations}}, manager="kubectl-annotate")

    def cordon(self, *nodes: str) -> None:
        self.patch("nodes", *nodes, patch={"spec": {"unschedulable": True}}, manager="kubectl-cordon")

    def uncordon(self, *nodes: str) -> None:
        self.patch("nodes", *nodes, patch={"spec": {"unschedulable": None}}, manager="kubectl-uncordon")

    def set_image(self, *words: str, image: str) -> None:
        containers = self.get(*words)["spec"]["template"]["spec"]["containers"]
        named = [{"name": container["name"], "image": image} for container in containers]
        patch = {"spec": {"template": {"spec": {"containers": named}}}}
        self.patch(*words, patch=patch, manager="kubectl-set", content_type=STRATEGIC)

    def delete(self, *words: str, wait: bool = True, **options: Any) -> None:
        """Delete objects and wait until they are gone; options are the API's, such as gracePeriodSeconds."""
        uids = {path: self._uid(path) for path in self._paths(_parsed(words))}
        for path in uids:
            self._server.delete(path, {"propagationPolicy": "Background", **options})
        if wait:
            until(lambda: not any(uid and self._uid(path) == uid for path, uid in uids.items()))

    def _uid(self, path: str) -> str:
        answer = self._server.ask("GET", path)
        return str(answer.body["metadata"]["uid"]) if answer.code == http.HTTPStatus.OK else ""

    def _paths(self, asked: argparse.Namespace) -> list[str]:
        if not asked.names:
            return list(map(self._path_of, self._listed(asked)))
        found = map(self._resource, asked.kinds)
        return [resource.path(asked.namespace, name) for resource in found for name in asked.names]

    def _path_of(self, item: Object) -> str:
        meta, resource = item["metadata"], until(lambda: self._served(item))
        return str(resource.path(meta.get("namespace", "default"), meta["name"]))

    def _served(self, item: Object) -> _Resource | None:
        """Return the resource of an object; None for a moment, while its definition is new."""
        found = self._resources(item["kind"].lower())
        return next((resource for resource in found if resource.version == item["apiVersion"]), None)

    def _listed(self, asked: argparse.Namespace) -> Iterator[Object]:
        selectors = {"labelSelector": asked.selector, "fieldSelector": asked.field_selector}
        query = urlencode({key: value for key, value in selectors.items() if value})
        for kind in asked.kinds:
            path = self._resource(kind).path("" if asked.all_namespaces else asked.namespace)
            yield from _items(self._server.get(f"{path}?{query}"))

    def _resource(self, kind: str) -> _Resource:
        found = self._resources(kind)
        assert found, f"the server has no {kind}"
        return found[0]

    def _resources(self, kind: str) -> list[_Resource]:
        """Return the resources that a word names, the preferred one first; definitions may be new."""
        for look in (lambda: None, self._discover):
            look()
            if found := [resource for resource in self._known if kind in resource.words]:
                return found
        return []

    def _discover(self) -> None:
        groups = self._server.get("/apis")["groups"]
        preferred = [group["preferredVersion"]["groupVersion"] for group in groups]
        others = [each["groupVersion"] for group in groups for each in group["versions"]]
        self._known = []
        for version in dict.fromkeys(("v1", *preferred, *others)):
            answer = self._server.ask("GET", f"/apis/{version}" if "/" in version else f"/api/{version}")
            served = answer.body["resources"] if answer.code == http.HTTPStatus.OK else ()
            self._known += [_Resource(version, told) for told in served if "/" not in told["name"]]


def _items(found: Object) -> Iterator[Object]:
    """Yield the objects of a list, each with its kind."""
    common = {"apiVersion": found["apiVersion"], "kind": found["kind"].removesuffix("List")}
    yield from ({**common, **item} for item in found["items"])


def _parsed(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("kinds")
    parser.add_argument("names", nargs="*")
    parser.add_argument("-n", "--namespace", default="default")
    parser.add_argument("-A", "--all-namespaces", action="store_true")
    parser.add_argument("-l", "--selector", default="")
    parser.add_argument("--field-selector", default="")
    asked = parser.parse_intermixed_args(words)
    kinds, _, name = asked.kinds.partition("/")
    asked.kinds, asked.names = kinds.split(","), [*([name] if name else ()), *asked.names]
    return asked
