"""The scripts that operands run, run."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from pathlib import Path

import pytest

from gpu_provision.components.pods import script
from gpu_provision.components.validator import STAY

TOOLKIT, PLUGIN = script("wait-for-driver", "toolkit"), script("wait-for-driver", "device-plugin")


class Machine:
    """A directory that stands for a machine: its validations, its modules, and the commands it has."""

    def __init__(self, root: Path) -> None:
        self.validations, self.modules, self.commands = root / "validations", root / "module", root / "bin"
        for directory in (self.validations, self.modules, self.commands):
            directory.mkdir()
        self.command("sleep", ":")

    def command(self, name: str, body: str) -> None:
        path = self.commands / name
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)

    def module(self, name: str) -> None:
        (self.modules / name).mkdir()
        (self.modules / name / "refcnt").write_text("0\n")

    def run(self, script: str, *args: str) -> subprocess.CompletedProcess[str]:
        text = script.replace("/run/nvidia/validations", str(self.validations))
        text = text.replace("/sys/module", str(self.modules))
        command = ["sh", "-c", text, "script", *args]
        env = {"PATH": f"{self.commands}:/usr/bin:/bin"}
        return subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=120)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_the_startup_probe_fails_until_the_module_is_loaded(machine: Machine) -> None:
    """And says why, which ``kubectl describe`` shows."""
    machine.command("nvidia-smi", ":")
    result = machine.run(script("startup-probe"))
    assert result.returncode == 1
    assert "kernel module is not loaded yet" in result.stderr
    assert not (machine.validations / ".driver-ctr-ready").exists()


def test_the_startup_probe_waits_for_daemons_and_for_an_answer(machine: Machine) -> None:
    """A loaded module that does not answer is no driver."""
    machine.module("nvidia")
    machine.command("nvidia-smi", "exit 9")
    assert machine.run(script("startup-probe")).returncode == 9
    machine.command("nvidia-smi", ":")
    (machine.validations / ".driver-daemons-status").write_text("Starting")
    assert machine.run(script("startup-probe")).returncode == 1
    assert not (machine.validations / ".driver-ctr-ready").exists()


def test_the_startup_probe_tells_the_validators_in_the_end(machine: Machine) -> None:
    """The validator reads these three switches."""
    machine.module("nvidia")
    machine.command("nvidia-smi", "echo ok")
    (machine.validations / ".driver-daemons-status").write_text("Ready")
    assert machine.run(script("startup-probe")).returncode == 0
    assert (machine.validations / ".driver-ctr-ready").read_text().splitlines() == [
        "GDRCOPY_ENABLED: false",
        "GDS_ENABLED: false",
        "GPU_DIRECT_RDMA_ENABLED: false",
    ]
    assert [path.name for path in machine.validations.iterdir() if "new" in path.name] == []


@pytest.mark.parametrize(("entrypoint", "program"), [(TOOLKIT, "nvidia-toolkit"), (PLUGIN, "nvidia-device-plugin")])
def test_an_entrypoint_waits_for_the_driver(machine: Machine, entrypoint: str, program: str) -> None:
    """The driver validation writes where the driver is; sleeping here makes the file appear."""
    ready = machine.validations / "driver-ready"
    machine.command("sleep", f'echo "NVIDIA_DRIVER_ROOT=/run/nvidia/driver" > {ready}')
    machine.command(program, 'echo "root=$NVIDIA_DRIVER_ROOT args=$*"')
    result = machine.run(entrypoint, "--one", "two words")
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == [f"waiting for {ready}", "root=/run/nvidia/driver args=--one two words"]


@pytest.mark.parametrize(
    ("file", "roots"), [("driver-ready", "/run/nvidia/driver /driver-root"), ("host-driver-ready", "/ /host")]
)
def test_an_entrypoint_knows_the_files_of_older_validators(machine: Machine, file: str, roots: str) -> None:
    """Before 24.6.0 they are empty, and a host driver has one of its own."""
    machine.command("sleep", f"touch {machine.validations / file}")
    machine.command("nvidia-device-plugin", 'echo "$NVIDIA_DRIVER_ROOT $DRIVER_ROOT_CTR_PATH $CONTAINER_DRIVER_ROOT"')
    result = machine.run(script("wait-for-driver-by-name", "device-plugin"))
    assert result.stdout.splitlines()[1] == f"{roots} {roots.rpartition(' ')[2]}"


def test_the_plugin_offers_what_the_kernel_can_do(machine: Machine) -> None:
    """GPUDirect modules switch their features on."""
    (machine.validations / "driver-ready").write_text("GDRCOPY_ENABLED=false\n")
    machine.command("nvidia-device-plugin", 'echo "$GDRCOPY_ENABLED $GDS_ENABLED $MOFED_ENABLED"')
    assert machine.run(PLUGIN).stdout.split() == ["false"]
    machine.module("gdrdrv")
    machine.module("nvidia_fs")
    assert machine.run(PLUGIN).stdout.split() == ["false", "true", "true"]


def test_the_validator_stays_until_sigterm() -> None:
    """Otherwise each pod of a rollout takes the grace period of half a minute to go."""
    command = ["sh", "-c", STAY]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as running:
        try:
            assert running.stdout
            assert running.stdout.readline() == "all validations are successful\n"
            assert running.poll() is None
            running.terminate()
            assert running.wait(timeout=120) == 0
        finally:
            with contextlib.suppress(ProcessLookupError):  # it ended before it slept
                os.killpg(running.pid, signal.SIGKILL)


@pytest.mark.parametrize(
    ("variable", "module"),
    [("GPU_DIRECT_RDMA_ENABLED", "nvidia_peermem"), ("GDS_ENABLED", "nvidia_fs"), ("GDRCOPY_ENABLED", "gdrdrv")],
)
def test_a_validator_waits_for_the_modules_announced(machine: Machine, variable: str, module: str) -> None:
    """The device plugin mounts only devices that exist when it starts."""
    (machine.validations / "driver-ready").write_text("IS_HOST_DRIVER=false\n")
    announced = machine.validations / ".driver-ctr-ready"
    # The first pause brings the announcement, the second one the module.
    load = f"if [ -f {announced} ]; then mkdir {machine.modules}/{module}; fi"
    machine.command("sleep", f'{load}; echo "{variable}: true" > {announced}')
    result = machine.run(script("wait-for-driver-container"))
    assert result.stdout.splitlines()[:2] == [f"waiting for {announced}", f"waiting for module {module}"]
    assert (machine.modules / module).is_dir()
    assert result.returncode == 0


def test_a_validator_waits_for_no_module_of_others(machine: Machine) -> None:
    """A node whose driver is not replaced yet, and one with a host driver, have no such modules."""
    machine.command("sleep", "kill $PPID")
    ready = machine.validations / "driver-ready"
    ready.write_text("IS_HOST_DRIVER=true\n")
    assert machine.run(script("wait-for-driver-container")).returncode == 0
    ready.rename(machine.validations / "host-driver-ready")  # as validators before 24.6.0
    assert machine.run(script("wait-for-driver-container")).returncode == 0
    (machine.validations / "host-driver-ready").unlink()
    ready.write_text("IS_HOST_DRIVER=false\n")
    (machine.validations / ".driver-ctr-ready").write_text("GDS_ENABLED: false\nGDRCOPY_ENABLED: false\n")
    assert machine.run(script("wait-for-driver-container")).returncode == 0


def test_a_module_is_built_after_the_driver(machine: Machine) -> None:
    """With the user's arguments at the end."""
    machine.command("sleep", f"mkdir -p {machine.modules}/nvidia")
    machine.command("build", 'echo "$@"')
    text = script("after-driver").replace("/run/nvidia/driver/usr/src", str(machine.commands))
    result = machine.run(f'{text}exec build install "$@"', "--own")
    assert result.stdout.splitlines() == ["waiting for the driver", "install --own"]


