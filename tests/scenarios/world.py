"""A user's world: a sandbox, an inventory file beside it, and the commands that the user types."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from gpu_provision.sandbox.apiserver.requestlog import Request, requests

CHECKOUT = Path(__file__).resolve().parents[2]
_BIN = Path(sys.executable).parent
COMMAND_SECONDS = 120


@dataclass(frozen=True)
class Answer:
    """What a command gave back."""

    code: int
    out: str
    err: str

    @property
    def text(self) -> str:
        """Both outputs, for messages of failed assertions."""
        return self.out + self.err


class User:
    """Somebody with a folder, an inventory in it, and a cluster."""

    def __init__(self, folder: Path, inventory: Path, kubeconfig: Path) -> None:
        """Write nothing yet.

        Args:
            folder: Everything of this user is in it.
            inventory: The YAML file; pyinfra's script lies beside it.
            kubeconfig: For kubectl; it need not exist yet.
        """
        self.folder, self.inventory, self.kubeconfig = folder, inventory, kubeconfig
        self.environment = {**os.environ, "GPU_PROVISION_SANDBOX_DIR": str(folder / "sandboxes"), "NO_COLOR": "1"}
        self.environment["XDG_STATE_HOME"] = str(folder / "state")

    def edit(self, change: Callable[[str], str]) -> None:
        """Change the inventory file's text, and fail if that changes nothing."""
        before = self.inventory.read_text()
        after = change(before)
        assert after != before
        self.inventory.write_text(after)

    def settings(self, **values: Any) -> None:
        """Merge settings into top-level sections of the inventory."""
        document = yaml.safe_load(self.inventory.read_text())
        for key, value in values.items():
            document[key] = {**document.get(key, {}), **value} if isinstance(value, dict) else value
        self.inventory.write_text(yaml.safe_dump(document, sort_keys=False))

    def run(self, *command: str, check: bool = False, stdin: str | None = None) -> Answer:
        """Run a command as this user."""
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
        answer = Answer(done.returncode, done.stdout, done.stderr)
        assert not check or answer.code == 0, answer.text
        return answer

    def start(self, *command: str) -> subprocess.Popen[str]:
        """Start a command of this user in the background; its output goes to one pipe."""
        return subprocess.Popen(
            command,
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    @property
    def apply_command(self) -> tuple[str, ...]:
        """The product's own front door."""
        return str(_BIN / "gpu-provision"), "apply", "--yes", "-i", str(self.inventory)

    def cli(self, *arguments: str, check: bool = False) -> Answer:
        """Run gpu-provision."""
        return self.run(str(_BIN / "gpu-provision"), *arguments, check=check)

    def apply(self, *arguments: str, check: bool = False) -> Answer:
        """Run gpu-provision apply on this user's inventory."""
        return self.run(*self.apply_command, *arguments, check=check)

    def pyinfra(self, *arguments: str, check: bool = False) -> Answer:
        """Run stock pyinfra, as the README says, on this user's inventory."""
        deploy = str(CHECKOUT / "deploys" / "gpu_stack.py")
        return self.run(str(_BIN / "pyinfra"), *arguments, self.inventory.with_suffix(".py").name, deploy, check=check)

    def kubectl(self, *arguments: str, check: bool = True, stdin: str | None = None) -> Answer:
        """Run the real kubectl."""
        return self.run("kubectl", "--kubeconfig", str(self.kubeconfig), *arguments, check=check, stdin=stdin)

    def json(self, *arguments: str) -> Any:
        """Return what kubectl gets, as JSON."""
        return json.loads(self.kubectl("get", *arguments, "-o", "json").out)

    def fault(self, *faults: dict[str, Any]) -> None:
        """Declare the faults of simulated nodes that are in force from now on; none to end them all."""
        self._fault_map("nodes", list(faults))

    def _fault_map(self, key: str, value: Any) -> None:
        manifest = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "sandbox-faults", "namespace": "kube-system"},
            "data": {key: yaml.safe_dump(value)},
        }
        self.kubectl("apply", "-f", "-", stdin=json.dumps(manifest))

    def requests(self) -> list[Request]:
        """Every request that this tool sent so far."""
        raise NotImplementedError

    def writes(self) -> list[Request]:
        """Those that could change something."""
        return [request for request in self.requests() if request.is_write]

    def until(self, condition: Callable[[], Any], *, seconds: float = 30) -> Any:
        """Wait until a condition holds and return what it gave; fail after a deadline."""
        give_up = time.monotonic() + seconds
        while not (found := condition()):
            assert time.monotonic() < give_up, "the condition did not come true in time"
            time.sleep(0.05)
        return found


class World(User):
    """A user of a sandbox of their own; close it with `down`."""

    def __init__(self, folder: Path, *, fleet: dict[str, Any] | None = None) -> None:
        """Write the files and start the sandbox.

        Args:
            folder: Empty; everything of this world is in it.
            fleet: Changes to the default fleet's top-level keys; tests run ten times as fast as people watch.
        """
        super().__init__(folder, folder / "sandbox.yaml", folder / "unknown yet")
        default = yaml.safe_load((CHECKOUT / "gpu_provision/sandbox/fleets/default.yaml").read_text())
        self.fleet = folder / "fleet.yaml"
        self.fleet.write_text(yaml.safe_dump({**default, "timings": {"speed": 10}, **(fleet or {})}))
        for name in ("sandbox.py", "sandbox.yaml"):
            shutil.copy(CHECKOUT / "inventories" / name, folder / name)
        self.edit(lambda text: text.replace("sandbox: default", f"sandbox: {self.fleet}"))
        self.cli("sandbox", "up", "--fleet", str(self.fleet), check=True)
        self.kubeconfig = Path(self.cli("sandbox", "kubeconfig", "--fleet", str(self.fleet), check=True).out.strip())

    def down(self) -> None:
        """End the sandbox."""
        self.cli("sandbox", "down", "--fleet", str(self.fleet))

    def server_fault(self, **fault: Any) -> None:
        """Declare the API server's own fault; nothing to end it."""
        self._fault_map("api-server", fault)

    def requests(self) -> list[Request]:
        """Every request that this tool sent so far."""
        log = self.kubeconfig.parent / "requests.log"
        return [request for request in requests(log) if request.agent.startswith("gpu-provision")]
