"""The archive of stand-in images: complete, valid, the same each time, and running with what it brings."""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_provision.inventory import load
from tests.real.images import build, host, stand_ins
from tests.real.images.layers import Item, tar

pytestmark = pytest.mark.xdist_group("stand-in images")  # one worker builds them, not each

CHECKOUT = Path(__file__).parents[3]
IMAGES = build.of_inventory(load(CHECKOUT / "inventories/sandbox.yaml"))
GOLDEN = sorted((CHECKOUT / "tests/golden").rglob("*.yaml"))


class Archive:
    """An archive, read as a container runtime reads it."""

    def __init__(self, path: Path) -> None:
        """Read all of it."""
        with tarfile.open(path) as archive:
            members = {name: archive.extractfile(name) for name in archive.getnames()}
            self.files = {name: file.read() for name, file in members.items() if file is not None}
        self.index: dict[str, Any] = json.loads(self.files["index.json"])

    def blob(self, descriptor: dict[str, Any]) -> bytes:
        """Return what a descriptor describes, after comparing both."""
        data = self.files[f"blobs/sha256/{descriptor['digest'].removeprefix('sha256:')}"]
        assert descriptor["digest"] == f"sha256:{hashlib.sha256(data).hexdigest()}"
        assert descriptor["size"] == len(data)
        return data

    def manifest(self, image: str) -> dict[str, Any]:
        """Return an image's manifest."""
        named = {each["annotations"]["io.containerd.image.name"]: each for each in self.index["manifests"]}
        return dict(json.loads(self.blob(named[image])))

    def config(self, image: str) -> dict[str, Any]:
        """Return an image's configuration."""
        return dict(json.loads(self.blob(self.manifest(image)["config"])))

    def unpack(self, image: str, target: Path) -> set[str]:
        """Write an image's layers to a folder and return their paths."""
        paths = set()
        for layer in self.manifest(image)["layers"]:
            with tarfile.open(fileobj=io.BytesIO(self.blob(layer))) as archive:
                # As an attribute, so that Python 3.11.2 of Debian 12, which knows no filters, passes over it.
                archive.extraction_filter = lambda member, _: member
                archive.extractall(target)  # noqa: S202 -- our own archive
                paths |= set(archive.getnames())
        return paths


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if reason := build.missing():
        pytest.skip(reason)
    return build.archive(IMAGES, tmp_path_factory.mktemp("images") / "images.tar")


@pytest.fixture(scope="module")
def archive(path: Path) -> Archive:
    return Archive(path)


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(stand_ins, "STAND_INS", {"any": stand_ins.StandIn(packages=("un.heard.of",))})
    assert build.missing() == "not installed: busybox (Debian: busybox-static), the Python package un.heard.of"


@pytest.mark.parametrize("manifests", GOLDEN, ids=lambda file: f"{file.parent.name}/{file.stem}")
def test_every_image_that_a_component_can_ask_for_has_a_stand_in(manifests: Path) -> None:
    for image in build.images_of(yaml.safe_load_all(manifests.read_text())):
        assert stand_ins.of(image)


def test_images_without_a_stand_in_are_named() -> None:
    with pytest.raises(LookupError, match="for the image example"):
        stand_ins.of("example.com/unheard-of:1")


def test_the_stand_in_of_an_image_does_not_depend_on_its_registry() -> None:
    assert stand_ins.of("registry.example:5000/mirror/gpu-operator:v1") is stand_ins.of("gpu-operator")


def test_the_archive_holds_every_image_under_its_real_name(archive: Archive) -> None:
    """A container runtime takes the name from an annotation of each manifest."""
    assert archive.files["oci-layout"] == b'{"imageLayoutVersion": "1.0.0"}'
    for image in IMAGES:
        manifest, config = archive.manifest(image), archive.config(image)
        assert [layer["digest"] for layer in manifest["layers"]] == config["rootfs"]["diff_ids"]
        assert all(archive.blob(layer) for layer in manifest["layers"])


