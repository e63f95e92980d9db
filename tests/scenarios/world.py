"""A user's world: a cluster, an inventory file for it, and the commands that the user types."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, ClassVar

import yaml

from gpu_provision.sandbox.apiserver.request_log import LoggedRequest
from tests.answers import Answer
from tests.fork_server import CommandServer
from tests.scenarios.client import Client

CHECKOUT = Path(__file__).resolve().parents[2]
_BIN = Path(sys.executable).parent
PROGRAM, PYINFRA = str(_BIN / "gpu-provision"), str(_BIN / "pyinfra")
COMMAND_SECONDS = 300
OPERANDS = "gpu-operator-resources"
USES_GPU = {"resources": {"limits": {"nvidia.com/gpu": "1"}}}
SEES_GPUS = {"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]}
"""The container uses GPUs without a request, so Kubernetes does not count them."""
ANY_TAINT = {"tolerations": [{"operator": "Exists", "key": "nvidia.com/gpu"}]}
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.1, 0.5
OPERATOR = "system:serviceaccount:gpu-operator:gpu-provision-operator"
"""The controller's account, as an API server calls it."""
ADOPTER = "adopter"
"""An account with the rights for an adoption, and no others."""

SPARE_NODES = 8
"""GPU nodes of every fleet that no inventory names at first."""


def default_fleet(**changes: Any) -> dict[str, Any]:
    """Return the sandbox's default fleet, fifty times as fast as it is by itself, with changed top-level keys.

    Tests that have to catch something half done name a lower speed.
    """
    default = yaml.safe_load((CHECKOUT / "gpu_provision/sandbox/fleets/default.yaml").read_text())
    return {**default, "timings": {"speed": 50}, **changes}


def with_spare_nodes() -> dict[str, Any]:
    """Return the key that adds GPU nodes to the default fleet which no inventory names at first."""
    spare = {"name": "spare-{:02}", "count": SPARE_NODES, "gpu": {"model": "Tesla T4", "count": 1}}
    return {"nodes": [*default_fleet()["nodes"], {**spare, "labels": {"fleet": "spare"}}]}


