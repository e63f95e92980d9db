"""The world of a user of a real control plane with simulated nodes attached, who has only the rights they need.

The tool runs as ``gpu-provision``, bound to exactly what ``gpu-provision rbac`` prints; kubectl runs as administrator.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from gpu_provision.sandbox.apiserver.request_log import LoggedRequest
from tests.real.control_plane import ControlPlane, Site, control_plane
from tests.real.processes import process
from tests.scenarios.emptying import Bare
from tests.scenarios.world import ADOPTER, CHECKOUT, OPERATOR, World, default_fleet

USER = "gpu-provision"
_METHODS: Mapping[str, str] = {
    "create": "POST",
    "update": "PUT",
    "patch": "PATCH",
    "delete": "DELETE",
    "deletecollection": "DELETE",
}


@dataclass(frozen=True, slots=True)
class Cluster:
    """A real cluster, for one world at a time."""

    bare: Bare
    kubeconfig: Path  # an administrator's
    account: Path  # the kubeconfig of an account without rights
    subject: tuple[str, str]  # flags that have ``gpu-provision rbac`` bind that account
    node_flags: tuple[str, ...] = ()
    plane: ControlPlane | None = None  # if tests started it: its audit log can be read, and its programs ended


@contextlib.contextmanager
def own_cluster(directory: Path) -> Iterator[Cluster]:
    with (
        control_plane(directory, Site(users={OPERATOR: "", ADOPTER: ""})) as plane,
        contextlib.closing(Bare(plane.kubeconfig)) as bare,
    ):
        shown = plane.authority.issue("nodes", "127.0.0.1")
        flags = "--tls-cert-file", str(shown.certificate), "--tls-private-key-file", str(shown.key)
        yield Cluster(bare, plane.kubeconfig, plane.kubeconfig_of(USER), ("--user", USER), flags, plane)


class Lender:
    """Lends a cluster to one world at a time, and empties it afterwards.

    A control plane of which a world has ended a program, and a cluster that does not get empty, are not lent again.
    """

    def __init__(self, make: Callable[[], contextlib.AbstractContextManager[Cluster]]) -> None:
        self._make, self._running, self._is_lent = make, contextlib.ExitStack(), False
        self._free: Cluster | None = None

    def close(self) -> None:
        self._running.close()

    @contextlib.contextmanager
    def lend(self) -> Iterator[Cluster]:
        assert not self._is_lent, "there is one real cluster, and another world has it"
        cluster = self._free or self._running.enter_context(self._make())
        programs = list(cluster.plane.programs.values()) if cluster.plane else []
        self._free, self._is_lent = None, True
        try:
            yield cluster
            if all(program.poll() is None for program in programs):
                cluster.bare.restore()
                self._free = cluster
        finally:
            self._is_lent = False
            if self._free is None:
                self._running.close()


class RealWorld(World):
    """Simulated hosts have no login here: they are attached to a cluster that runs elsewhere."""

    def __init__(self, folder: Path, cluster: Cluster, **fleet: Any) -> None:
        """Write the files, attach the nodes and bind the user's role; ``fleet`` changes the default fleet."""
        super().__init__(folder, "real", default_fleet(**fleet))
        self._cluster, self._attached = cluster, contextlib.ExitStack()
        self.audit_log = cluster.plane.audit_log if cluster.plane else None
        self._audit = AuditLog(self.audit_log) if self.audit_log else None
        self.kubeconfig, self.node_flags = cluster.kubeconfig, cluster.node_flags
        document = yaml.safe_load(self.inventory.read_text())
        document["cluster"] = {"kubeconfig": str(cluster.account), "context": "real"}
        document["host_prerequisites"] = {"enabled": False}
        self.inventory.write_text(yaml.safe_dump(document, sort_keys=False))
        self._attached.enter_context(self._attached_nodes())
        self.edited()

    def close(self) -> None:
        self._attached.close()

    def account(self) -> Path:
        """The kubeconfig of the user who has only the rights they need."""
        return self._cluster.account

    def give_rights(self, *options: str) -> tuple[str, ...]:
        rights = self.cli("rbac", "-i", str(self.inventory), *options, *self._cluster.subject, check=True).out
        self.submit(rights)
        return ()

    def kubeconfig_of(self, user: str) -> Path:
        return self._plane(f"makes the user {user} up").kubeconfig_of(user)

    def edited(self) -> None:
        self.give_rights()

    def requests(self) -> list[LoggedRequest]:
        """Every request of this tool, from the audit log; one that is not answered yet is left out, a watch is not."""
        self._plane("reads the API server's audit log")
        assert self._audit is not None
        return self._audit.requests()

    def slow_down(self) -> None:
        """Nothing to do: a real API server and its etcd take their time."""

    def speed_up(self) -> None:
        """Nothing to do, either."""

    def server_pid(self) -> int:
        return self._plane("touches the API server's process").programs["kube-apiserver"].pid

    def kill_server(self) -> None:
        self._plane("ends the API server").stop_apiserver()

    def start_server(self) -> None:
        self._plane("starts the API server").start_apiserver()

    def kill_everything(self) -> None:
        self.kill_server()
        self._plane("ends etcd").stop_etcd()

    def start_everything(self) -> None:
        self._plane("starts etcd").start_etcd()
        self.start_server()

    def _plane(self, what: str) -> ControlPlane:
        """Return the control plane; skip the test if it is not the tests' own."""
        if self._cluster.plane is None:
            pytest.skip(f"it {what}; GPU_PROVISION_TEST_KUBECONFIG names a cluster that was not started here")
        return self._cluster.plane

    @contextlib.contextmanager
    def _attached_nodes(self) -> Iterator[None]:
        command = [sys.executable, "-m", "gpu_provision.sandbox.attach", "--kubeconfig", str(self.kubeconfig)]
        log = self.folder / "nodes.log"
        environment = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
        command += ["--fleet", str(self.fleet), *self.node_flags]
        with process(log, command, environment=environment) as nodes:
            self.until(lambda: nodes.poll() is not None or b"are registered" in log.read_bytes())
            assert nodes.poll() is None, log.read_text()
            yield


