"""Simulated hosts that are reached over SSH, and the inventory that says how."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from gpu_provision.inventory import load
from gpu_provision.model.inventory import Inventory
from gpu_provision.sandbox import hosts
from tests.hosts.ssh_server import Conduct, Server, private_key, serving

CHECKOUT = Path(__file__).resolve().parents[2]
HEAD = """
name: test
cluster: {context: nowhere}
release: "26.7.0"
preflight: {registry: false}
host_prerequisites: {runtime_imports: false}
pools: {t4: {os: ubuntu22.04, gpu: {model: T4, count: 1}}}
nodes:
"""


class Site:
    """Hosts that are reached over SSH, and the inventory that says how."""

    def __init__(self, folder: Path, servers: Mapping[str, Server]) -> None:
        self.servers = servers
        key, known = private_key(folder), folder / "known_hosts"
        known.write_text("".join(server.known() for server in servers.values()))
        ssh = f"user: admin, key: {key}, known_hosts_file: {known}"
        nodes = [
            f"- {{name: {name}, pool: t4, address: 127.0.0.1, ssh: {{port: {server.port}, {patience(server)}, {ssh}}}}}"
            for name, server in servers.items()
        ]
        (folder / "inventory.yaml").write_text("\n".join([HEAD, *nodes]))
        (folder / "inventory.py").write_text((CHECKOUT / "inventories" / "prod.py").read_text())
        self.folder = folder

    @property
    def inventory(self) -> Inventory:
        return load(self.folder / "inventory.yaml")


def patience(server: Server) -> str:
    """Return how long this host may be silent: not long only where it is certain that it will be."""
    return f"patience: {2 if server.conduct.hangs_at else 60}"


@contextlib.contextmanager
def site(folder: Path, conducts: Mapping[str, Conduct]) -> Iterator[Site]:
    fleet = folder / "fleet.yaml"
    machines = [f"- {{name: {name}, gpu: {{model: T4, count: 1}}}}" for name in conducts]
    fleet.write_text("\n".join(["nodes:", *machines]))
    with contextlib.ExitStack() as running:
        servers = {
            name: running.enter_context(serving(hosts.find(name, str(fleet)), conduct))
            for name, conduct in conducts.items()
        }
        yield Site(folder, servers)
