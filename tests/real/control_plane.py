"""A real Kubernetes control plane: etcd, kube-apiserver, kube-controller-manager, kube-scheduler.

    with control_plane(directory) as plane:
        ...  # plane.kubeconfig, plane.kubeconfig_of("gpu-provision"), plane.audit_log

As a program it stays up until it is interrupted, and prints the administrator's kubeconfig once it is ready:
``python -m tests.real.control_plane DIRECTORY``. All four end with the process that started them, even a killed one.
Where ``KUBEBUILDER_ASSETS`` names a folder without controllers, these are left out: ask ``missing``.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.real import binaries
from tests.real.access import (
    ADMIN,
    SERVICE_ADDRESS,
    Authority,
    Certificate,
    ask,
    kubeconfig_file,
    signing_key,
    write_kubeconfig,
    write_private,
)
from tests.real.processes import NotReadyError, Program, await_ready, free_port, listening

Version = tuple[int, ...]
Flags = dict[str, object]
CONTROLLERS = ("kube-controller-manager", "kube-scheduler")
SYSTEM_USERS = ("system:kube-controller-manager", "system:kube-scheduler")
"""Users to whom the API server itself binds what these programs need."""
LOOPBACK = "127.0.0.1"
SERVICE_RANGE = "10.0.0.0/16"
_TOKENS_BY_SECRET_UNTIL: Version = (1, 24, 0)
_PLAIN_HTTP_UNTIL: Version = (1, 24)
_IN_CLUSTER = ("kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local")


@dataclass(frozen=True, slots=True)
class Site:
    """Where the API server listens, and who may come."""

    bind: str = LOOPBACK  # or another address of this machine, or 0.0.0.0
    port: int = 0  # a free one
    advertise: str = ""  # where the Service kubernetes leads to; nowhere
    users: Mapping[str, str] = field(default_factory=dict)  # besides administrator and gpu-provision; groups by commas
    flags: Mapping[str, object] = field(default_factory=dict)  # of the API server, over or beside its own

    @property
    def hosts(self) -> tuple[str, ...]:
        """All names and addresses of the server's certificate."""
        bound = () if self.bind in {"0.0.0.0", LOOPBACK} else (self.bind,)  # noqa: S104 - compared, not bound
        wanted = (LOOPBACK, "localhost", SERVICE_ADDRESS, *_IN_CLUSTER, *bound, self.advertise)
        return tuple(dict.fromkeys(name for name in wanted if name))

    @property
    def reached_at(self) -> str:
        """The address for clients on this machine."""
        return LOOPBACK if self.bind == "0.0.0.0" else self.bind  # noqa: S104 - compared, not bound


def missing(*programs: str) -> str:
    """Say what this machine lacks for a whole control plane, or for one with these programs; empty if nothing."""
    if not shutil.which("setpriv"):
        return "setpriv is not installed (Debian: apt-get install util-linux)"
    needed = programs or ("etcd", "kube-apiserver", *CONTROLLERS)
    return binaries.missing(*needed)


def given() -> Path | None:
    """Return the kubeconfig of a contributor's own cluster, which tests may fill and empty at will; usually none."""
    path = os.environ.get("GPU_PROVISION_TEST_KUBECONFIG")
    if path and not Path(path).is_file():
        message = f"GPU_PROVISION_TEST_KUBECONFIG={path} is no file"
        raise FileNotFoundError(message)
    return Path(path).resolve() if path else None


@contextlib.contextmanager
def control_plane(directory: Path, site: Site | None = None) -> Iterator[ControlPlane]:
    """Start a control plane with its files in ``directory``, wait until it is ready, and stop it at the end."""
    directory.mkdir(parents=True, exist_ok=True)
    directory.chmod(0o700)
    with contextlib.ExitStack() as running:
        plane = ControlPlane(directory, site or Site(), running)
        plane.start()
        yield plane


