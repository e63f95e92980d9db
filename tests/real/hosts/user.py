"""A user with an inventory of hosts, and the commands that users type."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.answers import Answer
from tests.real.hosts.ssh_host import SshHost

CHECKOUT = Path(__file__).resolve().parents[3]
_BIN = Path(sys.executable).parent
_SECONDS = 600


@dataclass(frozen=True)
class User:
    """A folder with an inventory in it. The first host is reached as root, the others through sudo."""

    folder: Path  # where commands run; the inventory is ``hosts.yaml`` there, and ``hosts.py`` for pyinfra.
    machines: tuple[SshHost, ...]  # the inventory's nodes
    kubeconfig: Path  # of the inventory's cluster
    settings: dict[str, Any] = field(default_factory=dict)  # sections of the inventory besides

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        document = yaml.safe_load((Path(__file__).parent / "inventory.yaml").read_text()) | self.settings
        document["cluster"] = {"kubeconfig": str(self.kubeconfig)}
        document["nodes"] = list(_nodes(self.machines))
        self.inventory.write_text(yaml.safe_dump(document, sort_keys=False))
        (self.folder / "hosts.py").write_text((CHECKOUT / "inventories" / "prod.py").read_text())

    @property
    def inventory(self) -> Path:
        return self.folder / "hosts.yaml"

    def cli(self, *arguments: str) -> Answer:
        with self.started(*arguments) as running:
            out, err = running.communicate(timeout=_SECONDS)
            return Answer(running.returncode, out, err)

    def apply(self, *arguments: str) -> Answer:
        return self.cli("apply", "--yes", "--json", *arguments)

    def pyinfra(self, deploy: str, *arguments: str) -> Answer:
        """Run stock pyinfra on this inventory, as the README says: without a question, or with other options."""
        command = [str(_BIN / "pyinfra"), *(arguments or ["-y"]), "hosts.py", str(CHECKOUT / "deploys" / deploy)]
        with self._popen(command) as running:
            out, err = running.communicate(timeout=_SECONDS)
            return Answer(running.returncode, out, err)

    @contextlib.contextmanager
    def started(self, *arguments: str) -> Iterator[subprocess.Popen[str]]:
        """Run gpu-provision in the background; it ends with the block at the latest."""
        command, *rest = arguments
        with self._popen([str(_BIN / "gpu-provision"), command, "-i", str(self.inventory), *rest]) as running:
            yield running

    @contextlib.contextmanager
    def _popen(self, command: list[str]) -> Iterator[subprocess.Popen[str]]:
        environment = {**os.environ, "NO_COLOR": "1", "HOME": str(self.folder), "PYTHONPATH": str(CHECKOUT)}
        pipe = subprocess.PIPE
        with subprocess.Popen(
            command, cwd=self.folder, env=environment, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True
        ) as running:
            try:
                yield running
            finally:
                running.kill()


def _nodes(machines: Iterable[SshHost]) -> Iterator[dict[str, Any]]:
    for number, machine in enumerate(machines):
        ssh = {"port": machine.port, "key": str(machine.key), "known_hosts_file": str(machine.known_hosts)}
        user = "admin" if number else "root"
        yield {"name": machine.name, "pool": "t4", "address": "127.0.0.1", "ssh": {**ssh, "user": user}}
