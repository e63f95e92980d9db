"""Users' commands with the real kubectl, which `make test-real` installs, against the sandbox's API server."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.real import binaries, clients
from tests.sandbox.apiserver.conftest import POD, Running, workload

pytestmark = pytest.mark.real

Kubectl = Callable[..., subprocess.CompletedProcess[str]]

MANIFEST = {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "ds"}, "spec": workload("app:1")}


@pytest.fixture
def server(start: Callable[[], Running]) -> Running:
    """Start one server for each test: each runs with two kubectls and the same names."""
    return start()


@pytest.fixture(params=["of the machine", "newer"])
def kubectl(request: pytest.FixtureRequest, server: Running, tmp_path: Path) -> Kubectl:
    """Run the machine's kubectl, from 1.20 on, and a newer one."""
    if request.param == "newer":
        return _runs(_newer(), server, tmp_path)
    path = shutil.which("kubectl")
    if path is None:
        pytest.skip("kubectl is not installed")
    return _runs(Path(path), server, tmp_path)


@pytest.fixture
def newer_kubectl(server: Running, tmp_path: Path) -> Kubectl:
    """Run a kubectl with OpenAPI v3 and strict validation; docs/sandbox.md lists the limits of older ones."""
    return _runs(_newer(), server, tmp_path)


def _newer() -> Path:
    path = clients.path(binaries.cache(), "kubectl")
    if not path.is_file():
        pytest.skip("no newer kubectl: python -m tests.real.binaries downloads it")
    return path


def _runs(path: Path, server: Running, tmp_path: Path) -> Kubectl:
    def run(*arguments: str, stdin: str = "", ok: bool = True) -> subprocess.CompletedProcess[str]:
        command = [str(path), f"--kubeconfig={server.server.kubeconfig}", f"--cache-dir={tmp_path}", *arguments]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=120, check=False)
        assert not ok or done.returncode == 0, f"{' '.join(arguments)}: {done.stderr}"
        return done

    return run


def _manifest(name: str, image: str = "app:1") -> str:
    return yaml.safe_dump({**MANIFEST, "metadata": {"name": name}, "spec": workload(image)})


def _node(server: Running, name: str) -> None:
    server.ask("POST", "/api/v1/nodes", {"metadata": {"name": name}})
    taints = {"spec": {"taints": None}}
    server.ask("PATCH", f"/api/v1/nodes/{name}", taints, kind="application/merge-patch+json")
    status = {
        "status": {"conditions": [{"type": "Ready", "status": "True"}], "nodeInfo": {"kubeletVersion": "v1.34.0"}}
    }
    server.ask("PATCH", f"/api/v1/nodes/{name}/status", status, kind="application/merge-patch+json")


def test_discovery(newer_kubectl: Kubectl) -> None:
    """Resources with their short names and groups."""
    resources = newer_kubectl("api-resources").stdout
    assert re.search(r"^daemonsets +ds +apps/v1 +true +DaemonSet$", resources, re.MULTILINE)
    assert "rbac.authorization.k8s.io/v1" in newer_kubectl("api-versions").stdout.split()
    assert "v1.34.0+sandbox" in newer_kubectl("version").stdout


def test_permissions(newer_kubectl: Kubectl) -> None:
    """The list grants everything."""
    assert newer_kubectl("auth", "can-i", "delete", "nodes").stdout.strip() == "yes"
    assert "sandbox-admin" in newer_kubectl("auth", "whoami").stdout
    listed = newer_kubectl("auth", "can-i", "--list")
    assert re.search(r"\*\.\*\s+\[\]\s+\[\]\s+\[\*\]", listed.stdout)


def test_apply_diff_and_apply_again(newer_kubectl: Kubectl) -> None:
    """Client-side apply: created, unchanged, configured; a diff stores nothing."""
    assert "created" in newer_kubectl("apply", "-f", "-", stdin=_manifest("applied")).stdout
    assert "unchanged" in newer_kubectl("apply", "-f", "-", stdin=_manifest("applied")).stdout
    diff = newer_kubectl("diff", "-f", "-", stdin=_manifest("applied", "app:2"), ok=False)
    assert (diff.returncode, "+      - image: app:2" in diff.stdout) == (1, True)
    assert "configured" in newer_kubectl("apply", "-f", "-", stdin=_manifest("applied", "app:3")).stdout
    image = "jsonpath={.spec.template.spec.containers[0].image}"
    assert newer_kubectl("get", "ds", "applied", "-o", image).stdout == "app:3"


