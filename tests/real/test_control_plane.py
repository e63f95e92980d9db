"""The launcher of a real control plane: who gets in, what it leaves behind, and that it ends with us."""

from __future__ import annotations

import contextlib
import http.server
import json
import ssl
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.real import binaries
from tests.real.access import ask
from tests.real.authority import Authority, Certificate
from tests.real.binaries import binary
from tests.real.control_plane import ControlPlane, Site, control_plane, missing
from tests.real.processes import await_ready, free_port

pytestmark = pytest.mark.real

CHECKOUT = Path(__file__).resolve().parents[2]
FOUR = {"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"}


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """One for all tests that leave it as it was."""
    if reason := missing():
        pytest.skip(reason)
    with control_plane(tmp_path_factory.mktemp("plane"), Site(names=("api.example.com",))) as running:
        yield running


def kubectl(kubeconfig: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run kubectl as somebody."""
    command = ["kubectl", "--kubeconfig", str(kubeconfig), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)


def children(parent: int) -> dict[int, str]:
    """Return the names of a process's children."""
    found = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return {int(child): Path(f"/proc/{child}/exe").readlink().name for child in found}


def lives(process: int) -> bool:
    """Tell whether a process still runs."""
    status = Path(f"/proc/{process}/status")
    try:
        return "State:\tZ" not in status.read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_killed_launcher_leaves_nothing_running(tmp_path: Path) -> None:
    """SIGKILL leaves nobody to clean up: the kernel ends all four programs."""
    if reason := missing():
        pytest.skip(reason)
    command = [sys.executable, "-m", "tests.real.control_plane", str(tmp_path / "plane")]
    with subprocess.Popen(command, cwd=CHECKOUT, stdout=subprocess.PIPE, text=True) as launcher:
        assert launcher.stdout
        ready = launcher.stdout.readline().strip()
        started = children(launcher.pid)
        launcher.kill()
    assert ready.endswith("kubeconfig")
    assert set(started.values()) == FOUR
    assert await_ready(lambda: not any(lives(child) for child in started)), started


def test_only_the_administrator_has_rights_at_first(plane: ControlPlane) -> None:
    """RBAC is enforced, and gives rights to the user whom the administrator binds."""
    user = plane.kubeconfig_of("gpu-provision")
    assert kubectl(plane.kubeconfig, "get", "nodes").returncode == 0
    refused = kubectl(user, "get", "nodes")
    assert 'nodes is forbidden: User "gpu-provision" cannot list' in refused.stderr
    groups = json.loads(kubectl(user, "get", "--raw", "/api").stdout)
    assert groups["kind"] == "APIVersions", "authenticated users may discover what there is"
    kubectl(plane.kubeconfig, "create", "clusterrole", "look", "--verb=list,get", "--resource=nodes")
    kubectl(plane.kubeconfig, "create", "clusterrolebinding", "look", "--clusterrole=look", "--user=gpu-provision")
    assert await_ready(lambda: kubectl(user, "get", "nodes").returncode == 0)


def test_a_stranger_is_refused(plane: ControlPlane) -> None:
    with pytest.raises(LookupError, match="no user somebody; there are: gpu-provision"):
        plane.kubeconfig_of("somebody")
    request = urllib.request.Request(f"{plane.url}/api/v1/nodes", headers={"Authorization": "Bearer guessed"})  # noqa: S310 - our own
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(request, context=plane.authority.trust(), timeout=300)  # noqa: S310 - our own


def test_every_client_verifies_the_server(plane: ControlPlane) -> None:
    """The certificate is the generated authority's, carries the names asked for, and nobody skips the check."""
    names = ssl.get_server_certificate(("127.0.0.1", int(plane.url.rpartition(":")[2])), timeout=300)
    (plane.directory / "shown.crt").write_text(names)
    shown = subprocess.run(
        ["openssl", "x509", "-noout", "-ext", "subjectAltName", "-in", str(plane.directory / "shown.crt")],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    for name in ("api.example.com", "127.0.0.1", "10.0.0.1", "kubernetes.default.svc"):
        assert name in shown
    with pytest.raises(urllib.error.URLError, match="CERTIFICATE_VERIFY_FAILED"):
        urllib.request.urlopen(f"{plane.url}/healthz", timeout=300)  # noqa: S310 - our own
    for kubeconfig in plane.directory.glob("*kubeconfig"):
        assert "insecure" not in kubeconfig.read_text()


def test_etcd_takes_no_client_without_a_certificate(plane: ControlPlane) -> None:
    """Others on this machine can reach its port."""
    arguments = plane.programs["etcd"].args
    assert isinstance(arguments, list)
    url = next(text.partition("=")[2] for text in arguments if text.startswith("--listen-client-urls="))
    assert ask(f"{url}/health", plane.authority.trust()) is None
    client = plane.authority.issue("test-client")
    assert ask(f"{url}/health", plane.authority.trust(client)) is not None


def test_the_api_server_asks_only_kubelets_that_the_authority_knows(plane: ControlPlane, tmp_path: Path) -> None:
    """And shows them a certificate, as kubelets refuse strangers; without a check anybody could pose as a node."""
    known, stranger = plane.authority, Authority(tmp_path)
    assert "asked by kube-apiserver-kubelet-client" in asked_through(plane, known.issue("node", "127.0.0.1"))
    refusal = "certificate signed by unknown authority"
    assert refusal in asked_through(plane, stranger.issue("node", "127.0.0.1"))


def asked_through(plane: ControlPlane, serving: Certificate) -> str:
    """Return what the API server says when it is to ask a kubelet that shows this certificate."""
    with kubelet(plane, serving) as port:
        endpoint = {"addresses": [{"type": "InternalIP", "address": "127.0.0.1"}]}
        status = {**endpoint, "daemonEndpoints": {"kubeletEndpoint": {"Port": port}}}
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "asked"}, "status": status}
        (plane.directory / "node.json").write_text(json.dumps(node))
        assert kubectl(plane.kubeconfig, "create", "-f", str(plane.directory / "node.json")).returncode == 0
        answer = kubectl(plane.kubeconfig, "get", "--raw", "/api/v1/nodes/asked/proxy/healthz")
        kubectl(plane.kubeconfig, "delete", "node", "asked")
    return answer.stdout + answer.stderr


