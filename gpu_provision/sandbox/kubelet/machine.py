"""One simulated machine: its devices, files, kernel modules, driver and images, and what a reboot takes away."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from gpu_provision.sandbox.faults import NodeFault, NodeFaults
from gpu_provision.sandbox.fleet import MachineSpec
from gpu_provision.sandbox.kubelet.filesystem import HostFiles
from gpu_provision.sandbox.state import replace_file

DRIVER_ROOT = "/run/nvidia/driver"
RUNTIME_DROP_IN = "/etc/containerd/conf.d/99-nvidia.toml"
RUNTIME_CONFIGS = (RUNTIME_DROP_IN, "/etc/containerd/config.toml", "/etc/docker/daemon.json")
CRIO_DROP_IN = "/etc/crio/crio.conf.d/99-nvidia.conf"
HANDLER = "# NVIDIA container runtime: "
"""Beginning of a configuration of the container runtime; the name of the runtime's handler follows."""

VOLATILE = ("/run/", "/sys/", "/proc/", "/dev/")
NVIDIA_VENDOR = "10de"
_SMI = "/usr/bin/nvidia-smi"
_LARGEST_FILE = 500_000


class SimulatedPciDevice(NamedTuple):
    """A device on the PCI bus: class and subclass, vendor and device, each four hexadecimal digits."""

    pci_class: str
    vendor: str
    device: str


def _new_id() -> str:
    return str(uuid.uuid4())


@dataclass(slots=True, kw_only=True)
class MachineState:
    """What a machine remembers; a restart of the sandbox keeps it, a reboot of the machine a part of it.

    Attributes:
        files: Text of every file of the host that matters, by absolute path.
        directories: Directories that were made below /run.
        modules: Loaded kernel modules.
        driver: Version of the loaded driver; empty for none.
        driver_digest: Configuration digest that the driver was installed with.
        devices: GPUs that pods can have; None before a device plugin registered any.
        registered: GPUs that the last device plugin registered.
        owners: Which container put something there, such as the driver; by what it put there.
        empty_dirs: Files of each emptyDir, by ``<pod uid>/<volume>``.
        struck: Faults that strike once and have done so.
        last_start: When a container started last, in seconds since 1970.
        granted: Indices of the devices that each container holds, by ``<pod uid>/<container>``.
    """

    boot_id: str = field(default_factory=_new_id)
    machine_id: str = field(default_factory=lambda: secrets.token_hex(16))
    files: dict[str, str] = field(default_factory=dict)
    directories: list[str] = field(default_factory=list)
    modules: list[str] = field(default_factory=list)
    images: dict[str, str] = field(default_factory=dict)
    driver: str = ""
    driver_digest: str = ""
    devices: int | None = None
    registered: int = 0
    granted: dict[str, list[int]] = field(default_factory=dict)
    owners: dict[str, str] = field(default_factory=dict)
    empty_dirs: dict[str, dict[str, str]] = field(default_factory=dict)
    struck: list[str] = field(default_factory=list)
    last_start: int = 0


