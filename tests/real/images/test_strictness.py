"""The stand-ins refuse what the real programs refuse: a lenient one hides a fault from every other test."""

from __future__ import annotations

import io
import json
import subprocess
import tarfile
from pathlib import Path

import pytest

from tests.real.images import build
from tests.real.images.programs import cuda, gpus, runtime, validator

NFD = "registry.k8s.io/nfd/node-feature-discovery:v0.18.2"
SMI = Path(__file__).parent / "programs" / "nvidia-smi"
T4 = gpus.Gpu(0, "GPU-0", "0000:00:1e.0", "1eb8", "Tesla T4")


@pytest.mark.parametrize("image", [NFD, "nvcr.io/nvidia/k8s/dcgm-exporter:4.4.1"])
def test_distroless_images_have_no_shell(image: str) -> None:
    """A manifest that needs a shell where the real image has none must fail."""
    paths = set[str]()
    for layer in build._image(image).layers:
        with tarfile.open(fileobj=io.BytesIO(layer)) as archive:
            paths |= set(archive.getnames())
    assert "usr/bin" in paths
    assert not {path for path in paths if path.endswith(("/sh", "/busybox", "/bash"))}


def test_nfd_image_has_a_numeric_user_other_than_root() -> None:
    """The kubelet can only verify runAsNonRoot against a number."""
    assert int(build._image(NFD).config["User"].partition(":")[0]) > 0


def test_nvidia_smi_fails_without_the_driver_library(tmp_path: Path) -> None:
    """With the exit status of the real program."""
    missing = {"LD_PRELOAD": str(tmp_path / "missing")}
    assert subprocess.run(["sh", SMI], check=False, env=missing, capture_output=True).returncode == 12


def test_nvidia_smi_fails_without_device_nodes(tmp_path: Path) -> None:
    """With the exit status of the real program."""
    program, library = tmp_path / gpus.SMI, tmp_path / "library"
    program.parent.mkdir(parents=True)
    program.write_bytes(SMI.read_bytes())
    library.write_text(gpus.describe("595.91.07", [T4]))
    found = subprocess.run(["sh", program], check=False, env={"LD_PRELOAD": str(library)}, capture_output=True)
    assert found.returncode == 9


@pytest.mark.parametrize(
    ("library", "says"),
    [
        ("missing", "CUDA driver version is insufficient for CUDA runtime version"),
        ("libcuda", "no CUDA-capable device"),
    ],
)
def test_vector_add_fails_without_a_gpu(
    library: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The sample's messages differ between no driver and no device."""
    (tmp_path / "libcuda").write_text("driver 1\n")
    monkeypatch.setattr(gpus, "CUDA", str(tmp_path / library))
    monkeypatch.setattr(gpus, "NVML", str(tmp_path / "missing"))
    assert cuda.main() == 1
    printed = capsys.readouterr()
    assert "Test PASSED" not in printed.out
    assert f"Failed to allocate device vector A (error code {says}" in printed.err


def test_runtime_refuses_an_unknown_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The container does not start."""
    monkeypatch.setattr(runtime, "_DEVICES", tmp_path / "missing")
    container = {"process": {"env": ["NVIDIA_VISIBLE_DEVICES=7"]}, "annotations": {}}
    (tmp_path / "config.json").write_text(json.dumps(container))
    assert runtime.main("cdi", ["create", "--bundle", str(tmp_path), "id"]) == 1
    assert "unresolvable CDI devices management.nvidia.com/gpu=7" in capsys.readouterr().err


def test_validator_that_fails_leaves_no_ready_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It removes the file of an earlier success first."""
    monkeypatch.setattr(validator, "VALIDATIONS", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    ready = tmp_path / "toolkit-ready"
    ready.touch()
    assert validator.check("toolkit") == 1
    assert not ready.exists()
