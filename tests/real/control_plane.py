"""A real Kubernetes control plane on loopback: etcd, kube-apiserver, kube-controller-manager, kube-scheduler.

    with control_plane(directory) as plane:
        ...  # plane.kubeconfig, plane.audit_log

As a program it stays up until it is interrupted: ``python -m tests.real.control_plane DIRECTORY``.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import trustme
import yaml

from tests.real import binaries

_BINARIES = ("kube-apiserver", "kube-controller-manager", "kube-scheduler")
_READY_SECONDS = 60
_USERS = ("gpu-provision",)


@dataclass(frozen=True, slots=True)
class ControlPlane:
    """A running control plane: an administrator's kubeconfig, and the API server's audit log (JSON lines)."""

    kubeconfig: Path
    audit_log: Path
    directory: Path

    def kubeconfig_of(self, user: str) -> Path:
        """Return the kubeconfig of a user who has no right until RBAC gives one: ``gpu-provision``."""
        if user not in _USERS:
            message = f"no user {user}; there are: {', '.join(_USERS)}"
            raise LookupError(message)
        return self.directory / f"{user}.kubeconfig"


def missing(*programs: str) -> str:
    """Say what this machine lacks for a real control plane, or of some programs of it; empty if nothing."""
    return binaries.missing(*(programs or ("etcd", *_BINARIES)))


def given() -> Path | None:
    """Return the kubeconfig of a contributor's own cluster, which tests may fill and empty at will; usually none."""
    path = os.environ.get("GPU_PROVISION_TEST_KUBECONFIG")
    return Path(path) if path else None


@contextlib.contextmanager
def control_plane(directory: Path) -> Iterator[ControlPlane]:
    """Start a control plane with its files in ``directory``; stop it at the end, whatever happens."""
    directory.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as running:
        etcd = _start_etcd(directory, running)
        plane = _start_apiserver(directory, etcd, running)
        for name in ("kube-controller-manager", "kube-scheduler"):
            running.enter_context(_program(directory, [str(binaries.binary(name)), *_flags(name, plane, directory)]))
        yield plane


def _start_etcd(directory: Path, running: contextlib.ExitStack) -> str:
    client, peer = (f"http://127.0.0.1:{_free_port()}" for _ in range(2))
    flags = ["--data-dir", str(directory / "etcd"), "--listen-client-urls", client, "--advertise-client-urls", client]
    flags += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--unsafe-no-fsync"]
    flags += ["--initial-cluster", f"default={peer}"]
    running.enter_context(_program(directory, [str(binaries.binary("etcd")), *flags]))
    return client


def _start_apiserver(directory: Path, etcd: str, running: contextlib.ExitStack) -> ControlPlane:
    port, authority = _free_port(), trustme.CA()
    serving = authority.issue_cert("127.0.0.1", "localhost")
    serving.private_key_pem.write_to_path(directory / "serving.key")
    (directory / "serving.crt").write_bytes(b"".join(blob.bytes() for blob in serving.cert_chain_pems))
    authority.cert_pem.write_to_path(directory / "ca.crt")
    subprocess.run(["openssl", "genrsa", "-out", str(directory / "sa.key"), "2048"], check=True, capture_output=True)
    tokens = {user: secrets.token_urlsafe() for user in _USERS}
    lines = [f"{token},{user},{user}\n" for user, token in tokens.items()]
    (directory / "tokens.csv").write_text('admin-token,admin,1,"system:masters"\n' + "".join(lines))
    (directory / "audit.yaml").write_text(json.dumps(_AUDIT_POLICY))
    plane = ControlPlane(directory / "kubeconfig", directory / "audit.log", directory)
    plane.kubeconfig.write_text(yaml.safe_dump(_kubeconfig(port, directory / "ca.crt", "admin", "admin-token")))
    for user, token in tokens.items():
        plane.kubeconfig_of(user).write_text(yaml.safe_dump(_kubeconfig(port, directory / "ca.crt", user, token)))
    flags = {
        "etcd-servers": etcd,
        "secure-port": port,
        "bind-address": "127.0.0.1",
        "advertise-address": "127.0.0.1",
        "tls-cert-file": directory / "serving.crt",
        "tls-private-key-file": directory / "serving.key",
        "cert-dir": directory / "certificates",
        "service-account-key-file": directory / "sa.key",
        "service-account-signing-key-file": directory / "sa.key",
        "service-account-issuer": "https://kubernetes.default.svc",
        "token-auth-file": directory / "tokens.csv",
        "authorization-mode": "RBAC",
        "service-cluster-ip-range": "10.0.0.0/16",
        "allow-privileged": "true",
        "audit-policy-file": directory / "audit.yaml",
        "audit-log-path": plane.audit_log,
    }
    command = [str(binaries.binary("kube-apiserver")), *(f"--{name}={value}" for name, value in flags.items())]
    server = running.enter_context(_program(directory, command))
    _await_ready(f"https://127.0.0.1:{port}/readyz", directory, server)
    return plane


_AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata"}],
}


def _kubeconfig(port: int, authority: Path, user: str, token: str) -> dict[str, object]:
    cluster = {"server": f"https://127.0.0.1:{port}", "certificate-authority": str(authority)}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "real", "cluster": cluster}],
        "users": [{"name": user, "user": {"token": token}}],
        "contexts": [{"name": "real", "context": {"cluster": "real", "user": user}}],
        "current-context": "real",
    }


def _flags(name: str, plane: ControlPlane, directory: Path) -> list[str]:
    flags = [f"--kubeconfig={plane.kubeconfig}", "--leader-elect=false", "--port=0", "--bind-address=127.0.0.1"]
    flags += [f"--secure-port={_free_port()}", "--kube-api-qps=500", "--kube-api-burst=1000"]
    if name == "kube-controller-manager":
        key = directory / "sa.key"
        flags += [f"--service-account-private-key-file={key}", "--controllers=*,-nodeipam"]
        flags += ["--use-service-account-credentials=true", f"--root-ca-file={directory / 'ca.crt'}"]
    return flags


@contextlib.contextmanager
def process(
    log: Path, command: Sequence[str], *, environment: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program with its output in a file; it ends with the block, or with us, however we end."""
    bound = ["setpriv", "--pdeathsig", "TERM", "--"] if shutil.which("setpriv") else []
    with log.open("ab") as output:
        running = subprocess.Popen(
            [*bound, *command], stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment
        )
    try:
        yield running
    finally:
        running.terminate()
        try:
            running.wait(10)
        except subprocess.TimeoutExpired:
            running.kill()
            running.wait(10)


def _program(directory: Path, command: Sequence[str]) -> contextlib.AbstractContextManager[subprocess.Popen[bytes]]:
    return process(directory / f"{Path(command[0]).name}.log", command)


def _await_ready(url: str, directory: Path, server: subprocess.Popen[bytes]) -> None:
    import ssl  # noqa: PLC0415 (needed here only)

    trusted = ssl.create_default_context(cafile=str(directory / "ca.crt"))
    request = urllib.request.Request(url, headers={"Authorization": "Bearer admin-token"})  # noqa: S310 (our own URL)
    give_up = time.monotonic() + _READY_SECONDS
    while time.monotonic() < give_up and server.poll() is None:
        with contextlib.suppress(OSError), urllib.request.urlopen(request, context=trusted, timeout=2):  # noqa: S310
            return
        time.sleep(0.2)
    message = f"the API server did not get ready; see {directory}/*.log"
    raise RuntimeError(message)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main() -> None:
    """Run a control plane in the foreground and print its kubeconfig's path."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with control_plane(Path(sys.argv[1])) as plane:
        print(plane.kubeconfig, flush=True)  # noqa: T201 (the one thing a caller wants to know)
        with contextlib.suppress(KeyboardInterrupt):
            while True:
                time.sleep(3600)


if __name__ == "__main__":
    main()