class World(ABC):
    """A user with a folder, an inventory in it, and a cluster with simulated nodes; close it with `down`."""

    servers: ClassVar[Mapping[str, CommandServer]] = {}  # program -> what runs its commands, so that they begin at once
    node_flags: tuple[str, ...] = ()  # of simulated nodes that are attached to the cluster, beside its kubeconfig
    audit_log: Path | None = None  # of a real API server that tests started

    def __init__(self, folder: Path, name: str, fleet: dict[str, Any]) -> None:
        """Write the inventory under this name, pyinfra's script beside it, and the fleet; nothing runs yet."""
        self.folder, self.name = folder, name
        self.inventory, self.fleet = folder / f"{name}.yaml", folder / "fleet.yaml"
        self.kubeconfig = folder / "unknown yet"
        self.environment = {**os.environ, "GPU_PROVISION_SANDBOX_DIR": str(folder / "sandboxes"), "NO_COLOR": "1"}
        self.environment["XDG_STATE_HOME"] = str(folder / "state")
        self._started: list[subprocess.Popen[str]] = []
        self._clients: dict[Path, Client] = {}
        self.fleet.write_text(yaml.safe_dump(fleet))
        shutil.copy(CHECKOUT / "inventories" / "sandbox.py", self.inventory.with_suffix(".py"))
        text = (CHECKOUT / "inventories" / "sandbox.yaml").read_text()
        self.inventory.write_text(text.replace("name: sandbox\n", f"name: {name}\n"))

    def down(self) -> None:
        """End everything, and first the commands that a failed test left running."""
        for command in self._started:
            command.kill()
            command.communicate()
        for client in self._clients.values():
            client.close()
        self.close()

    @abstractmethod
    def close(self) -> None:
        """End the cluster, or leave it."""

    @abstractmethod
    def requests(self) -> list[LoggedRequest]:
        """Every request that this tool sent to this world's API server so far."""

    @abstractmethod
    def account(self) -> Path:
        """The kubeconfig that the tool runs with."""

    @abstractmethod
    def give_rights(self, *options: str) -> tuple[str, ...]:
        """Let the administrator apply what ``gpu-provision rbac`` prints; return the flags to run with no more."""

    @abstractmethod
    def kubeconfig_of(self, user: str) -> Path:
        """The kubeconfig of an account that has no permission until RBAC grants it."""

    @abstractmethod
    def slow_down(self) -> None:
        """Make every request of the tool take its time, so that a kill can fall between two of them."""

    @abstractmethod
    def speed_up(self) -> None:
        """End that."""

    @abstractmethod
    def server_pid(self) -> int:
        """The process of the API server."""

    @abstractmethod
    def kill_server(self) -> None:
        """End the API server without a warning."""

    @abstractmethod
    def start_server(self) -> None:
        """Start an API server that was killed: the same address, the same objects."""

    def kill_everything(self) -> None:
        """End the API server, and what keeps its objects if that is another process."""
        self.kill_server()

    def start_everything(self) -> None:
        self.start_server()

    def edit(self, change: Callable[[str], str]) -> None:
        """Change the inventory file's text, and fail if that changes nothing."""
        before = self.inventory.read_text()
        after = change(before)
        assert after != before
        self.inventory.write_text(after)
        self.edited()

    def settings(self, **values: Any) -> None:
        document = yaml.safe_load(self.inventory.read_text())
        for key, value in values.items():
            document[key] = {**document.get(key, {}), **value} if isinstance(value, dict) else value
        self.inventory.write_text(yaml.safe_dump(document, sort_keys=False))
        self.edited()

    def replace(self, key: str, value: Any) -> None:
        """Write another value of a key at the top of the inventory."""
        document = yaml.safe_load(self.inventory.read_text())
        self.inventory.write_text(yaml.safe_dump({**document, key: value}, sort_keys=False))
        self.edited()

    def settings_of_pool(self, pool: str, **values: Any) -> None:
        """Change settings of a pool; None removes one."""
        pools = yaml.safe_load(self.inventory.read_text())["pools"]
        merged = {key: value for key, value in {**pools[pool], **values}.items() if value is not None}
        self.settings(pools={pool: merged})

    def declare(self, node: dict[str, Any]) -> None:
        self.settings(nodes=[*yaml.safe_load(self.inventory.read_text())["nodes"], node])

    @abstractmethod
    def edited(self) -> None:
        """Do what goes with a change of the inventory."""

    def run(self, *command: str, check: bool = False, stdin: str | None = None) -> Answer:
        answer = self._answer(command, stdin)
        assert not check or answer.code == 0, answer.text
        return answer

    def _answer(self, command: tuple[str, ...], stdin: str | None) -> Answer:
        if server := self.servers.get(command[0]):
            place = {"folder": self.folder, "environment": self.environment}
            return server.run(command, **place, stdin=stdin, seconds=COMMAND_SECONDS)
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=self.environment,
            input=stdin,
            stdin=None if stdin is not None else subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS,
            check=False,
        )
        return Answer(done.returncode, done.stdout, done.stderr)

    def start(self, *command: str, log: Path | None = None) -> subprocess.Popen[str]:
        """Start a command of this user in the background; what runs long needs a log, as a full pipe stops it."""
        with contextlib.ExitStack() as opened:
            run = subprocess.Popen(
                command,
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=opened.enter_context(log.open("a")) if log else subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        self._started.append(run)
        return run

    @property
    def apply_command(self) -> tuple[str, ...]:
        return PROGRAM, "apply", "--yes", "-i", str(self.inventory)

    def cli(self, *arguments: str, check: bool = False) -> Answer:
        return self.run(PROGRAM, *arguments, check=check)

    def apply(self, *arguments: str, check: bool = False) -> Answer:
        return self.run(*self.apply_command, *arguments, check=check)

    def plan(self, *arguments: str) -> Answer:
        return self.cli("plan", "--cluster-only", *arguments, "-i", str(self.inventory))

    def status(self) -> Any:
        """Return what gpu-provision status says; it exits with 1 where something is not ready."""
        return json.loads(self.cli("status", "--json", "-i", str(self.inventory)).out)

    def pyinfra(self, *arguments: str, deploy: str = "gpu_stack.py", check: bool = False) -> Answer:
        return self.run(*self.pyinfra_command(*arguments, deploy=deploy), check=check)

    def pyinfra_command(self, *arguments: str, deploy: str = "gpu_stack.py") -> tuple[str, ...]:
        words = self.inventory.with_suffix(".py").name, str(CHECKOUT / "deploys" / deploy)
        return PYINFRA, *arguments, *words

    def kubectl(self, *arguments: str, check: bool = True, stdin: str | None = None) -> Answer:
        """Run the real kubectl as the cluster's administrator; for what is about kubectl, which is marked ``real``."""
        return self.run("kubectl", "--kubeconfig", str(self.kubeconfig), *arguments, check=check, stdin=stdin)

    @property
    def api(self) -> Client:
        if self.kubeconfig not in self._clients:
            self._clients[self.kubeconfig] = Client(self.kubeconfig)
        return self._clients[self.kubeconfig]

    def json(self, *words: str) -> Any:
        """Return the object that is named, or a list, as the cluster's administrator; a refusal fails."""
        return self.api.get(*words)

    def submit(self, manifest: dict[str, Any] | str, manager: str = "kubectl") -> None:
        self.api.apply(manifest, manager)

    def pods(self, app: str, *words: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.json("pods", "-n", OPERANDS, "-l", f"app={app}", *words)["items"]
        return found

    def driver_pods(self) -> list[dict[str, Any]]:
        return [pod for pod in self.pods("nvidia-driver-daemonset") if "nodeName" in pod["spec"]]

    def boot(self, node: str) -> str:
        return str(self.json("node", node)["status"]["nodeInfo"]["bootID"])

    def reboot(self, node: str) -> None:
        """Reboot a simulated machine, and wait until its node says so."""
        before = self.boot(node)
        self.fault({"fault": "node-reboots", "node": node})
        self.until(lambda: self.boot(node) != before)
        self.fault()

    def run_pod(self, name: str, container: Mapping[str, Any], **spec: Any) -> None:
        """Make a pod whose container has these keys beside name and image."""
        metadata = {"name": name, "namespace": "default"}
        self.submit({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": _pod(container, spec)})

    def deploy(
        self, name: str, container: Mapping[str, Any], *, replicas: int = 1, namespace: str = "default", **spec: Any
    ) -> None:
        """Make a Deployment of such pods, whose label ``app`` is its name."""
        labels, metadata = {"app": name}, {"name": name, "namespace": namespace}
        template = {"metadata": {"labels": labels}, "spec": _pod(container, spec)}
        body = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template}
        self.submit({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": body})

    def budget(self, name: str, *, namespace: str = "default", **limit: int) -> None:
        version = "policy/v1" if self.api.serves("policy/v1") else "policy/v1beta1"
        spec = {"selector": {"matchLabels": {"app": name}}, **limit}
        metadata = {"name": name, "namespace": namespace}
        self.submit({"apiVersion": version, "kind": "PodDisruptionBudget", "metadata": metadata, "spec": spec})

    def fault(self, *faults: dict[str, Any]) -> None:
        """Declare the faults of simulated nodes that are in force from now on; none to end them all."""
        self._declare("nodes", list(faults))

    def _declare(self, key: str, value: Any) -> None:
        manifest = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "sandbox-faults", "namespace": "kube-system"},
            "data": {key: yaml.safe_dump(value)},
        }
        self.submit(manifest)

    def writes(self) -> list[LoggedRequest]:
        """The tool's requests that could change something."""
        return [request for request in self.requests() if request.is_write]

    def until(self, condition: Callable[[], Any], *, seconds: float = 120) -> Any:
        """Wait until a condition holds and return what it gave; fail after a deadline.

        What is costly to ask, such as by a process, is asked more seldom: who waits leaves others their share.
        """
        asked = time.monotonic()
        give_up = asked + seconds
        while not (found := condition()):
            now = time.monotonic()
            assert now < give_up, "the condition did not come true in time"
            time.sleep(min(max(_SHORTEST_PAUSE, 2 * (now - asked)), _LONGEST_PAUSE))
            asked = time.monotonic()
        return found


def _pod(container: Mapping[str, Any], spec: Mapping[str, Any]) -> dict[str, Any]:
    return {"containers": [{"name": "main", "image": "busybox", **container}], **spec}


def without(value: Any, keys: Collection[str]) -> Any:
    """Leave keys out of an object, at any depth."""
    if isinstance(value, dict):
        return {key: without(item, keys) for key, item in value.items() if key not in keys}
    return [without(item, keys) for item in value] if isinstance(value, list) else value
