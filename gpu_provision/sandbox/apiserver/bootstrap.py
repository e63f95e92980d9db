"""What exists in every cluster from the start, and in every namespace."""

from __future__ import annotations

from importlib import resources as files

import yaml

from gpu_provision.sandbox.api import Object
from gpu_provision.sandbox.apiserver.item import Item
from gpu_provision.sandbox.apiserver.registry import Registry, WriteOptions
from gpu_provision.sandbox.apiserver.resources import ResourceInfo
from gpu_provision.sandbox.apiserver.status import StatusError
from gpu_provision.sandbox.apiserver.targets import Target

_OPTIONS = WriteOptions(manager="kube-apiserver")
_FURNITURE = ("default", "kube-root-ca.crt")


def bootstrap(registry: Registry, authority: str) -> None:
    """Create what is missing of the first objects; ``authority`` is the PEM text of the server's CA."""
    rooms = _Rooms(registry, authority)
    registry.on_change("/namespaces", rooms.changed)
    for storage in ("/serviceaccounts", "/configmaps"):
        registry.on_change(storage, rooms.missed)
    text = (files.files(__package__) / "bootstrap.yaml").read_text("utf-8")
    for obj in yaml.safe_load_all(text):
        group, _, version = obj["apiVersion"].rpartition("/")
        info = next(
            info for info in registry.catalog if (info.group, info.version, info.kind) == (group, version, obj["kind"])
        )
        _ensure(registry, info, obj)
    for item in registry.store.select("/namespaces"):
        rooms.furnish(item.object["metadata"]["name"])


def _ensure(registry: Registry, info: ResourceInfo, obj: Object) -> None:
    namespace = obj["metadata"].get("namespace", "")
    if registry.store.get(info.storage, obj["metadata"]["name"], namespace) is None:
        registry.create(Target(info, namespace), obj, _OPTIONS)


class _Rooms:
    """Furnishes namespaces: the service account ``default`` and the ConfigMap ``kube-root-ca.crt``."""

    def __init__(self, registry: Registry, authority: str) -> None:
        self._registry, self._authority = registry, authority

    def changed(self, before: Item | None, after: Item | None) -> None:
        if before is None and after is not None:
            self.furnish(after.object["metadata"]["name"])

    def missed(self, before: Item | None, after: Item | None) -> None:
        if after is None and before is not None and before.object["metadata"]["name"] in _FURNITURE:
            self.furnish(before.object["metadata"]["namespace"])

    def furnish(self, namespace: str) -> None:
        account: Object = {"metadata": {"name": "default", "namespace": namespace}}
        root: Object = {
            "metadata": {"name": "kube-root-ca.crt", "namespace": namespace},
            "data": {"ca.crt": self._authority},
        }
        for plural, obj in (("serviceaccounts", account), ("configmaps", root)):
            info = self._registry.catalog.find("", "v1", plural)
            if info is not None:
                self._furnish(info, obj)

    def _furnish(self, info: ResourceInfo, obj: Object) -> None:
        try:
            _ensure(self._registry, info, obj)
        except StatusError as refusal:
            if refusal.code not in (403, 404):  # the namespace is being deleted already, or gone
                raise
