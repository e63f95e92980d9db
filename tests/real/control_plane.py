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
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.real import binaries, program_flags
from tests.real.access import ADMIN, Passes, ask, ask_json, kubeconfig_file, passes, write_kubeconfig
from tests.real.authority import Authority, signing_key, write_private
from tests.real.processes import Command, NotReadyError, Program, Ready, await_ready, free_port, listening, process
from tests.real.program_flags import Version
from tests.real.site import LOOPBACK, Site

__all__ = ["ControlPlane", "NotReadyError", "Site", "control_plane", "given", "missing", "process"]

CONTROLLERS = ("kube-controller-manager", "kube-scheduler")
_TOKENS_BY_SECRET_UNTIL: Version = (1, 24, 0)


@dataclass(frozen=True, slots=True)
class ControlPlane:
    """A running control plane.

    Attributes:
        kubeconfig: The administrator's.
        audit_log: The API server's, JSON lines, an entry for each stage of a request.
        directory: Everything of it, logs as ``*.log``.
        url: Of the API server.
        version: Of the API server.
        programs: What runs, by name; ``start_apiserver`` and ``start_etcd`` replace an entry.
        users: Users who have a kubeconfig beside the administrator.
        authority: Issues further certificates that the API server trusts, such as a kubelet's.
    """

    kubeconfig: Path
    audit_log: Path
    directory: Path
    url: str
    version: Version
    programs: Mapping[str, subprocess.Popen[bytes]]
    users: tuple[str, ...]
    authority: Authority
    start_apiserver: Callable[[], object]
    start_etcd: Callable[[], object]

    def stop_apiserver(self) -> None:
        """Kill the API server; everything else goes on. ``start_apiserver`` starts it again where it was."""
        self.programs["kube-apiserver"].kill()
        self.programs["kube-apiserver"].wait()

    def stop_etcd(self) -> None:
        """End etcd; ``start_etcd`` starts it again where it was. Killed it would forget: it waits for no disk."""
        self.programs["etcd"].terminate()
        self.programs["etcd"].wait()

    def kubeconfig_of(self, user: str) -> Path:
        """Return the kubeconfig of a user who has no right until RBAC gives one; LookupError for a stranger."""
        if user not in self.users:
            message = f"no user {user}; there are: {', '.join(self.users)}"
            raise LookupError(message)
        return _kubeconfig(self.directory, user)


def missing(*programs: str) -> str:
    """Say what this machine lacks for a whole control plane, or for one with these programs; empty if nothing."""
    if not shutil.which("setpriv"):
        return "setpriv is not installed (Debian: apt-get install util-linux)"
    needed = programs or ("etcd", "kube-apiserver", *CONTROLLERS)
    return binaries.missing(*needed)


def given() -> Path | None:
    """Return the kubeconfig of a contributor's own cluster, which tests may fill and empty at will; usually none.

    Raises:
        FileNotFoundError: the variable names no file; other tests than meant would run.
    """
    path = os.environ.get("GPU_PROVISION_TEST_KUBECONFIG")
    if path and not Path(path).is_file():
        message = f"GPU_PROVISION_TEST_KUBECONFIG={path} is no file"
        raise FileNotFoundError(message)
    return Path(path).resolve() if path else None


@contextlib.contextmanager
def control_plane(directory: Path, site: Site | None = None) -> Iterator[ControlPlane]:
    """Start a control plane with its files in ``directory``, wait until it is ready, and stop it at the end.

    Raises:
        NotReadyError: a program of it does not get ready.
        NotHereError: etcd or the API server is missing.
    """
    directory.mkdir(parents=True, exist_ok=True)
    directory.chmod(0o700)
    with contextlib.ExitStack() as running:
        yield _Start(directory, site or Site(), running).all()


