"""Parts of the machine that need neither root nor Kubernetes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gpu_provision import components
from gpu_provision.inventory import load
from gpu_provision.library import render
from tests.real.node import hardware, mutations
from tests.real.node.mounts import Mount, parsed
from tests.real.node.user import CHECKOUT

INVENTORY = Path(__file__).with_name("inventory.yaml")
_KEEP = """
import sys
from pathlib import Path
from tests.real.node.keep import keep

folder = Path(sys.argv[1])
again = "echo started; [ $(grep -c started log/again.log) -ge 3 ] && touch enough"
vital = "until [ -e enough ]; do sleep 0.1; done"
keep({"again": ("sh", "-c", again), "vital": ("sh", "-c", vital)}, directory=folder, vital="vital", pause=0.01)
"""


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (
            "36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue",
            Mount("/mnt1", Path("/mnt2"), "ext3", "rw,errors=continue"),
        ),
        (
            r"35 31 0:32 / /a\040b rw,relatime shared:9 master:4 - cgroup cgroup rw,cpu,cpuacct",
            Mount("/", Path("/a b"), "cgroup", "rw,cpu,cpuacct"),
        ),
    ],
)
def test_a_line_of_mountinfo_tells_what_is_mounted_where(line: str, found: Mount) -> None:
    assert parsed(line) == found


def test_the_pci_tree_has_a_network_card_and_the_gpus(tmp_path: Path) -> None:
    hardware.write_pci(tmp_path, gpus=2)
    vendors = sorted((file.read_text().strip(), file.parent.name) for file in tmp_path.glob("*/vendor"))
    assert vendors == [("0x10de", "0000:00:04.0"), ("0x10de", "0000:00:05.0"), ("0x1af4", "0000:00:03.0")]


@pytest.mark.parametrize("name", mutations.MUTATIONS)
def test_a_mistake_changes_its_component_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(components, "COMPONENTS", components.COMPONENTS)
    inventory = load(INVENTORY)
    right = render(inventory)
    mutations.apply(name)
    wrong = render(inventory)
    assert [key for key in right if right[key] != wrong[key]] == [mutations.MUTATIONS[name][0]]


def test_what_ends_is_started_again_until_the_vital_program_ends(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    (tmp_path / "log/again.log").touch()
    subprocess.run(
        [sys.executable, "-c", _KEEP, str(tmp_path)],
        check=True,
        cwd=tmp_path,
        env={"PYTHONPATH": str(CHECKOUT), "PATH": "/usr/bin:/bin"},
        timeout=300,
    )
    assert (tmp_path / "log/again.log").read_text().count("started") >= 3
    assert "again ended: " in (tmp_path / "log/restarts.log").read_text()
