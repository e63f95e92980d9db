"""Operator mode on a real node: two controllers in pods of their own image, with what is rendered and nothing more."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.real.images import controller
from tests.real.node.nodes import GPUS
from tests.real.node.settings import NODE
from tests.real.node.user import NFD, OPERANDS, VALIDATOR, NodeUser

pytestmark = pytest.mark.real

IMAGE = "registry.example.com/gpu-provision:0.1.0"
HOME, NAME, STACK = "gpu-operator", "gpu-provision-operator", "node"
OPERAND = "gpu-feature-discovery"
_MEBIBYTE = 1 << 10  # in KiB, as the kernel counts
_OURS = "app.kubernetes.io/managed-by=gpu-provision"


@pytest.fixture(scope="module")
def operator(user: NodeUser) -> NodeUser:
    """The node without a stack, and two controllers on it. DCGM exporter takes 45 s to get ready, each time."""
    _destroy(user)
    user.settings(dcgm_exporter={"enabled": False}, gfd={"timeout": 300})
    import_image(user)
    access = ("--kubeconfig", str(user.machine.kubeconfig))
    user.cli("operator", "install", "--yes", "--image", IMAGE, "--timeout", "900", *access, check=True)
    return user


def _destroy(user: NodeUser) -> None:
    rights = user.folder / "rights.yaml"
    rights.write_text(user.cli("rbac", "--destroy", "--user", "gpu-provision", "-i", str(user.inventory)).out)
    user.kubectl("apply", "-f", str(rights))
    user.cli("destroy", "--yes", "-i", str(user.inventory), check=True)


def import_image(user: NodeUser) -> None:
    archive = controller.archive(IMAGE, user.folder / "controller.tar")
    user.machine.run("ctr", "-n", "k8s.io", "images", "import", str(archive))
    archive.unlink()


def declare(user: NodeUser) -> None:
    file = user.folder / "stack.yaml"
    file.write_text(user.cli("operator", "stack", "-i", str(user.inventory), check=True).out)
    user.kubectl("apply", "-f", str(file))


def until_ready(user: NodeUser) -> None:
    user.kubectl("wait", "--for=condition=Ready", f"gpustack/{STACK}", "--timeout=900s")


def until(user: NodeUser, condition: Callable[[], object], what: str) -> None:
    user.machine.until(condition, what=what, seconds=600)


def logs(user: NodeUser) -> str:
    labels = ("-l", "app.kubernetes.io/component=operator", "--tail=-1", "--prefix")
    return user.kubectl("logs", "-n", HOME, *labels, check=False)


def processes(user: NodeUser) -> dict[str, str]:
    """Return the number of each controller's process on the machine, by the name of its pod."""
    script = """for place in /proc/[0-9]*; do
      tr '\\0' ' ' <$place/cmdline | grep -q 'gpu-provision operator run' || continue
      echo "$(tr '\\0' '\\n' <$place/environ | sed -n s/^HOSTNAME=//p) ${place#/proc/}"
    done 2>/dev/null || true"""
    lines = user.machine.run("sh", "-c", script).splitlines()
    return dict(pair for line in lines if len(pair := line.split()) == 2)


def status_of(user: NodeUser, process: str) -> dict[str, str]:
    """Return what the kernel says of a process."""
    lines = user.machine.run("cat", f"/proc/{process}/status").splitlines()
    return {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}


def holder(user: NodeUser) -> str:
    """Return who leads: a process; empty if no controller leads."""
    return str(user.json("lease", NAME, "-n", HOME)["spec"].get("holderIdentity") or "")


def leader(user: NodeUser) -> str:
    return holder(user).partition("@")[2].partition(" ")[0]


def exists(user: NodeUser, *words: str) -> bool:
    return bool(user.kubectl("get", *words, "--ignore-not-found", "-o", "name"))


