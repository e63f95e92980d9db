"""Virtual machines that have booted, kept in the cache: one that starts from there answers in seconds, not in a minute.

    python -m tests.real.hosts.booted KIND FOLDER     # makes disk.qcow2 and state in it

A machine boots there without GPUs, as QEMU does not write down the state of such PCI functions. A test's machine finds
them when it wakes, as a kernel finds a device that was plugged in while it ran; from its first reboot on, at boot.
"""

from __future__ import annotations

import contextlib
import dataclasses
import socket
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from tests.real.hosts import image as images
from tests.real.hosts import lan, machine
from tests.real.hosts.built import Recipe
from tests.real.hosts.image import Image
from tests.real.hosts.machine import STOCK, Hardware, Link, Machine, running

KINDS = {"bmc": STOCK, "no-bmc": Hardware(bmc=False), "secure-boot": Hardware(secure_boot=True)}


def recipe(kind: str) -> Recipe:
    """Return how a kind of machine is booted; another version of QEMU may not read what this one writes."""
    version = subprocess.run(["qemu-system-x86_64", "--version"], check=True, capture_output=True, text=True).stdout
    command = (sys.executable, "-m", "tests.real.hosts.booted", kind)
    told = machine.qemu(Image(Path()), Path(), Link("", 0, ""), KINDS[kind])
    inputs = (images.RECIPE.place.name, version, *told)
    return Recipe(f"booted-{kind}", command, ("disk.qcow2", "state"), inputs)


@contextlib.contextmanager
def started(
    name: str, image: Image, folder: Path, hardware: Hardware = STOCK, link: Link | None = None
) -> Iterator[Machine]:
    """Start a machine where one of its kind had booted. Call ``wake`` before anything else."""
    plain = dataclasses.replace(hardware, disks=())
    (kind,) = (kind for kind, its in KINDS.items() if its == plain)
    place = recipe(kind).built()
    folder.mkdir(parents=True, exist_ok=True)
    machine.make_disk(folder / "disk.qcow2", place / "disk.qcow2", "qcow2")
    options = ("-incoming", f"exec:cat {place / 'state'}")
    with running(name, image, folder, hardware, link or Link.loopback(), *options) as begun:
        yield begun


def boot(kind: str, folder: Path) -> None:
    """Boot a machine, and write down its disk and state; the image is there, as the caller has the lock."""
    image, hardware = Image(images.RECIPE.place), dataclasses.replace(KINDS[kind], functions=())
    machine.make_disk(folder / "disk.qcow2", image.disk, "raw")
    monitor = folder / "monitor"
    options = ("-monitor", f"unix:{monitor},server=on,wait=off")
    with lan.lan(folder) as network, running(kind, image, folder, hardware, network.link, *options) as begun:
        begun.await_boot()
        _save(monitor, folder / "state")
        begun.qemu.wait()


def _save(monitor: Path, state: Path) -> None:
    with socket.socket(socket.AF_UNIX) as peer:
        peer.connect(str(monitor))
        peer.sendall(f'migrate "exec:cat >{state}"\ninfo migrate\nquit\n'.encode())
        said = b"".join(iter(partial(peer.recv, 4096), b"")).decode(errors="replace")
    assert "Migration status: completed" in said, said


if __name__ == "__main__":
    boot(sys.argv[1], Path(sys.argv[2]))