class ControlPlane:
    """A control plane: files, with logs as ``*.log``, are in ``directory``, its processes by name in ``programs``."""

    def __init__(self, directory: Path, site: Site, running: contextlib.ExitStack) -> None:
        self.directory, self.site = directory, site
        self.authority = Authority(directory)
        self.audit_log = directory / "audit.log"
        self.users = {"gpu-provision": "", **site.users}
        self.programs: dict[str, subprocess.Popen[bytes]] = {}
        self._ca, self._trust = self.authority.certificate, self.authority.trust()
        self._etcd_client = self.authority.issue("etcd-client")
        self._groups = {ADMIN: "system:masters", **dict.fromkeys(SYSTEM_USERS, ""), **self.users}
        self._tokens = {user: secrets.token_urlsafe() for user in self._groups}
        self._version = binaries.version(binaries.binary("kube-apiserver"))
        self._controllers = tuple(name for name in CONTROLLERS if not binaries.missing(name))
        # The store ends last and the server after the controllers, started again or not.
        self._store, self._server, self._others = (
            running.enter_context(contextlib.ExitStack()) for _ in ("store", "server", "others")
        )
        self._etcd_port, self._port = 0, site.port

    def start(self) -> None:
        self._write_files()
        self.start_etcd()
        self.start_apiserver()
        for user, token in self._tokens.items():
            write_kubeconfig(self._kubeconfig(user), self._url(), self._ca, user, token)
        for name in self._controllers:
            self._start_controller(name)
        self._await_default_account()

    @property
    def kubeconfig(self) -> Path:
        return self._kubeconfig(ADMIN)

    def stop_apiserver(self) -> None:
        """Kill the API server; everything else goes on. ``start_apiserver`` starts it again where it was."""
        self.programs["kube-apiserver"].kill()
        self.programs["kube-apiserver"].wait()

    def stop_etcd(self) -> None:
        """End etcd; ``start_etcd`` starts it again where it was. Killed it would forget: it waits for no disk."""
        self.programs["etcd"].terminate()
        self.programs["etcd"].wait()

    def kubeconfig_of(self, user: str) -> Path:
        """Return the kubeconfig of a user who has no right until RBAC gives one."""
        assert user in self.users, f"no user {user}; there are: {', '.join(self.users)}"
        return self._kubeconfig(user)

    def _kubeconfig(self, user: str) -> Path:
        return self.directory / "kubeconfig" if user == ADMIN else kubeconfig_file(self.directory, user)

    def _url(self, path: str = "") -> str:
        return f"https://{self.site.reached_at}:{self._port}{path}"

    def _write_files(self) -> None:
        write_private(self.directory / "sa.key", signing_key())
        rows = (
            f"{token},{user},{user}" + (f',"{self._groups[user]}"' if self._groups[user] else "")
            for user, token in self._tokens.items()
        )
        write_private(self.directory / "tokens.csv", "".join(f"{row}\n" for row in rows).encode())
        (self.directory / "audit.yaml").write_text(json.dumps(_AUDIT_POLICY))
        self.audit_log.touch(0o600)

    def start_etcd(self) -> None:
        """Start etcd, where it was before if it ran."""
        serving, trust = self.authority.issue("etcd", LOOPBACK), self.authority.trust(self._etcd_client)
        files = {"cert-file": serving.certificate, "key-file": serving.key, "trusted-ca-file": self._ca}

        def flags(port: int) -> Flags:
            client, peer = _local(port), _local(free_port())
            return {
                "data-dir": self.directory / "etcd",
                "listen-client-urls": client,
                "advertise-client-urls": client,
                "listen-peer-urls": peer,
                "initial-advertise-peer-urls": peer,
                "initial-cluster": f"default={peer}",
                "unsafe-no-fsync": "true",
                **files,
                **{f"peer-{flag}": file for flag, file in files.items()},
                "client-cert-auth": "true",
                "peer-client-cert-auth": "true",
            }

        self._store.close()
        self._etcd_port = self._listening(
            "etcd", flags, lambda port: ask(_local(port, "health"), trust), self._store, port=self._etcd_port
        )

    def start_apiserver(self) -> None:
        """Start the API server, where it was before if it ran."""
        serving = self.authority.issue("apiserver", *self.site.hosts)
        to_kubelets = self.authority.issue("kube-apiserver-kubelet-client", group="system:masters")
        key = self.directory / "sa.key"
        # The Service kubernetes leads to an address, or nowhere: to loopback it cannot.
        nowhere = {} if self.site.advertise else {"endpoint-reconciler-type": "none"}
        # Where nothing makes service accounts, pods need none.
        accounts = {} if self._controllers else {"disable-admission-plugins": "ServiceAccount"}

        def flags(port: int) -> Flags:
            return {
                **self._without_plain_http("insecure-port"),
                **_serving(serving, self.site.bind, port),
                "cert-dir": self.directory / "certificates",
                "client-ca-file": self._ca,
                "token-auth-file": self.directory / "tokens.csv",
                "authorization-mode": "Node,RBAC",
                "enable-admission-plugins": "NodeRestriction",
                "service-account-key-file": key,
                "service-account-signing-key-file": key,
                "service-account-issuer": "https://kubernetes.default.svc",
                "service-cluster-ip-range": SERVICE_RANGE,
                "allow-privileged": "true",
                "audit-policy-file": self.directory / "audit.yaml",
                "audit-log-path": self.audit_log,
                "audit-log-maxsize": 10_000,
                "etcd-servers": _local(self._etcd_port),
                "etcd-cafile": self._ca,
                "etcd-certfile": self._etcd_client.certificate,
                "etcd-keyfile": self._etcd_client.key,
                # Both sides show a certificate of the authority when logs are asked for.
                "kubelet-certificate-authority": self._ca,
                "kubelet-client-certificate": to_kubelets.certificate,
                "kubelet-client-key": to_kubelets.key,
                "advertise-address": self.site.advertise or LOOPBACK,
                **nowhere,
                **accounts,
                **self.site.flags,
            }

        def answer(port: int) -> object:
            return ask(f"https://{self.site.reached_at}:{port}/readyz", self._trust, self._tokens[ADMIN])

        self._server.close()
        self._port = self._listening("kube-apiserver", flags, answer, self._server, port=self._port)

    def _start_controller(self, name: str) -> None:
        serving = self.authority.issue(name, LOOPBACK)
        access = self._kubeconfig(f"system:{name}")  # also tells who may ask it
        own: Flags = {
            "controllers": "*,-nodeipam",
            "service-account-private-key-file": self.directory / "sa.key",
            "root-ca-file": self._ca,
            "use-service-account-credentials": "true",
        }

        def flags(port: int) -> Flags:
            return {
                **self._without_plain_http("port"),
                **_serving(serving, LOOPBACK, port),
                **dict.fromkeys(("kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig"), access),
                "leader-elect": "false",
                "kube-api-qps": 500,
                "kube-api-burst": 1000,
                **(own if name == "kube-controller-manager" else {}),
            }

        self._listening(name, flags, lambda port: ask(_local(port, "healthz"), self._trust), self._others)

    def _without_plain_http(self, flag: str) -> Flags:
        """Return the flag that turns off HTTP without TLS where a version has it."""
        return {flag: 0} if self._version < _PLAIN_HTTP_UNTIL else {}

    def _listening(
        self,
        name: str,
        flags: Callable[[int], Flags],
        answer: Callable[[int], object],
        running: contextlib.ExitStack,
        *,
        port: int = 0,
    ) -> int:
        def command(port: int) -> list[str]:
            return [str(binaries.binary(name)), *(f"--{flag}={value}" for flag, value in flags(port).items())]

        program = Program(self.directory / f"{name}.log", command, lambda port: answer(port) is not None)
        chosen, self.programs[name] = listening(program, running, port=port)
        return chosen

    def _await_default_account(self) -> None:
        """Wait until pods can be made in the namespace ``default``: old servers' pods need the account's token."""
        address = self._url("/api/v1/namespaces/default/serviceaccounts/default")

        def there() -> bool:
            account = json.loads(ask(address, self._trust, self._tokens[ADMIN]) or b"{}")
            return bool(account and (account.get("secrets") or self._version >= _TOKENS_BY_SECRET_UNTIL))

        if "kube-controller-manager" in self._controllers and not await_ready(there):
            message = f"no service account appeared in the namespace default; see {self.directory}/*.log"
            raise NotReadyError(message)


