"""The container toolkit: installs its runtime on the host, tells containerd about it, and says what the GPUs are."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import struct
import time
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from . import gpus, toml
from .process import end_when_told, say, stay

_CRI = "io.containerd.grpc.v1.cri"
_HANDLERS = {
    "": "nvidia-container-runtime",
    "-cdi": "nvidia-container-runtime.cdi",
    "-legacy": "nvidia-container-runtime.legacy",
}
_TRIES, _PAUSE = 6, 5.0
_DEFAULT_OPTIONS: dict[str, Any] = {"runtime_type": "io.containerd.runc.v2"}


class Failed(Exception):
    """Why the toolkit could not be set up."""


def main() -> int:
    """Install, configure, stay until told to end, and take the configuration back."""
    end_when_told()
    try:
        inside, host = gpus.driver_files(os.environ)
        target = Path(os.environ.get("ROOT", "/usr/local/nvidia"), "toolkit")
        install(target, host)
        write_devices(target / "devices", inside, host)
        configure()
    except (Failed, gpus.NoDriver, OSError, tomllib.TOMLDecodeError) as problem:
        say(f'level=error msg="error running nvidia-toolkit: {problem}"')
        return 1
    pid_file = Path(os.environ.get("TOOLKIT_PID_FILE", "/run/nvidia/toolkit/toolkit.pid"))
    pid_file.write_text(f"{os.getpid()}\n")
    say("Waiting for signal")
    try:
        stay()
    finally:
        clean_up()
        pid_file.unlink(missing_ok=True)


def install(target: Path, driver_root: str) -> None:
    """Copy the runtime to the host, a wrapper for each runtime class and the program that they start."""
    say(f"Installing NVIDIA container toolkit to '{target}'")
    target.mkdir(parents=True, exist_ok=True)
    here = Path(__file__).parent
    shutil.copy(here / "runtime.py", target / "nvidia-container-runtime.real")
    wrapper = (here / "runtime.sh").read_text()
    settings = {
        "TOOLKIT": str(target),
        "DRIVER_ROOT": driver_root,
        "MODE": os.environ.get("NVIDIA_CONTAINER_RUNTIME_MODE", "auto"),
    }
    for name, value in settings.items():
        wrapper = wrapper.replace(f"@{name}@", value)
    for name in (*_HANDLERS.values(), "nvidia-cdi-hook", "nvidia-ctk"):
        partial = target / f".{name}"
        partial.write_text(wrapper if name.startswith("nvidia-container-runtime") else "#!/bin/sh\nexit 0\n")
        partial.chmod(0o755)
        partial.replace(target / name)


def write_devices(folder: Path, inside: str, host: str) -> None:
    """Write by which names the runtime finds the GPUs that an environment asks for, as a CDI file. Raises NoDriver.

    ``inside`` is the driver's root as this process sees it, ``host`` as the host does.
    """
    _, found = gpus.driver(inside)
    single = {name: [gpu.node] for gpu in found for name in (gpu.uuid, str(gpu.index))}
    devices = {"all": [gpu.node for gpu in found], **single}
    root = host.rstrip("/")

    def nodes(names: Iterable[str]) -> list[dict[str, str]]:
        made = (name for name in names if Path(inside, "dev", name).is_char_device())
        return [{"path": f"/dev/{name}", "hostPath": f"{root}/dev/{name}"} for name in made]

    options = ["ro", "nosuid", "nodev", "bind"]
    specified = {
        "cdiVersion": "0.5.0",
        "kind": "management.nvidia.com/gpu",
        "devices": [{"name": name, "containerEdits": {"deviceNodes": nodes(each)}} for name, each in devices.items()],
        "containerEdits": {
            "deviceNodes": nodes(gpus.control_devices(os.environ)),
            "mounts": [
                {"hostPath": f"{root}/{path}", "containerPath": f"/{path}", "options": options}
                for path in gpus.FILES
                if Path(inside, path).exists()
            ],
            "env": ["NVIDIA_VISIBLE_DEVICES=void"],
        },
    }
    folder.mkdir(exist_ok=True)
    partial = folder / ".partial"
    partial.write_text(json.dumps(specified, indent=2))
    partial.replace(folder / "management.nvidia.com-gpu.json")


def configure() -> None:
    """Write the drop-in with our handlers, have the main file import it, and have containerd start again."""
    runtime = os.environ.get("RUNTIME", "containerd")
    if runtime != "containerd" or os.environ.get("ENABLE_NRI_PLUGIN") == "true":
        say(f"this stand-in configures containerd only; {runtime} is left as it is")
        return
    main_file, drop_in = _files()
    config = tomllib.loads(main_file.read_text()) if main_file.exists() else {}
    say(f"Loading config from {main_file}", f"Flushing config to {drop_in}")
    drop_in.write_text(toml.dumps(with_handlers(config, Path(os.environ.get("ROOT", "/usr/local/nvidia"), "toolkit"))))
    pattern = f"{Path(os.environ['RUNTIME_DROP_IN_CONFIG_HOST_PATH']).parent}/*.toml"
    if pattern not in config.get("imports", []):
        config = {**config, "version": 2, "imports": [*config.get("imports", []), pattern]}
        main_file.write_text(toml.dumps(config))
    _restart(os.environ.get("RUNTIME_SOCKET", "/runtime/sock-dir/containerd.sock"))


def _files() -> tuple[Path, Path]:
    main_file, drop_in = Path(os.environ.get("RUNTIME_CONFIG", "")), Path(os.environ.get("RUNTIME_DROP_IN_CONFIG", ""))
    for path in (main_file, drop_in):
        if not path.is_absolute() or not path.parent.is_dir():
            message = f"unable to setup runtime: no such directory for the config file {path}"
            raise Failed(message)
    return main_file, drop_in


def with_handlers(config: dict[str, Any], toolkit: Path) -> dict[str, Any]:
    """Return the drop-in: containerd before 2.1 replaces a plugin's whole section, so it repeats the section."""
    section = dict(config.get("plugins", {}).get(_CRI, {}))
    containerd = dict(section.get("containerd", {}))
    runtimes = dict(containerd.get("runtimes", {}))
    base = runtimes.get(containerd.get("default_runtime_name", "runc")) or runtimes.get("runc") or _DEFAULT_OPTIONS
    name = os.environ.get("CONTAINERD_RUNTIME_CLASS") or "nvidia"
    for suffix, program in _HANDLERS.items():
        options = {**base.get("options", {}), "BinaryName": str(toolkit / program)}
        # Runtime classes other than the first keep their plain names whatever that one is called.
        handler = f"nvidia{suffix}" if suffix else name
        runtimes[handler] = {**_DEFAULT_OPTIONS, **base, "options": options}
    if os.environ.get("NVIDIA_RUNTIME_SET_AS_DEFAULT", "true") == "true":
        containerd["default_runtime_name"] = name
    return {"version": 2, "plugins": {_CRI: {**section, "containerd": {**containerd, "runtimes": runtimes}}}}


