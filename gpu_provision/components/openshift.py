"""What OpenShift adds to the driver container: the cluster-wide proxy, its certificates, and the version."""

from __future__ import annotations

from typing import Any, NamedTuple

from gpu_provision.components import labels, pods
from gpu_provision.components.objects import manifest
from gpu_provision.components.targets import COREOS
from gpu_provision.model.cluster import Manifest, RenderContext, Target

_TRUSTED_CA = "gpu-operator-trusted-ca"  # the GPU Operator's name
_INJECT = {"config.openshift.io/inject-trusted-cabundle": "true"}
_BUNDLE, _CA_DIRECTORY, _CA_FILE = "ca-bundle.crt", "/etc/pki/ca-trust/extracted/pem", "tls-ca-bundle.pem"


class ClusterSettings(NamedTuple):
    """What the driver container gets from an OpenShift cluster; empty on plain Kubernetes."""

    environment: dict[str, str]
    volumes: list[dict[str, Any]]
    mounts: list[dict[str, Any]]


def settings_of(target: Target, context: RenderContext) -> ClusterSettings:
    """Return the cluster's settings for the driver of a node; a precompiled driver downloads nothing and has none."""
    found = context.openshift
    if found is None or target.pool.driver.use_precompiled:
        return ClusterSettings({}, [], [])
    proxy, version = found.proxy, _version(target, context)
    addresses = {"HTTP_PROXY": proxy.http, "HTTPS_PROXY": proxy.https, "NO_PROXY": proxy.no_proxy}
    proxies = {name: value for key, value in addresses.items() if value for name in (key, key.lower())}
    environment = {**({"OPENSHIFT_VERSION": version} if version else {}), **proxies}
    if not proxy.trusted_ca:
        return ClusterSettings(environment, [], [])
    volume = pods.config_volume(_TRUSTED_CA, items=[(_BUNDLE, _CA_FILE)])
    # The user's own certificates are files of the same directory, for which there is no place in a volume over it.
    beside = target.pool.driver.cert_config
    mount = pods.mount(
        _TRUSTED_CA,
        f"{_CA_DIRECTORY}/{_CA_FILE}" if beside else _CA_DIRECTORY,
        read_only=True,
        sub_path=_CA_FILE if beside else "",
    )
    return ClusterSettings(environment, [volume], [mount])


def _version(target: Target, context: RenderContext) -> str:
    """Return the OpenShift version of a node, such as ``4.18``; that of the cluster where the node does not tell.

    The node's own one stays while the cluster is updated, so that a driver is not replaced twice.
    """
    if target.os and target.os.id == COREOS:
        return target.os.version
    of_cluster = context.openshift.version if context.openshift else ""
    return target.labels.get(labels.NFD_OPENSHIFT) or ".".join(of_cluster.split(".")[:2])


def trusted_ca(context: RenderContext) -> list[Manifest]:
    """Return the ConfigMap that the cluster's network operator fills with certificates, if the proxy has own ones."""
    if context.openshift is None or not context.openshift.proxy.trusted_ca:
        return []
    return [manifest(("v1", "ConfigMap"), _TRUSTED_CA, namespace=context.namespace, labels=_INJECT)]