def test_controllers_run_as_any_user_and_write_one_folder(operator: NodeUser) -> None:
    """No privilege, no capability, a read-only root file system, seccomp; and one of the two leads."""
    found = processes(operator)
    assert len(found) == 2, found
    assert leader(operator) in found
    for process in found.values():
        status = status_of(operator, process)
        assert set(status["Uid"].split()) == set(status["Gid"].split()) == {"65532"}
        assert {int(status[key], 16) for key in ("CapEff", "CapPrm", "CapBnd")} == {0}
        assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
        mounts = [line.split() for line in operator.machine.run("cat", f"/proc/{process}/mountinfo").splitlines()]
        assert [mount[5].split(",")[0] for mount in mounts if mount[4] == "/"] == ["ro"]


def test_a_stack_is_brought_up(operator: NodeUser) -> None:
    """By the leader, with the rights that are rendered; a pod gets its GPU."""
    declare(operator)
    until_ready(operator)
    assert operator.allocatable() == str(GPUS)
    asking = operator.finished_pod("stacked", VALIDATOR, "vectorAdd", gpus=1)
    assert asking["status"]["phase"] == "Succeeded"
    operator.kubectl("delete", "pod", "stacked")
    most = int(status_of(operator, processes(operator)[leader(operator)])["VmHWM"].split()[0])
    assert most < 256 * _MEBIBYTE, "what is requested for it"


def test_an_edit_is_undone(operator: NodeUser) -> None:
    image = ("daemonset", OPERAND, "-n", OPERANDS, "-o", "jsonpath={.spec.template.spec.containers[0].image}")
    declared = operator.kubectl("get", *image)
    operator.kubectl("set", "image", f"daemonset/{OPERAND}", "-n", OPERANDS, "*=busybox:1")
    until(operator, lambda: operator.kubectl("get", *image) == declared, "the edit stays")
    until_ready(operator)


def test_a_leader_that_is_killed_is_followed(operator: NodeUser) -> None:
    """By the other one, or by its own container that has restarted; what was deleted meanwhile comes back."""
    first = holder(operator)
    operator.machine.run("kill", "-9", processes(operator)[leader(operator)])
    operator.kubectl("delete", "daemonset", OPERAND, "-n", OPERANDS)
    until(operator, lambda: holder(operator) not in ("", first), "no other controller follows")
    until(operator, lambda: exists(operator, "daemonset", OPERAND, "-n", OPERANDS), "the DaemonSet stays deleted")
    until(operator, lambda: len(processes(operator)) == 2, "the container does not restart")
    until_ready(operator)


def test_no_error_was_left_unreported(operator: NodeUser) -> None:
    said = logs(operator)
    (operator.folder / "controllers.log").write_text(said)
    assert "Traceback" not in said, said
    assert "GP310" not in said, said
    assert "GP303" not in said, said


def test_a_stack_that_is_deleted_is_taken_off_the_node(operator: NodeUser) -> None:
    """And its removal is audited before the stack goes."""
    operator.kubectl("delete", "gpustack", STACK, "--timeout=900s")
    assert not exists(operator, "daemonsets,deployments,pods,configmaps", "-n", OPERANDS, "-l", _OURS)
    assert not exists(operator, "namespace", NFD) or not exists(operator, "daemonsets", "-n", NFD)
    labels = operator.json("node", NODE)["metadata"]["labels"]
    assert not [name for name in labels if name.startswith(("nvidia.com/", "gpu-provision.io/"))], labels


def test_the_operator_leaves_nothing(operator: NodeUser) -> None:
    """No namespace, no right, no definition, no process."""
    access = ("--kubeconfig", str(operator.machine.kubeconfig))
    operator.cli("operator", "uninstall", "--yes", *access, check=True)
    until(operator, lambda: not exists(operator, "namespace", HOME), "its namespace stays")
    assert not exists(operator, "crd", "gpustacks.gpu-provision.io")
    found = operator.kubectl("get", "clusterroles,clusterrolebindings", "-o", "name")
    assert NAME not in found
    assert processes(operator) == {}
