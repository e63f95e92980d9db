"""A cluster as acceptance tests read it: plain GET requests through the ``kubernetes`` package."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from gpu_provision.cluster.get import get
from gpu_provision.cluster.kubeconfig import api_client
from gpu_provision.cluster.locate import locate
from gpu_provision.cluster.retrying import FIRST_CONTACT_SECONDS, RETRY_SECONDS
from gpu_provision.model.cluster import Manifest
from gpu_provision.model.inventory import Inventory


class GpuCluster:
    """The cluster of an inventory. Objects are plain dicts, as ``kubectl get -o json`` prints them.

    Attributes:
        api: The ``kubernetes.client.ApiClient``, for the package's own APIs: ``CoreV1Api(gpu_cluster.api)``.
        namespace: The operands' namespace.
    """

    def __init__(self, api: Any, *, namespace: str) -> None:
        """Keep a client; `open_cluster` makes one."""
        self.api, self.namespace = api, namespace

    def get(self, path: str, **query: str) -> Any:
        """Return the JSON that the API server has at a path, such as ``/api/v1/nodes/gpu-01``.

        Raises:
            Unreachable, Refused, Rejected: As the API server answers.
        """
        return json.loads(get(self.api, path, query, accept="application/json", retry_seconds=RETRY_SECONDS))

    def text(self, path: str, **query: str) -> str:
        """Return the text at a path, such as a pod's log. Raises like `get`."""
        return get(self.api, path, query, accept="*/*", retry_seconds=FIRST_CONTACT_SECONDS).decode(errors="replace")

    def nodes(self) -> list[Manifest]:
        """Return all nodes."""
        return list(self.get("/api/v1/nodes")["items"])

    def node(self, name: str) -> Manifest:
        """Return one node. Raises NotFound."""
        return dict(self.get(f"/api/v1/nodes/{name}"))

    def daemonsets(self, *, labels: Mapping[str, str]) -> list[Manifest]:
        """Return the DaemonSets of all namespaces that carry the labels."""
        return list(self.get("/apis/apps/v1/daemonsets", labelSelector=_selector(labels))["items"])

    def pods(self, *, node: str, labels: Mapping[str, str]) -> list[Manifest]:
        """Return the operands' pods on a node that carry the labels."""
        path, where = f"/api/v1/namespaces/{self.namespace}/pods", f"spec.nodeName={node}"
        return list(self.get(path, labelSelector=_selector(labels), fieldSelector=where)["items"])


def open_cluster(inventory: Inventory) -> GpuCluster:
    """Return the inventory's cluster, which answers. Raises Unreachable, Refused, UsageError."""
    cluster = GpuCluster(api_client(*locate(inventory)), namespace=inventory.cluster.namespace)
    get(cluster.api, "/version", {}, accept="application/json", retry_seconds=FIRST_CONTACT_SECONDS)
    return cluster


def _selector(labels: Mapping[str, str]) -> str:
    return ",".join(f"{key}={value}" for key, value in labels.items())