def test_equal_inputs_make_equal_archives(path: Path, tmp_path: Path) -> None:
    """Another process, with another order of its sets, writes the same bytes."""
    script = (
        "import sys; from pathlib import Path; from tests.real.images import build;"
        "build.archive(sys.argv[2:], Path(sys.argv[1]))"
    )
    again = tmp_path / "again.tar"
    environment = {**os.environ, "PYTHONHASHSEED": "7", "PYTHONPATH": str(CHECKOUT)}
    command = [sys.executable, "-c", script, str(again), *reversed(IMAGES)]
    subprocess.run(command, check=True, env=environment, cwd=CHECKOUT)
    assert hashlib.sha256(again.read_bytes()).digest() == hashlib.sha256(path.read_bytes()).digest()


def test_an_archive_is_built_once_for_the_same_inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    first = build.cached([build.PAUSE])
    made = first.stat().st_ino
    assert build.cached([build.PAUSE]).stat().st_ino == made
    assert build.cached([build.PAUSE, "nvcr.io/nvidia/gpu-operator:v26.7.0"]) != first


@pytest.mark.parametrize("name", ["node-feature-discovery", "dcgm-exporter"])
def test_images_that_have_no_shell_have_none_here(name: str, archive: Archive, tmp_path: Path) -> None:
    """A manifest that needs a shell where the real image has none must fail."""
    image = next(image for image in IMAGES if stand_ins.of(image) is stand_ins.STAND_INS[name])
    assert not {path for path in archive.unpack(image, tmp_path) if path.endswith(("/sh", "/busybox", "/bash"))}


def test_nfd_runs_as_a_numeric_user_that_is_not_root(archive: Archive) -> None:
    """The kubelet can only verify runAsNonRoot against a number."""
    image = next(image for image in IMAGES if "node-feature-discovery" in image)
    user = archive.config(image)["config"]["User"].partition(":")[0]
    assert int(user) > 0


def test_a_driver_image_knows_its_version_and_operating_system(archive: Archive) -> None:
    environment = archive.config("nvcr.io/nvidia/driver:595.91.07-ubuntu22.04")["config"]["Env"]
    assert "DRIVER_VERSION=595.91.07" in environment
    assert "STAND_IN_OS=ubuntu22.04" in environment


@pytest.mark.parametrize("image", IMAGES)
def test_programs_start_with_nothing_but_what_their_image_brings(image: str, archive: Archive, tmp_path: Path) -> None:
    """Every module that a program imports is in its image."""
    archive.unpack(image, tmp_path)
    modules = {program.partition(":")[0] for program in stand_ins.of(image).programs.values()}
    script = "".join(f"import stand_in.{module}\n" for module in sorted(modules))
    if script:
        script += f"import sys\nassert all(path.startswith({str(tmp_path)!r}) for path in sys.path), sys.path\n"
        subprocess.run([tmp_path / host.PYTHON.lstrip("/"), "-IS", "-c", script], check=True, env={}, cwd="/")


def test_layers_say_nothing_of_the_machine_that_made_them() -> None:
    one = tar({"/b/file": Item(b"b", 0o755), "/a": Item(link="b/file")})
    other = tar({"/a": Item(link="b/file"), "/b/file": Item(b"b", 0o755)})
    assert one == other
    with tarfile.open(fileobj=io.BytesIO(one)) as layer:
        assert [(member.name, member.mtime, member.uid, member.uname) for member in layer] == [
            ("b", 0, 0, ""),
            ("a", 0, 0, ""),
            ("b/file", 0, 0, ""),
        ]


def test_archives_that_were_not_used_for_long_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = tmp_path / "gpu-provision/images"
    folder.mkdir(parents=True)
    for age in range(5):
        (folder / f"{age}.tar").touch()
        os.utime(folder / f"{age}.tar", (1000 - age, 1000 - age))
    newest = build.cached([build.PAUSE])
    assert {path.name for path in folder.iterdir()} == {newest.name, "0.tar", "1.tar"}
