"""The role for Ansible makes an inventory from Ansible's, and runs the tool with it."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import jinja2
import pytest

from gpu_provision.inventory import load
from gpu_provision.model.inventory import Inventory
from tests.data_file import document
from tests.documents import CHECKOUT, Reader

ANSIBLE = CHECKOUT / "examples/ansible"
ROLE = ANSIBLE / "roles/gpu_provision"


def read(path: Path) -> Any:
    return document(path.read_text(encoding="utf-8"))


def inventory_of_ansible(hosts: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the variables of a play on the example's groups, with further variables of hosts."""
    everything = read(ANSIBLE / "inventory.yaml")["all"]
    pools = everything["children"]["gpu"]["children"]
    known = {
        host: {**everything["vars"], **variables, **hosts.get(host, {})}
        for pool in pools.values()
        for host, variables in pool["hosts"].items()
    }
    return {"groups": {name: [*pool["hosts"]] for name, pool in pools.items()}, "hostvars": known}


def rendered(folder: Path, **hosts: dict[str, Any]) -> Inventory:
    """Return the inventory that the role writes; the filters are as Ansible's."""
    environment = jinja2.Environment(trim_blocks=True, undefined=jinja2.StrictUndefined, autoescape=False)  # noqa: S701 - YAML
    environment.filters |= {"to_json": json.dumps, "bool": bool}
    [play] = read(ANSIBLE / "playbook.yaml")
    variables = {**read(ROLE / "defaults/main.yaml"), **play["roles"][0]["vars"], **inventory_of_ansible(hosts)}
    template = environment.from_string((ROLE / "templates/inventory.yaml.j2").read_text(encoding="utf-8"))
    file = folder / "gpu-provision.yaml"
    file.write_text(template.render(variables), encoding="utf-8")
    return load(file)


def test_hosts_of_groups_are_nodes_of_pools(tmp_path: Path) -> None:
    found = rendered(tmp_path)
    nodes = [(node.name, node.pool, node.address, node.ssh.user, node.ssh.port) for node in found.nodes]
    assert nodes == [
        ("t4-1", "t4", "10.0.10.11", "ubuntu", 0),
        ("t4-2", "t4", "10.0.10.12", "ubuntu", 2222),
        ("h100-1", "h100", "10.0.20.11", "ubuntu", 0),
    ]
    assert (found.name, found.pools["h100"].gpu.count) == ("prod", 8)


def test_variables_of_hosts_are_used(tmp_path: Path) -> None:
    """A node may have another name than its host, and a key of its own."""
    own = {"gpu_provision_node": "worker-7", "ansible_ssh_private_key_file": "/keys/id", "ansible_become": False}
    node = rendered(tmp_path, **{"t4-1": own}).nodes[0]
    assert (node.name, node.ssh.key, node.ssh.sudo) == ("worker-7", "/keys/id", False)


@pytest.mark.real  # for ansible
def test_the_playbook_plans_and_applies(tmp_path: Path) -> None:
    """A check changes nothing, a second run finds nothing to do."""
    ours = CHECKOUT / "build/ansible/bin"  # as in docs/performance.md
    program = shutil.which("ansible-playbook") or shutil.which("ansible-playbook", path=str(ours))
    if not program:
        pytest.skip("ansible-playbook is not installed")
    reader = Reader(tmp_path)
    values = {"gpu_provision_cluster": {"sandbox": "default"}}
    run = f"{program} -i examples/ansible/inventory.yaml examples/ansible/playbook.yaml -e '{json.dumps(values)}'"
    try:
        assert re.search(r"changed=1 .*skipped=1", reader.run(f"{run} --check"))
        assert re.search(r"changed=2 .*skipped=0", reader.run(run))
        assert re.search(r"changed=0 .*skipped=2", reader.run(run))
    finally:
        reader.close()
