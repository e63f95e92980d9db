"""One fleet of simulated hosts for the tests of the host phase, and inventories of some of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpu_provision.hosts.result import HostOutcome
from gpu_provision.hosts.runner import prepare
from gpu_provision.inventory import load
from gpu_provision.model.hosts import HostPrerequisites
from gpu_provision.model.inventory import Inventory

FLEET = """
nodes:
- {name: good-1, gpu: {model: T4, count: 1}}
- {name: good-2, os: ubuntu24.04, gpu: {model: H100, count: 8}, host: {nouveau: true}}
- {name: bad-1, gpu: {model: T4, count: 1}, host: {available: []}}
- {name: driver-1, gpu: {model: T4, count: 1}, host: {driver: 535.183.01, secure_boot: true}}
- {name: away-1, gpu: {model: T4, count: 1}, host: {reachable: false}}
- {name: cpu-1}
- {name: ubuntu-1, kernel: 6.8.0-85-generic, gpu: {model: T4, count: 1}}
- {name: rhel-1, os: rhel9.4, kernel: 5.14.0-427.13.1.el9_4.x86_64, gpu: {model: T4, count: 1}}
- {name: sles-1, os: sles15.6, kernel: 6.4.0-150600.23.47-default, gpu: {model: T4, count: 1}}
- {name: rhcos-1, os: rhcos4.16, gpu: {model: T4, count: 1}}
- {name: rhcos-2, os: rhcos4.16, gpu: {model: T4, count: 1}}
- {name: old-1, gpu: {model: T4, count: 1}, host: {headers: false}}
- {name: old-2, os: rhel9.4, gpu: {model: T4, count: 1}, host: {headers: false}}
- {name: held-1, gpu: {model: T4, count: 1}, host: {nouveau: true, in_use: [nouveau]}}
- {name: held-2, gpu: {model: T4, count: 1}, host: {nouveau: true, in_use: [nouveau]}}
- {name: held-3, gpu: {model: T4, count: 1}, host: {nouveau: true, in_use: [nouveau]}}
"""
INVENTORY = """
name: test
cluster: {sandbox: FLEET}
release: "26.7.0"
pools:
  t4: {gpu: {model: T4, count: 1}}
  h100: {gpu: {model: H100, count: 8}}
  cpu: {}
nodes:
"""
POOLS = {"good-2": "h100", "cpu-1": "cpu"}
FIRST = (
    "kernel modules loaded: ipmi_msghandler",
    "kernel modules listed for the boot: ipmi_msghandler",
    "nouveau blacklisted",
    "initramfs rebuilt",
)
SHELLS = [["dash"], pytest.param(["busybox", "sh"], marks=pytest.mark.real), ["bash", "--posix"]]


def inventory(directory: Path, *nodes: str) -> Inventory:
    fleet, path = directory / "mine.yaml", directory / "inventory.yaml"
    fleet.write_text(FLEET)
    lines = [f"- {{name: {node}, pool: {POOLS.get(node, 't4')}}}" for node in nodes]
    path.write_text("\n".join([INVENTORY.replace("FLEET", str(fleet)), *lines]))
    return load(path)


def with_settings(declared: Inventory, **settings: object) -> Inventory:
    prerequisites = HostPrerequisites(**settings)  # type: ignore[arg-type]
    pools = {name: replace(pool, host_prerequisites=prerequisites) for name, pool in declared.pools.items()}
    return replace(declared, pools=pools)


def only(declared: Inventory) -> HostOutcome:
    (outcome,) = prepare(declared).hosts
    return outcome


def files(root: Path) -> dict[str, bytes]:
    paths = (path for folder in ("etc", "boot", "var") for path in (root / folder).rglob("*"))
    return {str(path.relative_to(root)): path.read_bytes() for path in paths if path.is_file()}
