"""The host of a real node without SSH: facts, operations, files and processes through its kubelet."""

from __future__ import annotations

import os
import signal
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.answers import Answer
from tests.real.node.nodes import GPUS
from tests.real.node.own.test_runtime_imports import CONFIG, restarts, without_imports
from tests.real.node.settings import NODE
from tests.real.node.user import CHECKOUT, VALIDATOR, NodeUser

pytestmark = pytest.mark.real

PYINFRA = str(Path(sys.executable).with_name("pyinfra"))
HOST = f"@k8s-node/{NODE}"
MODULES = ("kernel/drivers/i2c/i2c-core.ko", "kernel/drivers/char/ipmi/ipmi_msghandler.ko")
_DEPLOY = """
from pyinfra.operations import files, server

files.put(src="random", dest="/root/it's there", name="put")
files.get(src="/root/it's there", dest="back", name="get")
server.shell(["cat > /root/stdin; echo told >&2; exit 4"], name="stdin", _stdin="one", _success_exit_codes=[4])
server.shell(["sleep 611 & sleep 612"], name="slow", _timeout=2, _ignore_errors=True)
"""


@pytest.fixture(scope="module")
def stack(user: NodeUser) -> Path:
    """An inventory of the same stack that connects through Kubernetes, and the rights that it needs on top."""
    document: dict[str, Any] = yaml.safe_load(user.inventory.read_text())
    document |= {"connect": "kubernetes", "helper_pod": {"image": VALIDATOR}, "host_prerequisites": {}}
    document["preflight"] = {"registry": False}
    path = user.folder / "without_ssh.yaml"
    path.write_text(yaml.safe_dump(document))
    path.with_suffix(".py").write_bytes((CHECKOUT / "inventories" / "sandbox.py").read_bytes())
    refused = user.cli("preflight", "-i", str(path))
    assert "GP303" in refused.text
    assert "pods is forbidden" in refused.text
    rights = user.folder / "more-rights.yaml"
    rights.write_text(user.cli("rbac", "--user", "gpu-provision", "-i", str(path), check=True).out)
    user.kubectl("apply", "-f", str(rights))
    listed = "".join(f"{module}\n" for module in MODULES)
    user.machine.run(
        "sh", "-c", f"mkdir -p /lib/modules/$(uname -r); cd /lib/modules; echo '{listed}' > $(uname -r)/modules.builtin"
    )
    return path


def pyinfra(user: NodeUser, stack: Path, *words: str) -> Answer:
    return user.run(PYINFRA, "-y", "--limit", NODE, stack.with_suffix(".py").name, *words)


def helper_pods(user: NodeUser) -> list[str]:
    found = user.json("pods", "-n", "kube-system", "-l", "gpu-provision.io/helper=host-shell")["items"]
    return [pod["metadata"]["name"] for pod in found]


def until_no_pod_is_left(user: NodeUser) -> None:
    user.machine.until(lambda: not helper_pods(user), what="a helper pod stays")


def test_preflight_reads_the_host(user: NodeUser, stack: Path) -> None:
    """As the user with the rights that rbac prints; the GPUs are counted on the node itself."""
    answer = user.cli("preflight", "--json", "-i", str(stack))
    assert "GP609" not in answer.text
    assert "GP655" not in answer.text
    assert "GP69" not in answer.text
    assert f'"gpus": {GPUS}' in answer.out
    until_no_pod_is_left(user)


def test_operations_change_the_host_once(user: NodeUser, stack: Path) -> None:
    """Kernel modules are built in there; nouveau is blacklisted by the first run."""
    deploy = str(CHECKOUT / "deploys" / "host_prerequisites.py")
    first, second = (pyinfra(user, stack, deploy) for _ in range(2))
    assert (first.code, second.code) == (0, 0), first.text + second.text
    assert "Success" in first.text.partition("nouveau kept away")[2]
    rows = second.text.partition("Beginning operation run")[2].partition("Results")[0]
    assert "Success" not in rows
    assert rows.count("No changes") == rows.count("Starting operation") > 0
    written = user.machine.run("sh", "-c", "cat /etc/modprobe.d/*")
    assert "blacklist nouveau" in written
    until_no_pod_is_left(user)