@pytest.mark.parametrize(
    ("root", "dump", "preset", "expected"),
    [
        ("# version 9\nversion = 2\n[plugins]\n", "disabled_plugins = []\nversion = 4\n[a]", "", "file"),
        ("version=3", "version = 3", "", ""),
        ("version = 4\nimports = ['*']", "version = 4", "", ""),
        ("[plugins]\nversion = 4", "version = 3", "", "file"),  # without a version it is of schema 1
        ("version = 2", "version = 4", "command", "command"),
        ("version = 2", "", "", ""),  # containerd is not there, such as on k0s
    ],
)
def test_the_toolkit_reads_the_file_of_an_older_schema(
    machine: Machine, root: str, dump: str, preset: str, expected: str
) -> None:
    """A drop-in of a newer schema than the root file's keeps containerd from starting."""
    (machine.validations / "driver-ready").write_text("")
    config, shown = machine.modules / "config.toml", machine.modules / "dump"
    config.write_text(root)
    shown.write_text(dump)
    machine.command("chroot", f"[ -s {shown} ] && cat {shown}")
    machine.command("nvidia-toolkit", 'echo "source: $RUNTIME_CONFIG_SOURCE"')
    given = f"export RUNTIME=containerd RUNTIME_CONFIG={config} RUNTIME_CONFIG_SOURCE={preset}\n"
    result = machine.run(given + script("wait-for-driver", "config-source", "toolkit"))
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-1] == f"source: {expected}"
    assert result.stderr == ""