class Machine:
    """A simulated machine. Every change wakes those who wait for one.

    Attributes:
        host: What it shares with the simulated host.
    """

    def __init__(self, spec: MachineSpec, *, index: int = 1, home: Path | None = None) -> None:
        """Take up the state kept in ``home``, or boot for the first time."""
        self.spec, self.name = spec, spec.name
        self.address = f"10.{100 + index // 65536 % 100}.{index // 256 % 256}.{index % 256}"
        self._file = home / f"{spec.name}.jsonl" if home else None
        self.host = HostFiles(home.parent / "hosts" / spec.name if home else None)
        remembered = _load(self._file)
        self.known = remembered is not None
        self.state = remembered or MachineState()
        if not self.known:
            self.state.boot_id = self.host.boot_id() or self.state.boot_id
        self.faults = NodeFaults()
        self.rebooting = self._save_is_due = False
        self.clients: set[str] = set()
        self._changed: asyncio.Future[None] | None = None
        self._listeners: list[Callable[[], None]] = []
        if not self.known:
            self._boot()

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` after every change."""
        self._listeners.append(listener)

    def changed(self) -> None:
        """Keep the state and wake those who wait."""
        self._save_soon()
        self.wake()

    def wake(self) -> None:
        """Let those who wait look again, though nothing of the machine's own state changed."""
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)
        self._changed = None
        for listener in self._listeners:
            listener()

    async def until(self, predicate: Callable[[], bool]) -> None:
        """Wait until ``predicate`` holds, looking after every change."""
        while not predicate():
            if self._changed is None:
                self._changed = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._changed)

    def set_faults(self, faults: NodeFaults) -> None:
        """Put other faults in force."""
        self.faults = faults
        self.wake()

    @property
    def gpus(self) -> int:
        """GPUs that the PCI bus shows at the moment."""
        missing = self.faults.of("gpu-missing", self.name)
        return max(0, self.spec.gpus - int(missing.get("count", self.spec.gpus))) if missing else self.spec.gpus

    def pci_devices(self) -> tuple[SimulatedPciDevice, ...]:
        """Everything on the PCI bus: a network card and the GPUs."""
        network = SimulatedPciDevice("0200", "8086", "1592")
        if self.spec.gpu is None:
            return (network,)
        gpu = SimulatedPciDevice(self.spec.gpu.pci_class, NVIDIA_VENDOR, self.spec.gpu.device)
        return (network, *(gpu for _ in range(self.gpus)))

    @property
    def host_driver(self) -> str:
        """Version of the driver on the host itself, as the simulated host shows, else as the fleet says."""
        shown = self.host.own_driver()
        return str(self.spec.host.get("driver", "")) if shown is None else shown

    @property
    def handlers(self) -> frozenset[str]:
        """Handlers that the container runtime is configured for."""
        configs = [self.state.files[path] for path in (*RUNTIME_CONFIGS, CRIO_DROP_IN) if path in self.state.files]
        named = (text.partition(HANDLER)[2].partition("\n")[0] or "nvidia" for text in configs)
        return frozenset({"", "runc", *named, *(("nvidia-cdi", "nvidia-legacy") if configs else ())})

    def nouveau_loaded(self) -> bool:
        """Whether nouveau holds the card, as the simulated host's own modules show, else as the fleet says."""
        lines = self.host.modules()
        if lines is not None:
            return any(line.startswith("nouveau ") for line in lines)
        return bool(self.spec.host.get("nouveau"))

    def unload_nouveau(self) -> bool:
        """Unload nouveau from the simulated host; False if it is in use."""
        return self.host.unload("nouveau")

    def unload_driver(self) -> bool:
        """Unload the driver and take its files away; False if a container uses it."""
        if self.clients:
            return False
        self.state.driver = self.state.driver_digest = ""
        self.state.modules = [module for module in self.state.modules if not module.startswith("nvidia")]
        self._remove_below(f"{DRIVER_ROOT}/", "/sys/module/nvidia/")
        self.host.hide_containers_driver()
        self.changed()
        return True

    def _remove_below(self, *folders: str) -> None:
        """Remove files from the very same mapping: containers that run have it mounted."""
        for path in [path for path in self.state.files if path.startswith(folders)]:
            del self.state.files[path]

    def empty_dir(self, pod_uid: str, volume: str) -> dict[str, str]:
        """Return the files of an emptyDir, which lives as long as its pod: longer than containers and boots."""
        return self.state.empty_dirs.setdefault(f"{pod_uid}/{volume}", {})

    def make_directory(self, path: str) -> None:
        """Make a directory of the host; one that is there is left alone."""
        if path not in self.state.directories:
            self.state.directories.append(path)
            self.changed()

    def has_directory(self, path: str) -> bool:
        """Tell whether a directory was made, or something below it."""
        made = (*self.state.directories, *self.state.files)
        return any(name == path or name.startswith(f"{path}/") for name in made)

    def register_devices(self, count: int) -> None:
        """Take what a device plugin offers."""
        self.state.devices = self.state.registered = count
        self.changed()

    def lose_plugin(self) -> None:
        """Know the devices and hand out none, as a kubelet does for minutes after its plugin ended."""
        self.state.devices = 0
        self.changed()

    def remember_fault(self, fault: NodeFault) -> bool:
        """Note that a fault struck; False if it had already."""
        if repr(fault) in self.state.struck:
            return False
        self.state.struck.append(repr(fault))
        self.changed()
        return True

    def forget_fault(self, fault: NodeFault) -> None:
        """Let a fault strike again when it is declared again."""
        if repr(fault) in self.state.struck:
            self.state.struck.remove(repr(fault))
            self.changed()

    def grant(self, holder: str, count: int) -> bool:
        """Give a container ``count`` devices; False if there are not that many free ones."""
        held = {device for devices in self.state.granted.values() for device in devices}
        free = [device for device in range(self.state.devices or 0) if device not in held]
        if holder in self.state.granted:
            return True
        if len(free) < count:
            return False
        self.state.granted[holder] = free[:count]
        self.changed()
        return True

    def start_time(self) -> datetime:
        """Return when a container that starts now starts: later than any before it, in the whole seconds of a kubelet.

        Simulated containers start many times a second, which real ones do not.
        """
        self.state.last_start = max(int(time.time()), self.state.last_start + 1)
        return datetime.fromtimestamp(self.state.last_start, UTC)

    def release(self, pod_uid: str) -> None:
        """Take back the devices of a pod, and its directories."""
        for kept in (self.state.granted, self.state.empty_dirs):
            held = [key for key in kept if key.startswith(f"{pod_uid}/")]
            for key in held:
                del kept[key]
            if held:
                self.changed()

    def reboot(self) -> None:
        """Lose what does not outlive a reboot, and get a new boot ID: the simulated host's, if that rebooted before."""
        if self.host.boot_id() in {"", self.state.boot_id}:
            self.host.begin_boot(_new_id())
        boot_id = self.host.boot_id() or _new_id()
        self._remove_below(*VOLATILE)
        self.state.boot_id, self.state.directories = boot_id, []
        self.state.driver = self.state.driver_digest = ""
        self.state.owners = {}
        self.state.registered = 0
        self.state.devices, self.state.granted = (None if self.state.devices is None else 0), {}
        self.clients.clear()
        self.host.hide_containers_driver()
        self._boot()

    def _boot(self) -> None:
        self.state.modules = [m for m in ("i2c_core", "ipmi_msghandler") if m in self.spec.host.get("modules", ())]
        if self.host_driver and self.spec.gpu:
            self.state.driver = self.host_driver
            self.state.modules += ["nvidia", "nvidia_uvm", "nvidia_modeset"]
            self.state.files[_SMI] = "ELF"
        else:
            self.state.files.pop(_SMI, None)
        self.changed()

    def _save_soon(self) -> None:
        """Save once for all changes of this turn of the event loop, before anybody can be told of them."""
        if self._file is None or self._save_is_due:
            return
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            self._save()
            return
        self._save_is_due = True
        loop.call_soon(self._save)

    def _save(self) -> None:
        """Append the state to the machine's file: an interrupted write costs a line, never the file."""
        self._save_is_due = False
        if self._file is None:
            return
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(self.state)) + "\n")
            grown = file.tell() > _LARGEST_FILE
        if grown:
            _keep_last_line(self._file)


def _load(file: Path | None) -> MachineState | None:
    """Return the last state that was written whole; an unreadable memory is no memory, and the machine boots afresh."""
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines() if file else []
    except OSError:
        return None
    for line in reversed(lines):
        try:
            return MachineState(**json.loads(line))
        except (ValueError, TypeError):
            continue
    return None


def _keep_last_line(file: Path) -> None:
    last = file.read_text(encoding="utf-8").splitlines()[-1]
    replace_file(file, f"{last}\n")
