"""Every parser of what hosts print survives whatever they print."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from gpu_provision.hosts.facts import packages
from gpu_provision.hosts.facts.host import SECTIONS, parse
from tests import fuzzing

SYSTEMS = [path.read_text() for path in sorted((Path(__file__).parent / "systems").glob("*.txt"))]

# Of these the recorded hosts say little or nothing.
MORE = {
    "environment": [f"file {'0' * 64} /etc/gpu-provision/runtime-proxy.env\ntrust /etc/pki/trust/anchors"],
    "holds": ["tool apt-mark\nours linux-image-generic\ninstalled linux-headers-generic"],
    "hugepages": ["pages 1048576kB 3\npages 2048kB 0\nattempt 1Gi 16 3\nmemory 24684096\nunaware k3s[7]\nown x"],
    "limits": ["limit 812 containerd containerd.service memlock 8388608 unlimited\nfile /etc/x\nline /etc/x [Service]"],
    "originals": ["present /var/lib/gpu-provision\ndiffers file /etc/modules\nrestored absent /etc/x"],
    "persistence": ["off\nown [Unit]\nenabled nvidia-persistenced\nno-systemd"],
    "services": ["holder 41 - /dev/nvidia0 python3\nholder 42 dcgm.service /dev/nvidiactl nv-hostengine"],
    "settings": ["file /etc/x\nline /etc/x kernel.pid_max = 1\nrunning kernel.pid_max 1\ndriver"],
}
REMAINS = """folder /usr/local/nvidia/toolkit
entry nvidia-ctk
file /usr/local/nvidia/toolkit/nvidia-ctk
use process 41 runs with them
unsure
end"""


def parts(section: str) -> list[str]:
    """Return what the recorded hosts printed in a section."""
    found = [
        match[1] for text in SYSTEMS for match in re.finditer(rf"^\[{section}\]\n((?:[^\[].*\n)*)", text, re.MULTILINE)
    ]
    return [*found, *MORE.get(section, [])]


def read(lines: Iterable[str]) -> None:
    record = parse(lines, asked_at=1.0, answered_at=2.0)
    if not record:
        return
    json.dumps(record.to_json())
    assert record.cri in {None, *record.runtimes}
    _ = [(runtime.branch, runtime.version) for runtime in record.runtimes]
    _ = [gpu.model for gpu in record.pci.gpus]
    _ = [record.packages.is_kept(package) for package in record.packages.installed]
    _ = (record.driver.version, record.driver.usable, record.firmware.refuses_unsigned, record.nouveau.blacklisted)
    record.storage.find_disk("/var")
    record.kernels.find_without_headers(record.kernel.running)


@pytest.mark.parametrize("section", list(SECTIONS))
def test_section_of_any_content_is_read(section: str) -> None:
    corpus = parts(section)
    assert corpus
    fuzzing.check_reader(lambda dice: [f"[{section}]", *fuzzing.mutate_lines(dice, dice.choice(corpus)), "[end]"], read)


def test_whole_answer_of_any_content_is_read() -> None:
    fuzzing.check_reader(lambda dice: fuzzing.mutate_lines(dice, dice.choice(SYSTEMS)), read)


def test_remains_of_any_content_are_read() -> None:

    def hollow(lines: list[str]) -> None:
        found = packages.parse_toolkit(lines)
        assert found is None or "" not in found.hollow

    fuzzing.check_reader(lambda dice: fuzzing.mutate_lines(dice, REMAINS), hollow)
