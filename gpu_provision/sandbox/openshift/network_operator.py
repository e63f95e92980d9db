"""The part of the cluster network operator that concerns proxies: effective settings, and injected CA bundles."""

from __future__ import annotations

from gpu_provision.sandbox import objects
from gpu_provision.sandbox.api import CONFIG_MAPS, ApiResource, Object
from gpu_provision.sandbox.controllers.manager import ControllerManager, QueueController
from gpu_provision.sandbox.objects import Key

PROXIES = ApiResource("config.openshift.io", "v1", "proxies")
_INJECT = "config.openshift.io/inject-trusted-cabundle"
_BUNDLE = "ca-bundle.crt"
_CONFIG_NAMESPACE = "openshift-config"
_NO_PROXY = (".cluster.local", ".svc", "10.128.0.0/14", "127.0.0.1", "172.30.0.0/16", "localhost")
"""What every cluster adds: names of Services, the networks of pods and Services."""
SYSTEM_BUNDLE = """\
# The certificates of RHCOS itself
-----BEGIN CERTIFICATE-----
U0FOREJPWA==
-----END CERTIFICATE-----
"""


def effective_proxy(spec: Object) -> Object:
    """Return the status of a Proxy: what programs are to use; empty without a proxy."""
    if not (spec.get("httpProxy") or spec.get("httpsProxy")):
        return {}
    own = [part for part in str(spec.get("noProxy", "")).split(",") if part]
    status = {key: spec[key] for key in ("httpProxy", "httpsProxy") if spec.get(key)}
    return {**status, "noProxy": ",".join(sorted({*own, *_NO_PROXY}))}


def _wants_bundle(config_map: Object) -> bool:
    return objects.labels(config_map).get(_INJECT) == "true"


class TrustedBundles(QueueController[Key]):
    """Fills labelled ConfigMaps with the trusted certificates, and the status of the Proxy."""

    name = "cluster-network-operator"
    watches = (CONFIG_MAPS, PROXIES)

    def __init__(self, cluster: ControllerManager) -> None:
        """Follow the proxy and ConfigMaps."""
        super().__init__(cluster)
        self._maps, self._proxies = cluster.informer(CONFIG_MAPS), cluster.informer(PROXIES)
        self._maps.on_change(self._on_map)
        self._proxies.on_change(lambda *_: self._requeue_all())

    def _on_map(self, _: Object | None, new: Object | None) -> None:
        if new is None:
            return
        if objects.namespace(new) == _CONFIG_NAMESPACE:
            self._requeue_all()
        elif _wants_bundle(new):
            self.queue.add(objects.key_of(new))

    def _requeue_all(self) -> None:
        for key in (*self._proxies.objects, *(key for key, each in self._maps.objects.items() if _wants_bundle(each))):
            self.queue.add(key)

    async def sync(self, key: Key) -> None:
        """Complete the Proxy, or give one ConfigMap the certificates."""
        proxy = self._proxies.objects.get(key)
        if proxy is not None:
            status = {"httpProxy": None, "httpsProxy": None, "noProxy": None, **effective_proxy(proxy["spec"])}
            await self.cluster.write_status(PROXIES, proxy, status)
            return
        found = self._maps.objects.get(key)
        if found and _wants_bundle(found) and (found.get("data") or {}).get(_BUNDLE) != self._bundle():
            await self.cluster.patch(CONFIG_MAPS, found, {"data": {_BUNDLE: self._bundle()}})

    def _bundle(self) -> str:
        proxy = self._proxies.objects.get(("", "cluster")) or {}
        name = objects.value_at(proxy, "spec", "trustedCA", "name") or ""
        own = self._maps.objects.get((_CONFIG_NAMESPACE, name)) or {}
        return str((own.get("data") or {}).get(_BUNDLE, "")) + SYSTEM_BUNDLE
