"""A contributor's own throw-away cluster as the place of scenarios: GPU_PROVISION_TEST_KUBECONFIG names its kubeconfig.

It needs no nodes of its own, an API server on this machine (which asks the simulated nodes for logs on loopback) and
an administrator's credentials. One worker alone may use it.
"""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path

import yaml

from gpu_provision.sandbox.client import load_credentials
from gpu_provision.sandbox.kubelet.node import SIMULATED
from tests.contract.client import Object, Server
from tests.real.access import write_private
from tests.scenarios.emptying import FIRST_NAMESPACES, Bare
from tests.scenarios.on_real import Cluster

_HOME, _ACCOUNT = "kube-system", "gpu-provision"  # whose accounts stay when the cluster is emptied
_HOURS = 24 * 3600


@contextlib.contextmanager
def given_cluster(kubeconfig: Path, directory: Path) -> Iterator[Cluster]:
    """Take a cluster without nodes of its own, remove what killed runs left, and make an account without rights."""
    directory.mkdir(parents=True, exist_ok=True)
    account = directory / f"{_ACCOUNT}.kubeconfig"
    server = Server("real", kubeconfig, directory, load_credentials(kubeconfig))
    with contextlib.closing(server):
        nodes = server.get("/api/v1/nodes")["items"]
        own = [node["metadata"]["name"] for node in nodes if SIMULATED not in node["metadata"].get("annotations", {})]
        assert not own, f"nothing was touched: {kubeconfig} is of a cluster with nodes of its own: {own}"
        write_private(account, yaml.safe_dump(_account(server)).encode())
    with contextlib.closing(Bare(kubeconfig, _is_left)) as bare:
        bare.restore()
        yield Cluster(bare, kubeconfig, account, ("--service-account", f"{_HOME}:{_ACCOUNT}"))


def _is_left(kind: str, item: Object) -> bool:
    """Whether a run that was killed has left an object."""
    metadata = item["metadata"]
    namespace = metadata["name"] if kind == "Namespace" else metadata.get("namespace", "")
    if namespace in {"", *FIRST_NAMESPACES}:
        ours = metadata.get("labels", {}).get("app.kubernetes.io/managed-by") == "gpu-provision"
        return ours or kind in {"Node", "Pod", "Deployment"} or metadata["name"] == "sandbox-faults"
    return True


def _account(server: Server) -> Object:
    """Make the account that the tool runs as; return its kubeconfig."""
    accounts = f"/api/v1/namespaces/{_HOME}/serviceaccounts"
    made = server.ask("POST", accounts, {"metadata": {"name": _ACCOUNT}})
    assert made.code in {HTTPStatus.CREATED, HTTPStatus.CONFLICT}, made
    token = server.make(f"{accounts}/{_ACCOUNT}/token", {"spec": {"expirationSeconds": _HOURS}})["status"]["token"]
    cluster: Object = {"server": server.access.server, "insecure-skip-tls-verify": server.access.insecure}
    if server.access.authority:
        cluster["certificate-authority-data"] = base64.b64encode(server.access.authority).decode()
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "real", "cluster": cluster}],
        "users": [{"name": _ACCOUNT, "user": {"token": token}}],
        "contexts": [{"name": "real", "context": {"cluster": "real", "user": _ACCOUNT}}],
        "current-context": "real",
    }
