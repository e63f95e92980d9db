"""A contributor's own throw-away cluster as the place of scenarios: GPU_PROVISION_TEST_KUBECONFIG names its kubeconfig.

It needs no nodes of its own, an API server on this machine (which asks the simulated nodes for logs on loopback) and
an administrator's credentials. Before each scenario, what earlier ones left is removed.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any, NoReturn

import pytest
import yaml

from gpu_provision.sandbox.apiserver.requestlog import Request
from gpu_provision.sandbox.nodes.node import SIMULATED

_HOME, _ACCOUNT = "gpu-provision-tests", "gpu-provision"
_NAMESPACES = ("gpu-operator-resources", "node-feature-discovery")
_CLUSTER_KINDS = "runtimeclasses,customresourcedefinitions,clusterroles,clusterrolebindings"
_OURS = "app.kubernetes.io/managed-by=gpu-provision"
_HOURS = 24 * 3600


class GivenCluster:
    """Somebody else's control plane: nobody reads its audit log, nobody ends its API server."""

    def __init__(self, kubeconfig: Path, directory: Path) -> None:
        """Empty it and make an account that has no rights yet; its kubeconfig lies in ``directory``."""
        self.kubeconfig, self.directory = kubeconfig, directory
        self.subject = ("--service-account", f"{_HOME}:{_ACCOUNT}")
        self.account = directory / f"{_ACCOUNT}.kubeconfig"
        self.node_flags: tuple[str, ...] = ()
        directory.mkdir(parents=True, exist_ok=True)
        self._empty()
        self._make_account()

    def kubeconfig_of(self, user: str) -> Path:
        """Skip the test."""
        _skip(f"makes the user {user} up")

    def audit(self) -> list[Request]:
        """Skip the test."""
        _skip("reads the API server's audit log")

    def server_pid(self) -> int:
        """Skip the test."""
        _skip("touches the API server's process")

    def kill_server(self) -> None:
        """Skip the test."""
        _skip("ends the API server")

    def start_server(self) -> None:
        """Skip the test."""
        _skip("starts the API server")

    def kill_store(self) -> None:
        """Skip the test."""
        _skip("ends what keeps the API server's objects")

    def start_store(self) -> None:
        """Skip the test."""
        _skip("starts what keeps the API server's objects")

    def _kubectl(self, *arguments: str, stdin: Any = None) -> str:
        body = json.dumps(stdin) if stdin is not None else None
        command = ["kubectl", "--kubeconfig", str(self.kubeconfig), *arguments]
        done = subprocess.run(command, input=body, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def _empty(self) -> None:
        """Remove what scenarios make; nodes first, lest new pods are bound to them, which no kubelet would end."""
        nodes = json.loads(self._kubectl("get", "nodes", "-o", "json"))["items"]
        own = [node["metadata"]["name"] for node in nodes if SIMULATED not in node["metadata"].get("annotations", {})]
        assert not own, f"nothing was touched: {self.kubeconfig} is of a cluster with nodes of its own: {own}"
        self._kubectl("delete", "nodes", "--all", "--ignore-not-found")
        at_once = ("--force", "--grace-period=0", "--ignore-not-found")
        for namespace in (*_NAMESPACES, "default"):
            self._kubectl("delete", "pods", "--all", "-n", namespace, *at_once)
        self._kubectl("delete", "namespaces", *_NAMESPACES, "--ignore-not-found")
        self._kubectl("delete", _CLUSTER_KINDS, "-l", _OURS, "--ignore-not-found")
        self._kubectl("delete", "runtimeclass", "nvidia", "--ignore-not-found")
        self._kubectl("delete", "configmap", "sandbox-faults", "-n", "kube-system", "--ignore-not-found")

    def _make_account(self) -> None:
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": _HOME}}
        account = {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": {"name": _ACCOUNT, "namespace": _HOME},
        }
        self._kubectl("apply", "-f", "-", stdin={"apiVersion": "v1", "kind": "List", "items": [namespace, account]})
        path = f"/api/v1/namespaces/{_HOME}/serviceaccounts/{_ACCOUNT}/token"
        asked = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": _HOURS},
        }
        token = json.loads(self._kubectl("create", "--raw", path, "-f", "-", stdin=asked))["status"]["token"]
        config = json.loads(self._kubectl("config", "view", "--raw", "--minify", "--flatten", "-o", "json"))
        cluster = config["clusters"][0]
        config["users"] = [{"name": _ACCOUNT, "user": {"token": token}}]
        config["contexts"] = [{"name": "real", "context": {"cluster": cluster["name"], "user": _ACCOUNT}}]
        config["current-context"] = "real"
        self.account.write_text(yaml.safe_dump(config))


def _skip(what: str) -> NoReturn:
    pytest.skip(f"it {what}; GPU_PROVISION_TEST_KUBECONFIG names a cluster that was not started here")