@contextlib.contextmanager
def real_world(lender: Lender, folder: Path, **fleet: Any) -> Iterator[RealWorld]:
    with lender.lend() as cluster, contextlib.ExitStack() as ended:
        made = RealWorld(folder, cluster, **fleet)
        ended.callback(made.down)
        yield made


class AuditLog:
    """The requests of one user agent in an audit log that grows, from now on; each line is read once."""

    def __init__(self, path: Path) -> None:
        self._path, self._read, self._found = path, path.stat().st_size, dict[str, LoggedRequest]()
        self._since = datetime.now(UTC).isoformat()

    def requests(self) -> list[LoggedRequest]:
        with self._path.open("rb") as log:
            log.seek(self._read)
            complete, _, _ = log.read().rpartition(b"\n")
        self._read += len(complete)
        for line in complete.splitlines():
            if b'"userAgent":"gpu-provision"' in line:
                event = json.loads(line)
                if event["requestReceivedTimestamp"] >= self._since:  # of an earlier world, a watch ends now
                    self._found[event["auditID"]] = _request(event)
        return list(self._found.values())


def _request(event: dict[str, Any]) -> LoggedRequest:
    address = urlsplit(event["requestURI"])
    return LoggedRequest(
        time=event["requestReceivedTimestamp"],
        verb=_METHODS.get(event["verb"], "GET"),
        path=address.path,
        query=address.query,
        agent=event["userAgent"],
        user=event["user"].get("username", ""),  # anonymous, if the token was wrong
        code=event.get("responseStatus", {}).get("code", 0),
        dry_run="dryRun=" in address.query,
    )
