"""What the stand-ins do that needs no node."""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.real.images.programs import (
    cdi,
    cuda,
    dcgm,
    driver,
    gfd,
    gpus,
    models,
    nfd_master,
    nfd_worker,
    runtime,
    toml,
    toolkit,
    validator,
)

PROGRAMS = Path(__file__).parent / "programs"
T4 = gpus.Gpu(0, "GPU-0", "0000:00:1e.0", "1eb8", "Tesla T4")


def _pci(bus: Path, address: str, *, vendor: str, pci_class: str, device: str = "0x1eb8") -> None:
    folder = bus / address
    folder.mkdir(parents=True)
    for name, value in {"vendor": vendor, "class": pci_class, "device": device}.items():
        (folder / name).write_text(f"{value}\n")


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A machine with a T4, an NVIDIA switch and a network card, as NFD's worker has its folders mounted."""
    bus = tmp_path / "host-sys/bus/pci/devices"
    _pci(bus, "0000:00:1e.0", vendor="0x10de", pci_class="0x030200")
    _pci(bus, "0000:00:1f.0", vendor="0x10de", pci_class="0x068000")
    _pci(bus, "0000:00:03.0", vendor="0x1d0f", pci_class="0x020000")
    (tmp_path / "host-etc").mkdir()
    (tmp_path / "host-etc/os-release").write_text('ID=ubuntu\nVERSION_ID="22.04"\n')
    return tmp_path


def test_nfd_labels_what_is_on_the_pci_bus(machine: Path) -> None:
    config = {"sources": {"pci": {"deviceClassWhitelist": ["0200", "0302"], "deviceLabelFields": ["vendor"]}}}
    labels, features = nfd_worker.discover(machine, config)
    assert {name for name in labels if "/pci-" in name} == {
        "feature.node.kubernetes.io/pci-10de.present",
        "feature.node.kubernetes.io/pci-1d0f.present",
    }
    assert labels["feature.node.kubernetes.io/system-os_release.ID"] == "ubuntu"
    assert labels["feature.node.kubernetes.io/system-os_release.VERSION_ID.major"] == "22"
    devices = [each["attributes"] for each in features["instances"]["pci.device"]["elements"]]
    assert {"vendor": "10de", "class": "0302", "device": "1eb8"} in devices


def test_nfd_names_devices_by_class_and_vendor_unless_told_otherwise(machine: Path) -> None:
    labels, _ = nfd_worker.discover(machine, {})
    assert [name for name in labels if "/pci-" in name] == ["feature.node.kubernetes.io/pci-0302_10de.present"]


def test_nfd_takes_over_what_other_programs_left_in_features_d(machine: Path) -> None:
    folder = machine / "etc/kubernetes/node-feature-discovery/features.d"
    folder.mkdir(parents=True)
    (folder / "gfd").write_text("# by GFD\nnvidia.com/gpu.count=1\nplain=yes\n")
    labels, _ = nfd_worker.discover(machine, {})
    assert labels["nvidia.com/gpu.count"] == "1"
    assert labels["feature.node.kubernetes.io/plain"] == "yes"


def _feature(name: str, labels: dict[str, str]) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "nfd"}, "spec": {"labels": labels}}


def test_nfds_master_labels_only_in_namespaces_that_it_may_label() -> None:
    said = {"feature.node.kubernetes.io/a": "1", "kubernetes.io/hostname": "x", "nvidia.com/gpu.count": "1"}
    assert nfd_master.wanted_labels([_feature("n", said)], ["nvidia.com"]).keys() == said.keys() - {
        "kubernetes.io/hostname"
    }


def test_a_value_that_no_label_can_have_costs_no_other_label() -> None:
    """As NFD's master does: QEMU's product name has parentheses in it."""
    said = {"nvidia.com/gpu.machine": "Standard-PC-(i440FX-+-PIIX,-1996)", "nvidia.com/gpu.count": "2"}
    assert nfd_master.wanted_labels([_feature("n", said)], ["nvidia.com"]) == {"nvidia.com/gpu.count": "2"}


def test_nfds_master_takes_back_the_labels_that_it_gave() -> None:
    given = nfd_master.change({"metadata": {}}, {"feature.node.kubernetes.io/a": "1"})
    assert given is not None
    node = {"metadata": {**given["metadata"], "labels": {**given["metadata"]["labels"], "mine": "stays"}}}
    assert nfd_master.change(node, {"feature.node.kubernetes.io/a": "1"}) is None
    taken = nfd_master.change(node, {})
    assert taken is not None
    assert taken["metadata"]["labels"] == {"feature.node.kubernetes.io/a": None}