def test_server_side_apply_and_its_conflicts(kubectl: Kubectl) -> None:
    """The conflict names manager and field; force takes the field over."""
    kubectl("apply", "--server-side", "--field-manager=first", "-f", "-", stdin=_manifest("ssa"))
    again = ("apply", "--server-side", "--field-manager=second", "-f", "-")
    conflict = kubectl(*again, stdin=_manifest("ssa", "app:2"), ok=False)
    assert 'conflict with "first": .spec.template.spec.containers[name="main"].image' in conflict.stderr
    assert "serverside-applied" in kubectl(*again, "--force-conflicts", stdin=_manifest("ssa", "app:2")).stdout


def test_a_typing_mistake_is_found_by_default(newer_kubectl: Kubectl) -> None:
    """Kubectl requests strict validation."""
    wrong = _manifest("typo").replace("image:", "imaeg:")
    refusal = newer_kubectl("apply", "-f", "-", stdin=wrong, ok=False)
    assert 'unknown field "spec.template.spec.containers[0].imaeg"' in refusal.stderr


def test_generators_send_protobuf(kubectl: Kubectl) -> None:
    """Create with flags instead of a file."""
    kubectl("create", "namespace", "made")
    kubectl("-n", "made", "create", "configmap", "cm", "--from-literal=a=b")
    kubectl("-n", "made", "create", "secret", "generic", "s", "--from-literal=p=q")
    kubectl("-n", "made", "create", "deployment", "d", "--image=app:1", "--replicas=2")
    kubectl("-n", "made", "create", "job", "j", "--image=app:1", "--", "true")
    kubectl("-n", "made", "run", "p", "--image=app:1")
    assert kubectl("-n", "made", "get", "deploy", "d", "-o", "jsonpath={.spec.replicas}").stdout == "2"
    assert kubectl("-n", "made", "get", "secret", "s", "-o", "jsonpath={.data.p}").stdout == "cQ=="
    assert "already exists" in kubectl("create", "namespace", "made", ok=False).stderr


def test_nodes_are_labelled_tainted_cordoned_and_drained(kubectl: Kubectl, server: Running) -> None:
    """Drain evicts through the policy API."""
    _node(server, "n1")
    kubectl("label", "node", "n1", "gpu=true")
    kubectl("annotate", "node", "n1", "a=b")
    kubectl("taint", "node", "n1", "gpu=true:NoSchedule")
    assert "gpu=true:NoSchedule" in kubectl("describe", "node", "n1").stdout
    kubectl("taint", "node", "n1", "gpu-")
    body = {"metadata": {"name": "victim"}, "spec": {**POD, "nodeName": "n1", "terminationGracePeriodSeconds": 0}}
    assert server.ask("POST", "/api/v1/namespaces/default/pods", body).code == 201
    assert "evicting pod default/victim" in kubectl("drain", "n1", "--force", "--ignore-daemonsets").stdout
    assert "NotFound" in kubectl("get", "pod", "victim", ok=False).stderr
    assert "Ready,SchedulingDisabled" in kubectl("get", "nodes", "-o", "wide").stdout
    kubectl("uncordon", "n1")
    assert "SchedulingDisabled" not in kubectl("get", "nodes").stdout


def test_changes_by_hand(newer_kubectl: Kubectl) -> None:
    """Patch in three ways, set, restart, wait, replace, delete."""
    newer_kubectl("apply", "-f", "-", stdin=_manifest("hand"))
    newer_kubectl("set", "image", "ds/hand", "main=app:2")
    for kind, patch in (
        ("strategic", '{"spec":{"template":{"spec":{"containers":[{"name":"main","tty":true}]}}}}'),
        ("json", '[{"op":"add","path":"/metadata/labels","value":{"x":"y"}}]'),
        ("merge", '{"metadata":{"labels":{"x":"z"}}}'),
    ):
        newer_kubectl("patch", "ds", "hand", f"--type={kind}", "-p", patch)
    newer_kubectl("rollout", "restart", "ds/hand")
    found = json.loads(newer_kubectl("get", "ds", "-l", "x=z", "-o", "json").stdout)["items"][0]
    [container] = found["spec"]["template"]["spec"]["containers"]
    assert (container["image"], container["tty"]) == ("app:2", True)
    newer_kubectl("wait", "ds/hand", "--for=jsonpath={.metadata.labels.x}=z", "--timeout=60s")
    newer_kubectl("replace", "-f", "-", stdin=_manifest("hand", "app:9"))
    assert "deleted" in newer_kubectl("delete", "ds", "hand").stdout


def test_what_the_sandbox_cannot_do_is_said(kubectl: Kubectl, server: Running) -> None:
    """It has no processes and no metrics."""
    server.ask(
        "POST", "/api/v1/namespaces/default/pods", {"metadata": {"name": "still"}, "spec": {**POD, "nodeName": "n1"}}
    )
    assert "have no processes: exec is not possible" in kubectl("exec", "still", "--", "true", ok=False).stderr
    assert "Metrics API not available" in kubectl("top", "nodes", ok=False).stderr
