"""Run QEMU with PCI functions that say they are GPUs: a configuration space each, and nothing behind it.

    python -m tests.real.hosts.pci_functions 10de:1eb8:0302 10de:1eb8:0302 -- qemu-system-x86_64 ...

QEMU's `x-pci-proxy-dev` asks another process, over a socket, for every access to a function's configuration space;
this is that process. The guest's kernel lists the functions, and its nouveau is loaded for them and finds no card.
QEMU ends with us, however we end; when it ends, so do we.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import struct
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

_HEADER = struct.Struct("<i4xQ")  # what is asked, and how many bytes follow
_ACCESS = struct.Struct("<IIi")  # offset, value, width in bytes
_ANSWER = struct.Struct("<i4xQQ")
_SPACE = 256  # bytes of configuration space
_BASE_ADDRESSES = (range(0x10, 0x28), range(0x30, 0x34))  # they read as zero whatever is written: no memory, no ROM
_READ_ONLY = range(4)  # vendor and device
_FDS_BYTES = 1024


class Asked(IntEnum):
    """What QEMU asks, by its include/hw/remote/mpqemu-link.h; the rest wants no answer."""

    ANSWER = 1
    WRITE = 2
    READ = 3
    WRITE_MEMORY = 4
    READ_MEMORY = 5
    RESET = 7


@dataclass(slots=True)
class Function:
    """A PCI function: what its configuration space holds."""

    vendor: int
    device: int
    pci_class: int
    space: bytearray = field(default_factory=lambda: bytearray(_SPACE))

    def __post_init__(self) -> None:
        """Fill in what identifies it: PCI Local Bus Specification 3.0, 6.2.1; the subsystem's vendor is its own."""
        struct.pack_into("<HH", self.space, 0x00, self.vendor, self.device)
        struct.pack_into("<H", self.space, 0x0A, self.pci_class)
        struct.pack_into("<HH", self.space, 0x2C, self.vendor, self.device)

    @classmethod
    def of(cls, text: str) -> Function:
        vendor, device, pci_class = (int(part, 16) for part in text.split(":"))
        return cls(vendor, device, pci_class)

    def read(self, offset: int, width: int) -> int:
        return int.from_bytes(self.space[offset : offset + width], "little")

    def write(self, offset: int, value: int, width: int) -> None:
        if offset in _READ_ONLY or any(offset in addresses for addresses in _BASE_ADDRESSES):
            return
        if offset + width <= _SPACE:
            self.space[offset : offset + width] = value.to_bytes(4, "little")[:width]

    def answer(self, asked: int, payload: bytes) -> int | None:
        """Return the number that QEMU waits for; None if it waits for none."""
        if asked not in set(Asked):
            return None
        if asked == Asked.READ:
            offset, _, width = _ACCESS.unpack_from(payload)
            return self.read(offset, width)
        if asked == Asked.WRITE:
            self.write(*_ACCESS.unpack_from(payload))
        return 0


def serve(peer: socket.socket, function: Function) -> bool:
    header = _exactly(peer, _HEADER.size)
    if not header:
        return False
    asked, size = _HEADER.unpack(header)
    answer = function.answer(asked, _exactly(peer, size) if size else b"")
    if answer is not None:
        peer.sendall(_ANSWER.pack(Asked.ANSWER, 8, answer))
    return True


def _exactly(peer: socket.socket, size: int) -> bytes:
    """Return that many bytes, without the file descriptors that come along; fewer when QEMU has gone."""
    data = b""
    while len(data) < size:
        part, descriptors, _, _ = socket.recv_fds(peer, size - len(data), _FDS_BYTES)
        for descriptor in descriptors:
            socket.close(descriptor)
        if not part:
            return b""
        data += part
    return data


def _devices(sockets: Sequence[socket.socket]) -> list[str]:
    options = (f"x-pci-proxy-dev,id=gpu{number},fd={each.fileno()}" for number, each in enumerate(sockets))
    return [part for option in options for part in ("-device", option)]


def run(functions: Sequence[Function], command: Sequence[str]) -> int:
    """Run QEMU with these functions until it ends; return its exit status."""
    with contextlib.ExitStack() as sockets:
        pairs = [tuple(map(sockets.enter_context, socket.socketpair())) for _ in functions]
        far = [theirs for _, theirs in pairs]
        bound = ["setpriv", "--pdeathsig", "KILL", "--", *command, *_devices(far)]
        with subprocess.Popen(bound, pass_fds=[each.fileno() for each in far]) as qemu:
            for each in far:
                each.close()
            _answer_all(zip((ours for ours, _ in pairs), functions, strict=True))
            return qemu.wait()


def _answer_all(functions: Iterable[tuple[socket.socket, Function]]) -> None:
    with selectors.DefaultSelector() as selector:
        for peer, function in functions:
            selector.register(peer, selectors.EVENT_READ, (peer, function))
        while selector.get_map():
            for key, _ in selector.select():
                peer, function = key.data
                if not serve(peer, function):
                    selector.unregister(peer)


def main(arguments: Sequence[str]) -> int:
    """Take functions, ``--`` and the command from the command line."""
    split = list(arguments).index("--")
    return run([Function.of(each) for each in arguments[:split]], arguments[split + 1 :])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