def _serving(certificate: Certificate, address: str, port: int) -> Flags:
    return {
        "bind-address": address,
        "secure-port": port,
        "tls-cert-file": certificate.certificate,
        "tls-private-key-file": certificate.key,
    }


def _local(port: int, path: str = "") -> str:
    return f"https://{LOOPBACK}:{port}" + (f"/{path}" if path else "")


_AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        # What is created twice under names of the server's own choice differs in nothing else.
        {"level": "Request", "verbs": ["create"], "resources": [{"group": "", "resources": ["events", "pods"]}]},
        {"level": "Metadata"},
    ],
}


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.real.control_plane", description="Run a control plane until interrupted."
    )
    parser.add_argument("directory", type=Path, help="for its files")
    parser.add_argument("--bind", default=LOOPBACK, help="address that the API server listens on; loopback by default")
    parser.add_argument("--port", type=int, default=0, help="its port; a free one by default")
    parser.add_argument("--advertise", default="", help="address that the Service kubernetes leads to")
    for option, metavar, what in (
        ("--user", "NAME[=GROUP,...]", "a user besides gpu-provision, such as system:node:n1=system:nodes"),
        ("--flag", "NAME=VALUE", "a flag of the API server, over its own"),
    ):
        parser.add_argument(option, action="append", default=[], type=_pair, metavar=metavar, help=what)
    return parser.parse_args(argv)


def _pair(text: str) -> tuple[str, str]:
    name, _, value = text.partition("=")
    return name, value


def main(argv: Sequence[str]) -> None:
    arguments, interrupted = _arguments(argv), threading.Event()
    site = Site(arguments.bind, arguments.port, arguments.advertise, dict(arguments.user), dict(arguments.flag))
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with contextlib.suppress(KeyboardInterrupt), control_plane(arguments.directory, site) as plane:
        plane.authority.issue("nodes", LOOPBACK)  # for simulated nodes that are attached later
        print(plane.kubeconfig, flush=True)  # noqa: T201 - the one thing that a caller wants to know
        interrupted.wait()


if __name__ == "__main__":
    main(sys.argv[1:])
