"""The chart on a real node: ``helm test`` runs a pod of the controller's image, with its own roles."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.answers import Answer
from tests.real import binaries, clients
from tests.real.node.test_stacks import HOME, IMAGE, NAME, exists, import_image
from tests.real.node.user import CHECKOUT, NodeUser

pytestmark = pytest.mark.real

RELEASE = "gpu-provision"
CHART = str(CHECKOUT / "charts/gpu-provision")


def helm(user: NodeUser, command: str, *words: str, check: bool = True) -> Answer:
    environment = (f"HELM_CACHE_HOME={user.folder}", f"HELM_CONFIG_HOME={user.folder}")
    access = ("--kubeconfig", str(user.machine.kubeconfig), "--namespace", HOME)
    path = str(clients.path(binaries.cache(), "helm"))
    return user.run("env", *environment, path, command, RELEASE, *words, *access, check=check)


@pytest.fixture(scope="module")
def release(user: NodeUser) -> Iterator[NodeUser]:
    """The node with the chart's controllers, without a stack."""
    if not clients.path(binaries.cache(), "helm").is_file():
        pytest.skip("no helm: python -m tests.real.binaries downloads it")
    import_image(user)
    repository = f"--set=image.repository={IMAGE.rpartition(':')[0]}"
    helm(user, "install", CHART, repository, "--create-namespace", "--wait", "--timeout=10m")
    yield user
    helm(user, "uninstall", "--wait", "--timeout=5m")
    user.kubectl("delete", "crd", "gpustacks.gpu-provision.io")
    user.kubectl("delete", "namespace", HOME, "gpu-operator-resources", "node-feature-discovery")


def test_a_working_operator_passes(release: NodeUser) -> None:
    told = helm(release, "test", "--logs", "--timeout=5m", check=False)
    assert told.code == 0, told.text
    assert "Controllers in the cluster: 2/2" in told.out
    assert "gpu-provision 0.1.0" in told.out
    found = release.kubectl("get", "serviceaccounts,roles,rolebindings", "-n", HOME, "-o", "name")
    assert f"{NAME}-test" not in found


def test_an_operator_without_a_leader_fails(release: NodeUser) -> None:
    """And its log says so."""
    helm(release, "upgrade", CHART, "--reuse-values", "--wait", "--timeout=5m")
    release.kubectl("scale", "deployment", NAME, "-n", HOME, "--replicas=0")
    release.machine.until(
        lambda: not release.json("lease", NAME, "-n", HOME)["spec"].get("holderIdentity"), what="the leader stays"
    )
    assert helm(release, "test", "--timeout=5m", check=False).code == 1
    assert "There is no leader" in release.kubectl("logs", "-n", HOME, f"{NAME}-test")
    assert exists(release, "pod", f"{NAME}-test", "-n", HOME)