class _Start:
    """What a start needs at each of its steps."""

    def __init__(self, directory: Path, site: Site, running: contextlib.ExitStack) -> None:
        self.directory, self.site, self.running = directory, site, running
        self.authority = Authority(directory)
        self.etcd_client = self.authority.issue("etcd-client")
        self.users = {"gpu-provision": "", **site.users}
        self.passes: Passes = passes(self.users)
        self.programs: dict[str, subprocess.Popen[bytes]] = {}
        self.version = binaries.version(binaries.binary("kube-apiserver"))
        self.controllers = tuple(name for name in CONTROLLERS if not binaries.missing(name))
        self.trust = self.authority.trust()

    def all(self) -> ControlPlane:
        """Start everything, in order."""
        self._write_files()
        self.store = self.running.enter_context(contextlib.ExitStack())  # ends last, restarted or not
        etcd_port = self._etcd()
        etcd = _local(etcd_port)
        self.server = self.running.enter_context(contextlib.ExitStack())  # ends after the controllers, restarted or not
        port = self._apiserver(etcd, self.site.port)
        url = f"https://{self.site.reached_at}:{port}"
        for user, token in self.passes.tokens.items():
            write_kubeconfig(_kubeconfig(self.directory, user), url, self.authority.certificate, user, token)
        for name in self.controllers:
            self._controller(name)
        self._await_default_account(url)
        return ControlPlane(
            kubeconfig=_kubeconfig(self.directory, ADMIN),
            audit_log=self.directory / "audit.log",
            directory=self.directory,
            url=url,
            version=self.version,
            programs=self.programs,
            users=tuple(self.users),
            authority=self.authority,
            start_apiserver=lambda: self._apiserver(etcd, port),
            start_etcd=lambda: self._etcd(etcd_port),
        )

    def _write_files(self) -> None:
        write_private(self.directory / "sa.key", signing_key())
        write_private(self.directory / "tokens.csv", self.passes.csv())
        (self.directory / "audit.yaml").write_text(json.dumps(_AUDIT_POLICY))
        (self.directory / "audit.log").touch(0o600)

    def _etcd(self, port: int = 0) -> int:
        serving = self.authority.issue("etcd", LOOPBACK)
        trust = self.authority.trust(self.etcd_client)

        def command(port: int) -> list[str]:
            flags = program_flags.etcd(self.directory, serving, self.authority.certificate, port, free_port())
            return self._command("etcd", flags)

        def ready(port: int) -> bool:
            return ask(_local(port, "health"), trust) is not None

        self.store.close()
        return self._listening("etcd", command, ready, self.store, port=port)

    def _apiserver(self, etcd: str, port: int) -> int:
        serving = self.authority.issue("apiserver", *self.site.hosts)
        to_kubelets = self.authority.issue("kube-apiserver-kubelet-client", group="system:masters")

        def command(port: int) -> list[str]:
            flags = program_flags.apiserver(self.directory, self.version, self.authority.certificate)
            flags |= program_flags.to_etcd(etcd, self.etcd_client, self.authority.certificate)
            flags |= program_flags.to_kubelets(to_kubelets, self.authority.certificate)
            flags |= program_flags.serving(serving, self.site.bind, port)
            flags |= program_flags.service(self.site.advertise) | program_flags.without(self.controllers)
            return self._command("kube-apiserver", {**flags, **self.site.flags})

        def ready(port: int) -> bool:
            url = f"https://{self.site.reached_at}:{port}/readyz"
            return ask(url, self.trust, self.passes.tokens[ADMIN]) is not None

        self.server.close()
        return self._listening("kube-apiserver", command, ready, self.server, port=port)

    def _controller(self, name: str) -> None:
        serving = self.authority.issue(name, LOOPBACK)
        access = _kubeconfig(self.directory, f"system:{name}")

        def command(port: int) -> list[str]:
            flags = program_flags.controller(name, self.directory, self.version, access)
            return self._command(name, flags | program_flags.serving(serving, LOOPBACK, port))

        def ready(port: int) -> bool:
            return ask(_local(port, "healthz"), self.trust) is not None

        self._listening(name, command, ready, self.running)

    def _command(self, name: str, flags: Mapping[str, object]) -> list[str]:
        return [str(binaries.binary(name)), *(f"--{flag}={value}" for flag, value in flags.items())]

    def _listening(
        self, name: str, command: Command, ready: Ready, running: contextlib.ExitStack, *, port: int = 0
    ) -> int:
        program = Program(self.directory / f"{name}.log", command, ready)
        chosen, self.programs[name] = listening(program, running, port=port)
        return chosen

    def _await_default_account(self, url: str) -> None:
        """Wait until pods can be made in the namespace ``default``: old servers' pods need the account's token."""
        address = f"{url}/api/v1/namespaces/default/serviceaccounts/default"

        def there() -> bool:
            account = ask_json(address, self.trust, self.passes.tokens[ADMIN])
            return bool(account and (account.get("secrets") or self.version >= _TOKENS_BY_SECRET_UNTIL))

        if "kube-controller-manager" in self.controllers and not await_ready(there):
            message = f"no service account appeared in the namespace default; see {self.directory}/*.log"
            raise NotReadyError(message)


def _kubeconfig(directory: Path, user: str) -> Path:
    return directory / "kubeconfig" if user == ADMIN else kubeconfig_file(directory, user)


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
    parser.add_argument(
        "--user",
        action="append",
        default=[],
        type=_user,
        metavar="NAME[=GROUP,...]",
        help="a user besides gpu-provision, such as system:node:n1=system:nodes",
    )
    parser.add_argument(
        "--flag",
        action="append",
        default=[],
        type=_flag,
        metavar="NAME=VALUE",
        help="a flag of the API server, over its own",
    )
    return parser.parse_args(argv)


def _flag(text: str) -> tuple[str, str]:
    name, _, value = text.partition("=")
    return name, value


def _user(text: str) -> tuple[str, str]:
    name, _, groups = text.partition("=")
    return name, groups


def main(argv: Sequence[str]) -> None:
    """Run a control plane in the foreground and print its kubeconfig's path."""
    arguments, interrupted = _arguments(argv), threading.Event()
    site = Site(arguments.bind, arguments.port, arguments.advertise, dict(arguments.user), dict(arguments.flag))
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with contextlib.suppress(KeyboardInterrupt), control_plane(arguments.directory, site) as plane:
        plane.authority.issue("nodes", LOOPBACK)  # for simulated nodes that are attached later
        print(plane.kubeconfig, flush=True)  # noqa: T201 - the one thing that a caller wants to know
        interrupted.wait()


if __name__ == "__main__":
    main(sys.argv[1:])