def clean_up() -> None:
    """Take the drop-in back and have containerd start again; the installed programs stay."""
    drop_in = os.environ.get("RUNTIME_DROP_IN_CONFIG", "")
    if drop_in and Path(drop_in).exists():
        Path(drop_in).unlink()
        _restart(os.environ.get("RUNTIME_SOCKET", ""))


def _restart(path: str) -> None:
    """Send SIGHUP to the process behind a socket: containerd ends of it, and its supervisor starts it again."""
    say("Sending SIGHUP signal to containerd")
    for attempt in range(1, _TRIES + 1):
        try:
            os.kill(_process_behind(path), signal.SIGHUP)
        except OSError as problem:
            say(f"Error signaling containerd, attempt {attempt}/{_TRIES}: {problem}")
            time.sleep(_PAUSE)
        else:
            say("Successfully signaled containerd")
            return
    message = f"unable to restart containerd: nothing listens on {path}"
    raise Failed(message)


def _process_behind(path: str) -> int:
    """Return the process id of a socket's owner; zero, which stands for an invisible one, is refused."""
    layout = "3i"
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        told = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize(layout))
    pid, _, _ = struct.unpack(layout, told)
    if pid <= 1:
        message = "the process behind the socket is not visible: is hostPID missing?"
        raise ProcessLookupError(message)
    return int(pid)
