"""A simulated machine: its devices, files, kernel modules, driver and images."""

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

from gpu_provision.sandbox.api import Object
from gpu_provision.sandbox.faults import NodeFault, NodeFaults
from gpu_provision.sandbox.fleet import MachineSpec
from gpu_provision.sandbox.kubelet.filesystem import HostFiles
from gpu_provision.sandbox.machine_config import read_effects
from gpu_provision.sandbox.openshift_releases import RELEASES, release_of_os
from gpu_provision.sandbox.operand_rules import GPU_RESOURCE, Mig
from gpu_provision.sandbox.state import replace_file

DRIVER_ROOT = "/run/nvidia/driver"
CRIO_DROP_IN = "/etc/crio/crio.conf.d/99-nvidia.conf"
RUNTIME_CONFIGS = (
    "/etc/containerd/conf.d/99-nvidia.toml",
    "/etc/containerd/config.toml",
    "/etc/docker/daemon.json",
    CRIO_DROP_IN,
)
HANDLER = "# NVIDIA container runtime: "
"""Beginning of a configuration of the container runtime; the name of the runtime's handler follows."""

NRI_OWNER = "nri-plugin"
"""Name of the NRI plugin among the owners."""

_VOLATILE = ("/run/", "/sys/", "/proc/", "/dev/")
_SMI = "/usr/bin/nvidia-smi"
_MAX_FILE_BYTES = 500_000


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
        resource: By what name pods request them.
        mig: MIG devices of each GPU, such as ``7x1g.10gb``, as the MIG manager made them; None before it did.
        former: Names that the device plugin offered before: the kubelet goes on reporting none of them.
        registered: GPUs that the last device plugin registered.
        owners: Which container put something there, such as the driver; by what it put there.
        empty_dirs: Files of each emptyDir, by ``<pod uid>/<volume>``.
        struck: Faults that strike once and have done so.
        last_start: When a container started last, in seconds since 1970.
        granted: Indices of the devices that each container holds, by ``<pod uid>/<container>``.
        config: The rendered MachineConfig that it runs; empty for a machine that no Machine Config Operator manages.
        release: The release of OpenShift that this brought; empty for the fleet's own.
        blocked: Modules that the configuration keeps from being loaded; ``loaded`` are those that it loads at boot.
    """

    boot_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    machine_id: str = field(default_factory=lambda: secrets.token_hex(16))
    files: dict[str, str] = field(default_factory=dict)
    directories: list[str] = field(default_factory=list)
    modules: list[str] = field(default_factory=list)
    images: dict[str, str] = field(default_factory=dict)
    driver: str = ""
    driver_digest: str = ""
    devices: int | None = None
    resource: str = GPU_RESOURCE
    mig: str | None = None
    former: list[str] = field(default_factory=list)
    registered: int = 0
    granted: dict[str, list[int]] = field(default_factory=dict)
    owners: dict[str, str] = field(default_factory=dict)
    empty_dirs: dict[str, dict[str, str]] = field(default_factory=dict)
    struck: list[str] = field(default_factory=list)
    last_start: int = 0
    config: str = ""
    release: str = ""
    blocked: list[str] = field(default_factory=list)
    loaded: list[str] = field(default_factory=list)


class Machine:
    """A simulated machine. Every change wakes those who wait for one.

    Attributes:
        host: What it shares with the simulated host.
        known: Whether it remembers an earlier life.
        clients: The containers that use the GPU.
        pulling: Held while an image is pulled.
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
        if self.state.release in RELEASES:
            self.spec = spec.on_release(RELEASES[self.state.release])
        self.faults = NodeFaults()
        self.rebooting = self._save_is_due = False
        self.clients: set[str] = set()
        self.pulling = asyncio.Lock()
        self._changed: asyncio.Future[None] | None = None
        self._listeners: list[Callable[[], None]] = []
        if not self.known:
            self.state.boot_id = self.host.boot_id() or self.state.boot_id
            self._boot()

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` after every change."""
        self._listeners.append(listener)

    def save_and_notify(self) -> None:
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

    async def wait_until(self, predicate: Callable[[], bool]) -> None:
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
        missing = self.faults.find("gpu-missing", self.name)
        return max(0, self.spec.gpus - int(missing.get("count", self.spec.gpus))) if missing else self.spec.gpus

    @property
    def mig(self) -> Mig | None:
        """The MIG devices of each GPU: those that the MIG manager made, else those of the fleet."""
        return self.spec.mig if self.state.mig is None else Mig.parse(self.state.mig)

    def pci_devices(self) -> list[dict[str, str]]:
        """Return what is on the PCI bus, in hexadecimal digits: a network card and the GPUs."""
        mellanox, gpu = self.spec.host.get("mellanox"), self.spec.gpu
        network = {"class": "0200", "vendor": "8086", "device": "1592"}
        network |= {"class": "0207", "vendor": "15b3", "device": "101b"} if mellanox else {}
        if gpu is None:
            return [network]
        return [network, *[{"class": gpu.pci_class, "vendor": "10de", "device": gpu.device}] * self.gpus]

    @property
    def host_driver(self) -> str:
        """Version of the driver on the host itself, as the simulated host shows, else as the fleet says."""
        shown = self.host.own_driver()
        return str(self.spec.host.get("driver", "")) if shown is None else shown

    @property
    def handlers(self) -> frozenset[str]:
        """Handlers that the container runtime is configured for."""
        configs = [self.state.files[path] for path in RUNTIME_CONFIGS if path in self.state.files]
        named = (text.partition(HANDLER)[2].partition("\n")[0] or "nvidia" for text in configs)
        return frozenset({"", "runc", *named, *(("nvidia-cdi", "nvidia-legacy") if configs else ())})

    @property
    def has_nri_plugin(self) -> bool:
        """Whether the toolkit's NRI plugin is connected to the container runtime."""
        return NRI_OWNER in self.state.owners

    def nouveau_loaded(self) -> bool:
        """Whether nouveau holds the card, as the simulated host's own modules show, else as the fleet says."""
        if "nouveau" in self.state.blocked:
            return False
        lines = self.host.modules()
        if lines is not None:
            return any(line.startswith("nouveau ") for line in lines)
        return bool(self.spec.host.get("nouveau"))

    def unload_driver(self) -> bool:
        """Unload the driver and take its files away; False if a container uses it."""
        if self.clients:
            return False
        self.state.driver = self.state.driver_digest = ""
        self.state.modules = [each for each in self.state.modules if not each.startswith(("nvidia", "gdrdrv"))]
        self._remove_below(f"{DRIVER_ROOT}/", "/sys/module/nvidia/")
        self.host.hide_containers_driver()
        self.save_and_notify()
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
            self.save_and_notify()

    def has_directory(self, path: str) -> bool:
        """Tell whether a directory was made, or something below it."""
        made = (*self.state.directories, *self.state.files)
        return any(name == path or name.startswith(f"{path}/") for name in made)

    def register_devices(self, count: int, resource: str = GPU_RESOURCE) -> None:
        """Take what a device plugin offers: one resource, whichever its configuration names."""
        if self.state.devices is not None:
            self.state.former = [name for name in {*self.state.former, self.state.resource} if name != resource]
        self.state.devices = self.state.registered = count
        self.state.resource = resource
        self.save_and_notify()

    def note_fault(self, fault: NodeFault, *, struck: bool) -> bool:
        """Note that a fault struck, or that it may strike again; False if that was so already."""
        if (repr(fault) in self.state.struck) == struck:
            return False
        (self.state.struck.append if struck else self.state.struck.remove)(repr(fault))
        self.save_and_notify()
        return True

    def grant(self, holder: str, count: int) -> bool:
        """Give a container ``count`` devices; False if there are not that many free ones."""
        held = {device for devices in self.state.granted.values() for device in devices}
        free = [device for device in range(self.state.devices or 0) if device not in held]
        if holder in self.state.granted:
            return True
        if len(free) < count:
            return False
        self.state.granted[holder] = free[:count]
        self.save_and_notify()
        return True

    def start_time(self) -> datetime:
        """Return when a container that starts now starts, in whole seconds: later than any before it."""
        self.state.last_start = max(int(time.time()), self.state.last_start + 1)
        return datetime.fromtimestamp(self.state.last_start, UTC)

    def release(self, pod_uid: str) -> None:
        """Take back the devices of a pod, and its directories."""
        for kept in (self.state.granted, self.state.empty_dirs):
            held = [key for key in kept if key.startswith(f"{pod_uid}/")]
            for key in held:
                del kept[key]
            if held:
                self.save_and_notify()

    def take_config(self, rendered: Object) -> None:
        """Take a rendered MachineConfig, as a boot does: system, kernel, and which modules it loads."""
        effects = read_effects(rendered)
        self.state.config = rendered["metadata"]["name"]
        self.state.blocked, self.state.loaded = effects.blocked_modules, effects.loaded_modules
        release = release_of_os(effects.os_image_url)
        if release is not None and release != self.spec.release:
            self.spec, self.state.release = self.spec.on_release(release), release.version
        self.save_and_notify()

    def reboot(self) -> None:
        """Lose what does not outlive a reboot, and get a new boot ID: the simulated host's, if that rebooted before."""
        new_id = str(uuid.uuid4())
        if self.host.boot_id() in {"", self.state.boot_id}:
            self.host.begin_boot(new_id)
        self._remove_below(*_VOLATILE)
        self.state.boot_id, self.state.directories = self.host.boot_id() or new_id, []
        self.state.driver = self.state.driver_digest = ""
        self.state.owners, self.state.registered = {}, 0
        self.state.devices, self.state.granted = (None if self.state.devices is None else 0), {}
        self.clients.clear()
        self.host.hide_containers_driver()
        self._boot()

    def _boot(self) -> None:
        self.state.modules = [m for m in ("i2c_core", "ipmi_msghandler") if m in self.spec.host.get("modules", ())]
        self.state.modules += [m for m in self.state.loaded if m not in (*self.state.modules, *self.state.blocked)]
        if self.host_driver and self.spec.gpu:
            self.state.driver = self.host_driver
            self.state.modules += ["nvidia", "nvidia_uvm", "nvidia_modeset"]
            self.state.files[_SMI] = "ELF"
        else:
            self.state.files.pop(_SMI, None)
        self.save_and_notify()

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
        line = json.dumps(asdict(self.state)) + "\n"
        with self._file.open("a", encoding="utf-8") as file:
            file.write(line)
            grown = file.tell() > _MAX_FILE_BYTES
        if grown:
            replace_file(self._file, line)


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