def test_the_driver_finds_gpus_and_nothing_else_on_the_bus(machine: Path) -> None:
    [gpu] = driver.present(machine / "host-sys/bus/pci/devices")
    assert (gpu.index, gpu.address, gpu.device) == (0, "0000:00:1e.0", "1eb8")
    assert gpu.uuid.startswith("GPU-")


def test_the_drivers_library_says_which_gpus_there_are(tmp_path: Path) -> None:
    library = tmp_path / gpus.NVML
    library.parent.mkdir(parents=True)
    library.write_text(gpus.describe("595.91.07", [T4]))
    assert gpus.driver(str(tmp_path)) == ("595.91.07", [T4])


def test_nvidia_smi_fails_without_the_drivers_library(tmp_path: Path) -> None:
    missing = {"LD_PRELOAD": str(tmp_path / "missing")}
    assert (
        subprocess.run(["sh", PROGRAMS / "nvidia-smi"], check=False, env=missing, capture_output=True).returncode == 12
    )


def test_nvidia_smi_fails_without_device_nodes(tmp_path: Path) -> None:
    program, library = tmp_path / gpus.SMI, tmp_path / "library"
    program.parent.mkdir(parents=True)
    program.write_bytes((PROGRAMS / "nvidia-smi").read_bytes())
    library.write_text(gpus.describe("595.91.07", [T4]))
    found = subprocess.run(["sh", program], check=False, env={"LD_PRELOAD": str(library)}, capture_output=True)
    assert found.returncode == 9


