"""The world of a user of the sandbox, who owns it."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpu_provision.sandbox.apiserver.request_log import LoggedRequest, requests
from tests.scenarios.world import World, default_fleet

_LATENCY_SECONDS = 0.1
_USER = "gpu-provision"


class SandboxWorld(World):
    """API server, controllers and simulated machines are one process; hosts can be logged in to."""

    def __init__(self, folder: Path, **fleet: Any) -> None:
        """Write the files and start the sandbox; ``fleet`` changes the default fleet."""
        super().__init__(folder, "sandbox", default_fleet(**fleet))
        self.edit(lambda text: text.replace("sandbox: default", f"sandbox: {self.fleet}"))
        self.start_server()

    def close(self) -> None:
        self.cli("sandbox", "down", "--fleet", str(self.fleet))

    def account(self) -> Path:
        return self.kubeconfig

    def give_rights(self, *options: str) -> tuple[str, ...]:
        access = self.kubeconfig_of(_USER)
        self.submit(self.cli("rbac", "-i", str(self.inventory), *options, "--user", _USER).out)
        return "--kubeconfig", str(access)

    def kubeconfig_of(self, user: str) -> Path:
        command = ("sandbox", "kubeconfig", "--fleet", str(self.fleet), "--user", user)
        return Path(self.cli(*command, check=True).out.strip())

    def edited(self) -> None:
        """Nothing to do: who starts a sandbox may do everything there."""

    def requests(self) -> list[LoggedRequest]:
        """Every request that this tool sent so far, from the sandbox's request log."""
        log = self.kubeconfig.parent / "requests.log"
        return [request for request in requests(log) if request.agent.startswith("gpu-provision")]

    def server_fault(self, **fault: Any) -> None:
        self._declare("api-server", fault)

    def slow_down(self) -> None:
        """Let the API server wait before each answer."""
        self.server_fault(latency={"seconds": _LATENCY_SECONDS, "agents": "gpu-provision"})

    def speed_up(self) -> None:
        self.server_fault()

    def server_pid(self) -> int:
        return self._pid

    def kill_server(self) -> None:
        """End the sandbox's process, simulated machines included."""
        os.kill(self.server_pid(), signal.SIGKILL)

    def start_server(self) -> None:
        told = self.cli("sandbox", "up", "--json", "--fleet", str(self.fleet), check=True).document["sandbox"]
        self.kubeconfig, self._pid = Path(told["kubeconfig"]), int(told["pid"])


@contextlib.contextmanager
def sandbox_world(folder: Path, **fleet: Any) -> Iterator[SandboxWorld]:
    with contextlib.ExitStack() as ended:
        made = SandboxWorld(folder, **fleet)
        ended.callback(made.down)
        yield made
