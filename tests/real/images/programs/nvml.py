"""What a real ``libnvidia-ml.so.1`` says of the machine's GPUs."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any, NamedTuple

_ELF = b"\x7fELF"
_TEXT = 96  # NVML's own buffers for a UUID and for a name


class Refused(Exception):
    """A call failed; the message is NVML's own."""


class Device(NamedTuple):
    """One GPU that this process may use."""

    minor: int
    uuid: str
    address: str
    device: str  # PCI device id, four digits
    name: str
    memory: int  # MiB
    compute: str


class _Pci(ctypes.Structure):
    _fields_ = (
        ("short_address", ctypes.c_char * 16),
        *((name, ctypes.c_uint) for name in ("domain", "bus", "slot", "ids", "subsystem")),
        ("address", ctypes.c_char * 32),
    )


class _Memory(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_ulonglong) for name in ("total", "free", "used"))


def is_real(library: Path) -> bool:
    """Tell whether a file is a library. Raises OSError."""
    with library.open("rb") as file:
        return file.read(len(_ELF)) == _ELF


def read(library: Path) -> tuple[str, list[Device]]:
    """Return the driver's version and the GPUs that this process may use. Raises Refused, OSError."""
    nvml = ctypes.CDLL(str(library))
    nvml.nvmlErrorString.restype = ctypes.c_char_p
    _call(nvml, "Init_v2")
    try:
        count = ctypes.c_uint()
        _call(nvml, "DeviceGetCount_v2", ctypes.byref(count))
        return _text(nvml, "SystemGetDriverVersion"), [_device(nvml, index) for index in range(count.value)]
    finally:
        _call(nvml, "Shutdown")


def _device(nvml: ctypes.CDLL, index: int) -> Device:
    handle, minor, major, lesser = ctypes.c_void_p(), ctypes.c_uint(), ctypes.c_int(), ctypes.c_int()
    pci, memory = _Pci(), _Memory()
    _call(nvml, "DeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(handle))
    _call(nvml, "DeviceGetMinorNumber", handle, ctypes.byref(minor))
    _call(nvml, "DeviceGetPciInfo_v3", handle, ctypes.byref(pci))
    _call(nvml, "DeviceGetMemoryInfo", handle, ctypes.byref(memory))
    _call(nvml, "DeviceGetCudaComputeCapability", handle, ctypes.byref(major), ctypes.byref(lesser))
    return Device(
        minor=minor.value,
        uuid=_text(nvml, "DeviceGetUUID", handle),
        address=f"{pci.domain:04x}:{pci.bus:02x}:{pci.slot:02x}.0",
        device=f"{pci.ids >> 16:04x}",
        name=_text(nvml, "DeviceGetName", handle),
        memory=memory.total >> 20,
        compute=f"{major.value}.{lesser.value}",
    )


def _text(nvml: ctypes.CDLL, function: str, *handle: ctypes.c_void_p) -> str:
    buffer = ctypes.create_string_buffer(_TEXT)
    _call(nvml, function, *handle, buffer, ctypes.c_uint(_TEXT))
    return buffer.value.decode()


def _call(nvml: ctypes.CDLL, function: str, *arguments: Any) -> None:
    code = getattr(nvml, f"nvml{function}")(*arguments)
    if code:
        message = f"nvml{function}: {nvml.nvmlErrorString(code).decode()}"
        raise Refused(message)