@contextlib.contextmanager
def kubelet(plane: ControlPlane, serving: Certificate) -> Iterator[int]:
    """Serve, to clients of the plane's authority alone, one answer to everything; the value is the port."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(plane.authority.certificate))
    context.load_cert_chain(serving.certificate, serving.key)
    context.verify_mode = ssl.CERT_REQUIRED
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Healthy) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


class Healthy(http.server.BaseHTTPRequestHandler):
    """Answers as a healthy kubelet."""

    def do_GET(self) -> None:
        """Answer."""
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"healthy, and asked by " + self.connection.getpeercert()["subject"][-1][0][1].encode())

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def test_private_files_are_the_owners_alone(plane: ControlPlane) -> None:
    assert plane.directory.stat().st_mode & 0o777 == 0o700
    private = [*plane.directory.glob("*.key"), *plane.directory.glob("*kubeconfig"), plane.directory / "tokens.csv"]
    assert {file.stat().st_mode & 0o777 for file in private} == {0o600}


def test_controllers_are_users_of_their_own(plane: ControlPlane) -> None:
    """The administrator's rights would hide what a user lacks."""
    users = {json.loads(line)["user"].get("username") for line in plane.audit_log.read_text().splitlines()[:-1]}
    assert {"system:kube-controller-manager", "system:kube-scheduler"} <= users