@pytest.mark.parametrize(
    ("library", "says"),
    [(False, "CUDA driver version is insufficient for CUDA runtime version"), (True, "no CUDA-capable device")],
)
def test_vector_add_fails_without_a_gpu(
    library: bool,  # noqa: FBT001 -- a parameter of the test
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In the sample's own words, which differ between no driver and no device."""
    (tmp_path / "libcuda").write_text("driver 1\n")
    monkeypatch.setattr(gpus, "CUDA", str(tmp_path / ("libcuda" if library else "missing")))
    monkeypatch.setattr(gpus, "NVML", str(tmp_path / "missing"))
    assert cuda.main() == 1
    printed = capsys.readouterr()
    assert "Test PASSED" not in printed.out
    assert f"Failed to allocate device vector A (error code {says}" in printed.err


def _container(env: list[str], annotations: dict[str, str] | None = None) -> dict[str, Any]:
    return {"process": {"env": env}, "annotations": annotations or {}}


@pytest.mark.parametrize(
    ("container", "devices"),
    [
        (_container([]), []),
        (_container(["NVIDIA_VISIBLE_DEVICES=void"]), []),
        (_container(["NVIDIA_VISIBLE_DEVICES=all"]), ["management.nvidia.com/gpu=all"]),
        (_container(["NVIDIA_VISIBLE_DEVICES=nvidia.com/gpu=0"]), ["nvidia.com/gpu=0"]),
        (
            _container(["NVIDIA_VISIBLE_DEVICES=all"], {"cdi.k8s.io/a": "x.y/gpu=1,x.y/gpu=2"}),
            ["x.y/gpu=1", "x.y/gpu=2"],
        ),
    ],
)
def test_the_runtime_gives_a_container_what_it_asks_for(container: dict[str, Any], devices: list[str]) -> None:
    assert list(runtime.requested(container)) == devices


def _bundle(folder: Path, visible: str) -> Path:
    (folder / "config.json").write_text(json.dumps(_container([f"NVIDIA_VISIBLE_DEVICES={visible}"])))
    return folder


def test_the_runtime_adds_devices_and_files_by_cdi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The device nodes are those of the driver's root, under their plain names in the container."""
    edits = {
        "deviceNodes": [{"path": "/dev/nvidia0", "hostPath": "/dev/null"}],
        "mounts": [{"hostPath": "/root/nvidia-smi", "containerPath": "/usr/bin/nvidia-smi", "options": ["ro"]}],
    }
    spec = {"kind": "management.nvidia.com/gpu", "devices": [{"name": "all", "containerEdits": edits}]}
    folder = tmp_path / "cdi"
    folder.mkdir()
    (folder / "management.yaml").write_text(json.dumps(spec))
    monkeypatch.setattr(runtime, "_DIRECTORIES", (folder,))
    assert runtime.main("cdi", ["create", "--bundle", str(_bundle(tmp_path, "all")), "id"]) == 0
    changed = json.loads((tmp_path / "config.json").read_text())
    [device] = changed["linux"]["devices"]
    assert (device["path"], device["major"], device["minor"]) == ("/dev/nvidia0", 1, 3)
    assert changed["linux"]["resources"]["devices"][-1]["allow"]
    assert changed["mounts"][0]["destination"] == "/usr/bin/nvidia-smi"


def test_the_runtime_refuses_a_device_that_no_file_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(runtime, "_DIRECTORIES", (tmp_path / "missing",))
    log = tmp_path / "log.json"
    assert runtime.main("cdi", ["--log", str(log), "create", "--bundle", str(_bundle(tmp_path, "7"))]) == 1
    assert "unresolvable CDI devices management.nvidia.com/gpu=7" in capsys.readouterr().err
    assert json.loads(log.read_text())["level"] == "error"


def test_cdi_files_name_the_device_nodes_of_the_host(tmp_path: Path) -> None:
    spec = cdi.specification("nvidia.com/gpu", {"all": ["null"]}, "/", str(tmp_path))
    [device] = spec["devices"]
    assert device["containerEdits"]["deviceNodes"] == [{"path": "/dev/null", "hostPath": f"{tmp_path}/dev/null"}]


def test_the_toolkits_drop_in_keeps_what_the_runtime_had_set() -> None:
    """A container runtime replaces the whole section of a plugin by that of the drop-in."""
    runc = {"runtime_type": "io.containerd.runc.v2", "options": {"SystemdCgroup": True}}
    section = {"sandbox_image": "pause", "containerd": {"runtimes": {"runc": runc}}}
    config = {"version": 2, "plugins": {"io.containerd.grpc.v1.cri": section}}
    drop_in = tomllib.loads(toml.dumps(toolkit.with_handlers(config, Path("/opt/toolkit"))))
    found = drop_in["plugins"]["io.containerd.grpc.v1.cri"]
    assert found["sandbox_image"] == "pause"
    assert found["containerd"]["runtimes"].keys() == {"runc", "nvidia", "nvidia-cdi", "nvidia-legacy"}
    assert found["containerd"]["runtimes"]["nvidia"]["options"] == {
        "SystemdCgroup": True,
        "BinaryName": "/opt/toolkit/nvidia-container-runtime",
    }


def test_toml_is_read_back_as_it_was_written() -> None:
    document = {"a": 1, "b": [True, "x\ny"], "t": {"dotted.key": {"s": 'quoted "word"'}, "e": {}}}
    assert tomllib.loads(toml.dumps(document)) == document


def test_a_check_of_the_validator_that_fails_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file of an earlier success goes first."""
    monkeypatch.setattr(validator, "VALIDATIONS", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    ready = tmp_path / "toolkit-ready"
    ready.touch()
    assert validator.check("toolkit") == 1
    assert not ready.exists()


def test_the_validator_refuses_a_component_that_it_does_not_know() -> None:
    assert validator.check("unheard-of") == 1


def test_gfd_says_what_the_gpus_are(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    table = tmp_path / "models.json"
    table.write_text(json.dumps({"1eb8": ["Tesla T4", 15360, "7.5", "turing"]}))
    monkeypatch.setattr(models, "_TABLE", table)
    labels = gfd.labels("595.91.07", [T4, T4])
    assert labels["nvidia.com/gpu.count"] == "2"
    assert labels["nvidia.com/gpu.product"] == "Tesla-T4"
    assert labels["nvidia.com/cuda.driver-version.full"] == "595.91.07"
    assert labels["nvidia.com/gpu.memory"] == "15360"


def test_the_exporter_serves_a_figure_of_every_gpu_for_every_field() -> None:
    rows = [["DCGM_FI_DEV_GPU_TEMP", "gauge", "Temperature."], ["DCGM_FI_DRIVER_VERSION", "label", "Driver."]]
    text = dcgm.metrics(rows, [T4, T4], "node-1")
    assert text.startswith("# HELP DCGM_FI_DEV_GPU_TEMP Temperature.\n# TYPE DCGM_FI_DEV_GPU_TEMP gauge\n")
    samples = [line for line in text.splitlines() if not line.startswith("#")]
    assert len(samples) == 2
    assert all(re.fullmatch(r'\w+\{(\w+="[^"]*",?)+\} [\d.]+', line) for line in samples)
