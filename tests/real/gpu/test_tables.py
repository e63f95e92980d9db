"""What the tables of this repository say of the GPU that is here, against what its driver says. Needs no node."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_provision.hosts.facts.gpus import model_of
from gpu_provision.inventory.hardware import find_model
from gpu_provision.inventory.mig import find_layout
from gpu_provision.sandbox.operand_rules import branch, cuda_version
from tests.instance_profiles import instance_profiles
from tests.real.gpu import host
from tests.real.images.programs import gpus, nvml

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(bool(host.missing()), reason=host.missing())]


def test_a_gpu_is_known_by_its_pci_id_and_by_its_name() -> None:
    name, pci_id, memory, compute, version = host.asked(
        "name", "pci.device_id", "memory.total", "compute_cap", "driver_version"
    )[0]
    known, simulated = model_of(pci_id[2:6].lower()), gpus.model(pci_id[2:6].lower())
    assert known.name == name
    assert known.models == (find_model(name),)
    assert (simulated.name, str(simulated.memory), simulated.compute) == (name, memory, compute)
    assert branch(version) >= known.first_branch


def test_the_cuda_version_is_the_drivers() -> None:
    version = host.asked("driver_version")[0][0]
    assert f"CUDA Version: {cuda_version(version)} " in host.smi()


def test_the_library_says_the_same_as_nvidia_smi() -> None:
    version, devices = nvml.read(host.files()[gpus.NVML])
    told = host.asked("driver_version", "uuid", "name", "memory.total", "compute_cap")
    assert [[version, each.uuid, each.name, str(each.memory), each.compute] for each in devices] == told
    assert all(Path(f"/sys/bus/pci/devices/{each.address}").exists() for each in devices)


def test_mig_profiles_are_those_of_the_inventorys_table() -> None:
    listed = instance_profiles(host.smi("mig", "-lgip", check=False))
    layout = find_layout(host.asked("name")[0][0])
    assert layout
    assert layout.profiles == listed