def test_controllers_work(plane: ControlPlane) -> None:
    """A Deployment's pod is made, and waits for a node, as there is none."""
    kubectl(plane.kubeconfig, "create", "deployment", "work", "--image=pause")

    def waits() -> bool:
        pods = json.loads(kubectl(plane.kubeconfig, "get", "pods", "-l", "app=work", "-o", "json").stdout)["items"]
        return "no nodes available" in json.dumps([pod.get("status", {}).get("conditions") for pod in pods])

    assert await_ready(waits)


def test_custom_resources_are_served(plane: ControlPlane, tmp_path: Path) -> None:
    """API servers with an old reflect2, built by a new Go, die of the first object."""
    names = {"kind": "Thing", "plural": "things", "singular": "thing"}
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    version = {"name": "v1", "served": True, "storage": True, "schema": schema}
    spec = {"group": "example.com", "scope": "Namespaced", "names": names, "versions": [version]}
    definition = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "spec": spec}
    definition["metadata"] = {"name": "things.example.com"}
    thing = {"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "one"}, "spec": {"size": 3}}
    for name, content in (("definition", definition), ("thing", thing)):
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    assert kubectl(plane.kubeconfig, "apply", "-f", str(tmp_path / "definition.json")).returncode == 0
    assert await_ready(lambda: kubectl(plane.kubeconfig, "get", "things").returncode == 0)
    applied = kubectl(plane.kubeconfig, "apply", "--server-side", "-f", str(tmp_path / "thing.json"))
    assert applied.returncode == 0, applied.stderr


def test_the_api_server_comes_back_where_it_was(plane: ControlPlane) -> None:
    """Scenarios end it in the middle of a run."""
    plane.stop_apiserver()
    assert kubectl(plane.kubeconfig, "get", "nodes").returncode != 0
    plane.start_apiserver()
    assert kubectl(plane.kubeconfig, "get", "nodes").returncode == 0


def test_an_api_server_alone_takes_pods(
    tmp_path: Path, fresh_look: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Folders of setup-envtest have no controllers, so that nobody makes the pods' service account."""
    if reason := missing("etcd", "kube-apiserver"):
        pytest.skip(reason)
    assets = tmp_path / "assets"
    assets.mkdir()
    for name in ("etcd", "kube-apiserver"):
        (assets / name).symlink_to(binary(name))
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(assets))
    fresh_look()
    assert missing() == "; ".join(f"KUBEBUILDER_ASSETS={assets} has no {name}" for name in sorted(FOUR)[2:])
    with control_plane(tmp_path / "plane") as plane:
        assert set(plane.programs) == {"etcd", "kube-apiserver"}
        made = kubectl(plane.kubeconfig, "run", "pod", "--image=pause")
        assert made.returncode == 0, made.stderr


@pytest.fixture
def fresh_look(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """Look for programs again when called, and once more after the test and its changes of the environment."""
    yield binaries._find_here.cache_clear
    monkeypatch.undo()
    binaries._find_here.cache_clear()


def test_a_given_port_that_is_taken_is_an_error_that_says_so(tmp_path: Path, plane: ControlPlane) -> None:
    taken = int(plane.url.rpartition(":")[2])
    with pytest.raises(RuntimeError, match="address already in use"), control_plane(tmp_path, Site(port=taken)):
        pass  # pragma: no cover


def test_it_listens_where_it_is_told(tmp_path: Path, plane: ControlPlane) -> None:
    """Pods of a real node reach it at an address of their network."""
    port = free_port()
    with control_plane(tmp_path, Site(bind="0.0.0.0", port=port, advertise="192.0.2.1")) as other:  # noqa: S104 - the test
        endpoints = kubectl(other.kubeconfig, "get", "endpoints", "kubernetes", "-o", "json")
        assert json.loads(endpoints.stdout)["subsets"][0]["addresses"] == [{"ip": "192.0.2.1"}]
        assert other.url == f"https://127.0.0.1:{port}"
        assert ask(f"{other.url}/readyz", plane.authority.trust()) is None, "each has an authority of its own"
