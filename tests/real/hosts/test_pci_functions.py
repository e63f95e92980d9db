"""The far end of QEMU's PCI functions, without QEMU."""

from __future__ import annotations

import socket
import struct
import sys
from collections.abc import Iterator

import pytest

from tests.real.hosts import pci_functions
from tests.real.hosts.pci_functions import Asked, Function, serve

T4 = "10de:1eb8:0302"


@pytest.fixture
def sockets() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Ours and QEMU's."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def _question(asked: int, offset: int, value: int, width: int) -> bytes:
    return struct.pack("<i4xQIIi", asked, 12, offset, value, width)


def _answer(peer: socket.socket) -> int:
    command, size, number = struct.unpack("<i4xQQ", peer.recv(24))
    assert (command, size) == (Asked.ANSWER, 8)
    return int(number)


@pytest.mark.parametrize(
    ("offset", "width", "value"),
    [(0x00, 2, 0x10DE), (0x02, 2, 0x1EB8), (0x0A, 2, 0x0302), (0x2C, 2, 0x10DE), (0x00, 4, 0x1EB810DE), (0x3D, 1, 0)],
)
def test_reads_say_what_it_is(
    sockets: tuple[socket.socket, socket.socket], offset: int, width: int, value: int
) -> None:
    """Vendor, device, class and subsystem stand where PCI has them; there is no interrupt pin."""
    ours, theirs = sockets
    theirs.sendall(_question(Asked.READ, offset, 0, width))
    assert serve(ours, Function.of(T4))
    assert _answer(theirs) == value


@pytest.mark.parametrize(
    ("offset", "kept"),
    [(0x04, 0x0006), (0x00, 0x10DE), (0x10, 0), (0x24, 0), (0x30, 0)],
    ids=["the command register", "the vendor", "the first base address", "the last base address", "the ROM"],
)
def test_writes_are_kept_where_a_function_without_memory_keeps_them(
    sockets: tuple[socket.socket, socket.socket], offset: int, kept: int
) -> None:
    """A base address that reads as zero after all ones were written tells the kernel that there is no memory."""
    ours, theirs = sockets
    function = Function.of(T4)
    value = 0x0006 if offset == 0x04 else 0xFFFF
    theirs.sendall(_question(Asked.WRITE, offset, value, 2))
    assert serve(ours, function)
    assert _answer(theirs) == 0
    assert function.read(offset, 2) == kept


def test_what_wants_no_answer_gets_none(sockets: tuple[socket.socket, socket.socket]) -> None:
    """QEMU tells of its memory, with file descriptors that nobody may keep, and goes on to ask."""
    ours, theirs = sockets
    with socket.socket() as passed:
        socket.send_fds(theirs, [struct.pack("<i4xQ", 0, 4)], [passed.fileno()])
        theirs.sendall(b"\0" * 4 + _question(Asked.READ, 0, 0, 2))
        function = Function.of(T4)
        assert serve(ours, function)
        assert serve(ours, function)
    assert _answer(theirs) == 0x10DE


def test_the_end_of_qemu_is_the_end(sockets: tuple[socket.socket, socket.socket]) -> None:
    """Nobody asks any more, also in the middle of a question."""
    ours, theirs = sockets
    theirs.sendall(b"\0" * 3)
    theirs.close()
    assert not serve(ours, Function.of(T4))


def test_the_status_of_the_command_is_ours() -> None:
    """The command gets an option with an open descriptor for each function."""
    script = (
        "import os, sys; [os.fstat(int(each.partition('fd=')[2])) for each in sys.argv[2::2]]; sys.exit(len(sys.argv))"
    )
    assert pci_functions.main([T4, T4, "--", sys.executable, "-c", script]) == 5