def test_acceptance_tests_look_at_the_host_through_a_pod(user: NodeUser, stack: Path) -> None:
    """What the run before has made true; one thing that is not says which, and no pod is left."""
    report = user.folder / "verified.xml"
    passed = user.cli("verify", "-i", str(stack), "--hosts-only", "--junit", str(report))
    assert passed.code == 0, passed.text
    assert 'skipped="0"' in report.read_text()
    user.machine.run("sh", "-c", "mkdir -p /root/kept && mv /etc/modprobe.d/gpu-provision* /root/kept")
    failed = user.cli("verify", "-i", str(stack), "--hosts-only", "--junit", str(report))
    user.machine.run("sh", "-c", "mv /root/kept/* /etc/modprobe.d")
    assert failed.code == 1, failed.text
    assert f"failed: {NODE}: nouveau is blacklisted" in failed.out
    assert 'failures="1"' in report.read_text()
    until_no_pod_is_left(user)


def test_files_streams_and_timeouts_are_as_over_ssh(user: NodeUser, stack: Path) -> None:
    """A file to the byte, stdin, errors and exit status apart; a command that is too slow is ended on the node."""
    content = os.urandom(1024 * 1024)
    (user.folder / "random").write_bytes(content)
    (user.folder / "deploy.py").write_text(_DEPLOY)
    answer = pyinfra(user, stack, "deploy.py")
    assert answer.code == 0, answer.text
    assert (user.folder / "back").read_bytes() == content
    assert user.machine.run("cat", "/root/stdin") == "one\n"
    assert "timed out after 2s" in answer.text
    assert not sleepers(user)
    until_no_pod_is_left(user)


def sleepers(user: NodeUser) -> list[str]:
    """Return those of the commands of this file that go on, on the node."""
    listed = user.machine.run("ps", "-eo", "args").splitlines()
    return [line for line in listed if line.startswith("sleep 61")]


def test_exit_status_and_errors_of_a_command_arrive(user: NodeUser, stack: Path) -> None:
    answer = pyinfra(user, stack, "exec", "--", "hostname; echo complaint >&2; exit 3")
    assert answer.code == 1
    assert f"[{HOST}] {NODE}\n" in answer.text
    assert f"[{HOST}] complaint\n" in answer.text


def test_client_that_was_killed_leaves_nothing_after_the_next(user: NodeUser, stack: Path) -> None:
    """Neither its pod nor what ran in it; the next client does not wait for an hour to pass."""
    until_no_pod_is_left(user)
    command = (PYINFRA, "-y", "--limit", NODE, stack.with_suffix(".py").name, "exec", "--", "sleep 613")
    with user.started(*command) as running:
        user.machine.until(lambda: sleepers(user), what="the command does not begin")
        running.send_signal(signal.SIGKILL)
        running.wait()
    assert len(helper_pods(user)) == 1
    assert pyinfra(user, stack, "exec", "--", "true").code == 0
    until_no_pod_is_left(user)
    assert not sleepers(user)


def test_a_runtime_restart_under_the_helper_pod_is_followed(user: NodeUser, stack: Path) -> None:
    """The import is made, and taken back by teardown: containerd restarts both times, and carries the connection."""
    with without_imports(user.machine):
        before = user.machine.run("cat", CONFIG)
        deploy, teardown = (str(CHECKOUT / "deploys" / name) for name in ("host_prerequisites.py", "host_teardown.py"))
        first, second = pyinfra(user, stack, deploy), pyinfra(user, stack, deploy)
        assert (first.code, second.code) == (0, 0), first.text + second.text
        assert restarts(user.machine) == 1, first.text
        assert tomllib.loads(user.machine.run("cat", CONFIG)) == {
            **tomllib.loads(before),
            "imports": ["/etc/containerd/conf.d/*.toml"],
        }
        assert "Success" not in second.text.partition("Beginning operation run")[2].partition("Results")[0]
        last = pyinfra(user, stack, teardown)
        assert last.code == 0, last.text
        assert restarts(user.machine) == 2, last.text
        assert user.machine.run("cat", CONFIG) == before
        until_no_pod_is_left(user)
