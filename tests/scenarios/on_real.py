"""The world of a user of a real control plane with simulated nodes attached, who has only the rights they need.

The tool runs as ``gpu-provision``, bound to exactly what ``gpu-provision rbac`` prints; kubectl runs as administrator.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

import yaml

from gpu_provision.sandbox.apiserver.requestlog import Request
from tests.real.control_plane import ControlPlane, process
from tests.scenarios.world import CHECKOUT, World, default_fleet

USER = "gpu-provision"
_METHODS: Mapping[str, str] = {
    "create": "POST",
    "update": "PUT",
    "patch": "PATCH",
    "delete": "DELETE",
    "deletecollection": "DELETE",
}


class Cluster(Protocol):
    """A real cluster as a world sees it.

    Attributes:
        kubeconfig: The administrator's.
        account: The kubeconfig of somebody without rights.
        subject: What ``gpu-provision rbac`` is told to bind them.
        directory: For the log of the simulated nodes.
        node_flags: What the simulated nodes are told beside the kubeconfig.
    """

    kubeconfig: Path
    account: Path
    subject: tuple[str, str]
    directory: Path
    node_flags: tuple[str, ...]

    def kubeconfig_of(self, user: str) -> Path:
        """The kubeconfig of somebody without rights; skip the test if nobody can be made up."""

    def audit(self) -> list[Request]:
        """Requests of the tool; skip the test if nobody keeps an audit log."""

    def server_pid(self) -> int:
        """The API server's process; skip the test if it is not ours to touch."""

    def kill_server(self) -> None:
        """End the API server."""

    def start_server(self) -> None:
        """Start it again."""

    def kill_store(self) -> None:
        """End what keeps the API server's objects."""

    def start_store(self) -> None:
        """Start it again, with all that it kept."""


class RealWorld(World):
    """Nobody logs in to simulated hosts here: they are attached to a cluster that runs elsewhere."""

    def __init__(self, folder: Path, cluster: Cluster, **fleet: Any) -> None:
        """Write the files, attach the nodes and bind the user's role; ``fleet`` changes the default fleet."""
        super().__init__(folder, "real", default_fleet(**fleet))
        self._cluster, self._attached = cluster, contextlib.ExitStack()
        self.kubeconfig, self.node_flags = cluster.kubeconfig, cluster.node_flags
        document = yaml.safe_load(self.inventory.read_text())
        document["cluster"] = {"kubeconfig": str(cluster.account), "context": "real"}
        document["host_prerequisites"] = {"enabled": False}
        self.inventory.write_text(yaml.safe_dump(document, sort_keys=False))
        self._attached.enter_context(self._attached_nodes())
        self.edited()

    def close(self) -> None:
        """Take the simulated nodes away."""
        self._attached.close()

    def account(self) -> Path:
        """The kubeconfig of the user who has only the rights they need."""
        return self._cluster.account

    def give_rights(self, *options: str) -> tuple[str, ...]:
        """Give them to the user that every run is of."""
        rights = self.cli("rbac", "-i", str(self.inventory), *options, *self._cluster.subject, check=True).out
        self.kubectl("apply", "-f", "-", stdin=rights)
        return ()

    def kubeconfig_of(self, user: str) -> Path:
        """A certificate for them."""
        return self._cluster.kubeconfig_of(user)

    def edited(self) -> None:
        """Bind the rights that the inventory needs now."""
        self.give_rights()

    def requests(self) -> list[Request]:
        """Every request of this tool, from the audit log; one that is not answered yet is left out, a watch is not."""
        return self._cluster.audit()

    def slow_down(self) -> None:
        """Nothing to do: a real API server and its etcd take their time."""

    def speed_up(self) -> None:
        """Nothing to do, either."""

    def server_pid(self) -> int:
        """The process of kube-apiserver."""
        return self._cluster.server_pid()

    def kill_server(self) -> None:
        """End kube-apiserver; etcd, controllers and nodes go on."""
        self._cluster.kill_server()

    def start_server(self) -> None:
        """Start kube-apiserver again."""
        self._cluster.start_server()

    def kill_everything(self) -> None:
        """Kill kube-apiserver and end etcd."""
        self._cluster.kill_server()
        self._cluster.kill_store()

    def start_everything(self) -> None:
        """Start both again."""
        self._cluster.start_store()
        self._cluster.start_server()

    @contextlib.contextmanager
    def _attached_nodes(self) -> Iterator[None]:
        command = [sys.executable, "-m", "gpu_provision.sandbox.nodes", "--kubeconfig", str(self.kubeconfig)]
        log = self._cluster.directory / "nodes.log"
        environment = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
        command += ["--fleet", str(self.fleet), *self.node_flags]
        with process(log, command, environment=environment) as nodes:
            self.until(lambda: nodes.poll() is not None or b"are registered" in log.read_bytes())
            assert nodes.poll() is None, log.read_text()
            yield


class OwnCluster:
    """A control plane that a test started: its audit log is read and its API server ended as tests need it."""

    def __init__(self, plane: ControlPlane) -> None:
        """Read nothing yet."""
        self.kubeconfig, self.account, self.directory = plane.kubeconfig, plane.kubeconfig_of(USER), plane.directory
        self.subject = ("--user", USER)
        self._plane, self._log = plane, _AuditLog(plane.audit_log)
        shown = plane.authority.issue("nodes", "127.0.0.1")
        self.node_flags: tuple[str, ...]
        self.node_flags = "--tls-cert-file", str(shown.certificate), "--tls-private-key-file", str(shown.key)

    def kubeconfig_of(self, user: str) -> Path:
        """A certificate of the control plane's own authority."""
        return self._plane.kubeconfig_of(user)

    def audit(self) -> list[Request]:
        """Requests of the tool."""
        return self._log.requests()

    def server_pid(self) -> int:
        """The process of kube-apiserver."""
        return self._plane.programs["kube-apiserver"].pid

    def kill_server(self) -> None:
        """End kube-apiserver."""
        self._plane.stop_apiserver()

    def start_server(self) -> None:
        """Start kube-apiserver again."""
        self._plane.start_apiserver()

    def kill_store(self) -> None:
        """End etcd."""
        self._plane.stop_etcd()

    def start_store(self) -> None:
        """Start etcd again."""
        self._plane.start_etcd()


class _AuditLog:
    """The requests of one user agent in an audit log that grows; each line is read once."""

    def __init__(self, path: Path) -> None:
        self._path, self._read, self._found = path, 0, dict[str, Request]()

    def requests(self) -> list[Request]:
        with self._path.open("rb") as log:
            log.seek(self._read)
            complete, _, _ = log.read().rpartition(b"\n")
        self._read += len(complete)
        for line in complete.splitlines():
            if b'"userAgent":"gpu-provision"' in line:
                event = json.loads(line)
                self._found[event["auditID"]] = _request(event)
        return list(self._found.values())


def _request(event: dict[str, Any]) -> Request:
    address = urlsplit(event["requestURI"])
    return Request(
        time=event["requestReceivedTimestamp"],
        verb=_METHODS.get(event["verb"], "GET"),
        path=address.path,
        query=address.query,
        agent=event["userAgent"],
        user=event["user"].get("username", ""),  # nobody, if the token was wrong
        code=event.get("responseStatus", {}).get("code", 0),
        dry_run="dryRun=" in address.query,
    )
