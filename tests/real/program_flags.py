"""Command lines of a control plane's programs, for each version."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

from tests.real.authority import Certificate

Version = tuple[int, ...]
Flags = dict[str, object]

SERVICE_RANGE = "10.0.0.0/16"
SERVICE_ADDRESS = "10.0.0.1"
"""Of the Service ``kubernetes``: always the first of the range."""

_PLAIN_HTTP: Mapping[str, str] = {
    "kube-apiserver": "insecure-port",
    "kube-controller-manager": "port",
    "kube-scheduler": "port",
}
_PLAIN_HTTP_UNTIL: Version = (1, 24)


def etcd(directory: Path, certificate: Certificate, authority: Path, port: int, peer_port: int) -> Flags:
    """Return flags of an etcd with one member, which takes clients of this authority alone."""
    client, peer = (f"https://127.0.0.1:{number}" for number in (port, peer_port))
    files = {"cert-file": certificate.certificate, "key-file": certificate.key, "trusted-ca-file": authority}
    return {
        "data-dir": directory / "etcd",
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


def apiserver(directory: Path, version: Version, authority: Path) -> Flags:
    """Return flags of an API server that enforces RBAC and writes an audit log."""
    key = directory / "sa.key"
    return {
        **_without_plain_http("kube-apiserver", version),
        "cert-dir": directory / "certificates",
        "client-ca-file": authority,
        "token-auth-file": directory / "tokens.csv",
        "authorization-mode": "Node,RBAC",
        "enable-admission-plugins": "NodeRestriction",
        "service-account-key-file": key,
        "service-account-signing-key-file": key,
        "service-account-issuer": "https://kubernetes.default.svc",
        "service-cluster-ip-range": SERVICE_RANGE,
        "allow-privileged": "true",
        "audit-policy-file": directory / "audit.yaml",
        "audit-log-path": directory / "audit.log",
        "audit-log-maxsize": 10_000,
    }


def to_etcd(url: str, certificate: Certificate, authority: Path) -> Flags:
    """Return flags of an API server that keeps its objects in this etcd."""
    return {
        "etcd-servers": url,
        "etcd-cafile": authority,
        "etcd-certfile": certificate.certificate,
        "etcd-keyfile": certificate.key,
    }


def to_kubelets(certificate: Certificate, authority: Path) -> Flags:
    """Return flags of an API server that asks kubelets for logs: both sides show a certificate of the authority."""
    return {
        "kubelet-certificate-authority": authority,
        "kubelet-client-certificate": certificate.certificate,
        "kubelet-client-key": certificate.key,
    }


def service(advertise: str) -> Flags:
    """Return flags for where the Service ``kubernetes`` leads: to an address, or nowhere, as to loopback it cannot."""
    if advertise:
        return {"advertise-address": advertise}
    return {"advertise-address": "127.0.0.1", "endpoint-reconciler-type": "none"}


def without(controllers: Collection[str]) -> Flags:
    """Return flags of an API server whose pods need no service account, if nothing makes any."""
    return {} if "kube-controller-manager" in controllers else {"disable-admission-plugins": "ServiceAccount"}


def serving(certificate: Certificate, address: str, port: int) -> Flags:
    """Return flags of where a program listens, and what it shows."""
    return {
        "bind-address": address,
        "secure-port": port,
        "tls-cert-file": certificate.certificate,
        "tls-private-key-file": certificate.key,
    }


def controller(name: str, directory: Path, version: Version, kubeconfig: Path) -> Flags:
    """Return flags of the controller manager or the scheduler; its kubeconfig also tells who may ask it."""
    return {
        **_without_plain_http(name, version),
        **dict.fromkeys(("kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig"), kubeconfig),
        "leader-elect": "false",
        "kube-api-qps": 500,
        "kube-api-burst": 1000,
        **(_controller_manager(directory) if name == "kube-controller-manager" else {}),
    }


def _controller_manager(directory: Path) -> Flags:
    return {
        "controllers": "*,-nodeipam",
        "service-account-private-key-file": directory / "sa.key",
        "root-ca-file": directory / "ca.crt",
        "use-service-account-credentials": "true",
    }


def _without_plain_http(name: str, version: Version) -> Flags:
    """Return the flag that turns off HTTP without TLS where a version has it."""
    return {_PLAIN_HTTP[name]: 0} if version < _PLAIN_HTTP_UNTIL else {}
