"""A user of the machine's cluster, whose commands use the machine's network."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from tests.answers import Answer
from tests.real.node.machine import Machine
from tests.real.node.settings import NODE

CHECKOUT = Path(__file__).resolve().parents[3]
OPERANDS, NFD = "gpu-operator-resources", "node-feature-discovery"
VALIDATOR = "nvcr.io/nvidia/gpu-operator:v26.7.0"
"""An image that has vectorAdd."""
INVENTORY = Path(__file__).with_name("inventory.yaml")
_BIN = Path(sys.executable).parent
_COMMAND_SECONDS = 1200
_AGENT = _USER = "gpu-provision"
_WRITES = {"create", "update", "patch", "delete", "deletecollection"}


class NodeUser:
    """A user with a folder, an inventory of the one node in it, and the commands that users type.

    gpu-provision and pyinfra run as a user who has only the rights they need, kubectl as administrator.
    """

    def __init__(self, folder: Path, machine: Machine, inventory: Path = INVENTORY) -> None:
        self.folder, self.machine = folder, machine
        self.inventory = folder / "node.yaml"
        self.environment = {**os.environ, "XDG_STATE_HOME": str(folder / "state"), "NO_COLOR": "1"}
        self.environment["PYTHONPATH"] = str(CHECKOUT)
        shutil.copy(CHECKOUT / "inventories" / "sandbox.py", folder / "node.py")
        document = yaml.safe_load(inventory.read_text())
        document["cluster"]["kubeconfig"] = str(machine.kubeconfig_of(_USER))
        self.inventory.write_text(yaml.safe_dump(document, sort_keys=False))

    def settings(self, **sections: dict[str, Any]) -> None:
        document = yaml.safe_load(self.inventory.read_text())
        for name, values in sections.items():
            document[name] = {**document.get(name, {}), **values}
        self.inventory.write_text(yaml.safe_dump(document, sort_keys=False))

    def take_rights(self) -> None:
        rights = self.folder / "rights.yaml"
        rights.write_text(self.cli("rbac", "--user", _USER, "-i", str(self.inventory), check=True).out)
        self.kubectl("apply", "-f", str(rights))

    def run(self, *command: str, check: bool = False) -> Answer:
        done = subprocess.run(
            [*self.machine.network, *command],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_COMMAND_SECONDS,
            check=False,
        )
        answer = Answer(done.returncode, done.stdout, done.stderr)
        assert not check or answer.code == 0, answer.text
        return answer

    @contextlib.contextmanager
    def started(self, *command: str) -> Iterator[subprocess.Popen[str]]:
        with (
            (self.folder / "started.log").open("w") as log,
            subprocess.Popen(
                [*self.machine.network, *command],
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            ) as running,
        ):
            yield running
            running.kill()

    def cli(self, *arguments: str, check: bool = False) -> Answer:
        return self.run(str(_BIN / "gpu-provision"), *arguments, check=check)

    def apply(self, *arguments: str, check: bool = False) -> Answer:
        return self.cli("apply", "--yes", "-i", str(self.inventory), *arguments, check=check)

    def apply_with(self, mistakes: str) -> tuple[str, ...]:
        """Return the command line of gpu-provision apply with mistakes in its manifests."""
        program = (sys.executable, "-m", "tests.real.node.mutations", mistakes)
        return *program, "apply", "--yes", "--json", "-i", str(self.inventory)

    def pyinfra(self, *arguments: str, check: bool = False) -> Answer:
        deploy = str(CHECKOUT / "deploys" / "gpu_stack.py")
        return self.run(str(_BIN / "pyinfra"), *arguments, "node.py", deploy, check=check)

    def kubectl(self, *arguments: str, check: bool = True) -> str:
        return self.run("kubectl", "--kubeconfig", str(self.machine.kubeconfig), *arguments, check=check).out

    def json(self, *arguments: str) -> Any:
        return json.loads(self.kubectl("get", *arguments, "-o", "json"))

    def pods(self, app: str, namespace: str = OPERANDS) -> list[Any]:
        found = self.json("pods", "-n", namespace, "-l", f"app={app}")["items"]
        return [pod for pod in found if not pod["metadata"].get("deletionTimestamp")]

    def pod(self, app: str) -> Any:
        (found,) = self.pods(app)
        return found

    def allocatable(self, resource: str = "nvidia.com/gpu") -> str:
        return str(self.json("node", NODE)["status"]["allocatable"].get(resource, "0"))

    def log(self, pod: Any, container: str = "", *, check: bool = True) -> str:
        metadata, chosen = pod["metadata"], ("-c", container) if container else ()
        return self.kubectl("logs", "-n", metadata["namespace"], metadata["name"], *chosen, check=check)

    def finished_pod(self, name: str, image: str, command: str, *, gpus: int, resource: str = "nvidia.com/gpu") -> Any:
        """Run a shell command in a pod of this user's own, and return the pod when it has ended."""
        self.start_pod(name, image, command, gpus=gpus, resource=resource)
        return self.ended_pod(name)

    def start_pod(self, name: str, image: str, command: str, *, gpus: int, resource: str = "nvidia.com/gpu") -> None:
        limits = {"resources": {"limits": {resource: gpus}}} if gpus else {}
        container = {"name": "main", "image": image, "command": ["sh", "-c", command], **limits}
        spec = {"restartPolicy": "Never", "runtimeClassName": "nvidia", "containers": [container]}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
        file = self.folder / f"{name}.json"
        file.write_text(json.dumps(pod))
        self.kubectl("create", "-f", str(file))

    def ended_pod(self, name: str) -> Any:
        """Wait until a pod has ended, and return it."""
        ended = {"Succeeded", "Failed"}
        self.machine.until(lambda: self.json("pod", name)["status"]["phase"] in ended, what=f"{name} does not end")
        return self.json("pod", name)

    def requests(self) -> list[dict[str, Any]]:
        """Return the audit events of this tool's requests so far; one that is not answered yet is left out."""
        complete, _, _ = self.machine.audit_log.read_text().rpartition("\n")
        events = [event for event in map(json.loads, complete.splitlines()) if event.get("userAgent") == _AGENT]
        return list({event["auditID"]: event for event in events}.values())

    def writes(self) -> list[dict[str, Any]]:
        """Return those that could change something."""
        return [event for event in self.requests() if event["verb"] in _WRITES and "dryRun=" not in event["requestURI"]]


def init_container(pod: Any, name: str) -> Any:
    """How an init container of a pod ended."""
    statuses = {status["name"]: status for status in pod["status"]["initContainerStatuses"]}
    return statuses[name]["state"]["terminated"]
