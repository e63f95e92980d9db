"""A cluster as a pyinfra host: it has a name, and no shell."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.connectors.conftest import Pyinfra


def test_command_on_a_cluster_is_refused_with_one_message(pyinfra: Pyinfra, tmp_path: Path) -> None:
    done = pyinfra("@cluster/prod", "exec", "--", "touch", str(tmp_path / "stray"))
    assert done.returncode == 1
    assert "@cluster/prod is a Kubernetes cluster and has no shell" in done.stdout
    assert not (tmp_path / "stray").exists()


def test_file_for_a_cluster_is_refused(pyinfra: Pyinfra, tmp_path: Path) -> None:
    (tmp_path / "upload.py").write_text(
        "import io\n"
        "from pyinfra.api.command import FileDownloadCommand, FileUploadCommand\n"
        "from pyinfra.api.operation import operation\n"
        "@operation()\n"
        "def upload():\n"
        "    yield FileUploadCommand(io.StringIO('x'), '/etc/x')\n"
        "upload()\n"
    )
    done = pyinfra("@cluster/prod", "upload.py")
    assert done.returncode == 1
    assert "is a Kubernetes cluster and takes no files" in done.stdout


def test_cluster_without_a_context_is_refused(pyinfra: Pyinfra) -> None:
    done = pyinfra("@cluster", "debug-inventory")
    assert done.returncode == 1
    assert "a cluster needs the name of its context: @cluster/<context>" in done.stdout


def test_connectors_import_nothing_heavy() -> None:
    code = (
        "import sys, pyinfra.api; before = set(sys.modules)\n"
        "from gpu_provision.connectors import cluster, k8s_node, sandbox\n"
        "sys.exit(str({'kubernetes', 'yaml', 'aiohttp'} & (set(sys.modules) - before) or ''))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.stderr.strip() == ""
