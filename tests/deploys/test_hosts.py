"""The host phase and its barrier under the real pyinfra command, in every mode that it has."""

from __future__ import annotations

import re
from pathlib import Path

from tests.deploys.conftest import Pyinfra

MODULES_FILE = "etc/modules-load.d/gpu-provision.conf"
NOUVEAU_FILE = "etc/modprobe.d/gpu-provision-nouveau.conf"
OWN = """
from pyinfra import host
from pyinfra.operations import files

if "cluster" not in host.groups:
    files.file(name="Own", path="/etc/own")
"""


def totals(output: str) -> tuple[int, ...]:
    """Return hosts, success, error and no change of pyinfra's last table row."""
    (row,) = re.findall(r"Grand total\s+(.*)", output)
    return tuple(0 if figure == "-" else int(figure) for figure in row.split())


def files(root: Path) -> dict[str, tuple[str, int]]:
    """Return content and time of everything that a run could have written on a host."""
    paths = (path for folder in ("etc", "boot", "proc", "sys") for path in (root / folder).rglob("*"))
    return {str(p): (p.read_text(), p.stat().st_mtime_ns) for p in paths if p.is_file() and not p.is_symlink()}


def modules(root: Path) -> set[str]:
    return {line.split()[0] for line in (root / "proc/modules").read_text().splitlines()}


def test_first_run_prepares_hosts_and_then_the_cluster(pyinfra: Pyinfra, sandbox: Path, tmp_path: Path) -> None:
    """Modules loaded and listed, nouveau blacklisted and gone, the initramfs knows it; on Ubuntu and on RHEL."""
    done = pyinfra("good-1 good-2", "-y")
    assert done.returncode == 0, done.stdout
    for root in (sandbox / "good-1", sandbox / "good-2"):
        assert "ipmi_msghandler" in modules(root)
        assert "nouveau" not in modules(root)
        assert (root / MODULES_FILE).read_text().splitlines()[1:] == ["ipmi_msghandler"]
        assert "blacklist nouveau" in (root / NOUVEAU_FILE).read_text().splitlines()
        (image,) = (root / "boot").glob("init*")
        assert "blacklist nouveau" in image.read_text()
    assert (tmp_path / "cluster-ran").exists()


def test_second_run_changes_nothing(pyinfra: Pyinfra, sandbox: Path) -> None:
    pyinfra("good-1 good-2 held-1", "-y")
    before = {root.name: files(root) for root in sandbox.iterdir()}
    done = pyinfra("good-1 good-2 held-1", "-y")
    called, success, error, no_change = totals(done.stdout)
    assert (success, error) == (0, 0)
    assert no_change == called
    assert {root.name: files(root) for root in sandbox.iterdir()} == before


def test_dry_run_shows_changes_and_makes_none(pyinfra: Pyinfra, sandbox: Path) -> None:
    done = pyinfra("good-1", "--dry", "--diff")
    assert done.returncode == 0, done.stdout
    assert re.search(r"Kernel modules loaded now and at boot\s+1 \(@sandbox/good-1\)", done.stdout)
    assert re.search(r"nouveau kept away\s+1 \(@sandbox/good-1\)", done.stdout)
    assert not (sandbox / "good-1" / MODULES_FILE).exists()
    assert "+ipmi_msghandler" in done.stdout
    assert "+blacklist nouveau" in done.stdout


def test_host_that_fails_while_planning_leaves_the_run_alone(pyinfra: Pyinfra, sandbox: Path, tmp_path: Path) -> None:
    """Its finding stands with it, others are planned and finished, and the cluster phase is held back.

    No operation of the user's own, before or after, is planned for it or carried out.
    """
    (tmp_path / "own.py").write_text(OWN)
    done = pyinfra("good-1 bad-1", command=("own.py", "deploy.py", "own.py"), answers="\nno\n")
    assert done.returncode == 1
    assert re.search(r"\[@sandbox/bad-1\] +GP601 @sandbox/bad-1: kernel 5.15.0-122-generic has no module", done.stdout)
    assert "apt-get install linux-modules-extra-5.15.0-122-generic" in done.stdout
    assert "Traceback" not in done.stdout
    assert re.search(r"nouveau kept away\s+1 \(@sandbox/good-1\)", done.stdout)
    assert "1 warnings shown during change detection" in done.stdout
    assert "ipmi_msghandler" in modules(sandbox / "good-1")
    assert re.findall(r"Own\s+(\d+ \(.*?\))", done.stdout) == ["1 (@sandbox/good-1)"] * 2
    assert not (sandbox / "bad-1" / "etc/own").exists()
    assert "held back: the host phase failed on @sandbox/bad-1" in done.stdout
    assert not (tmp_path / "cluster-ran").exists()


def test_unreachable_host_holds_the_cluster_back_unless_excluded(pyinfra: Pyinfra, tmp_path: Path) -> None:
    done = pyinfra("good-1 away-1", "-y")
    assert done.returncode == 1
    assert "the host phase failed on @sandbox/away-1" in done.stdout
    assert not (tmp_path / "cluster-ran").exists()
    done = pyinfra("good-1 away-1", "-y", "--exclude", "@sandbox/away-1")
    assert done.returncode == 0, done.stdout
    assert (tmp_path / "cluster-ran").exists()


def test_no_wait_is_held_back(pyinfra: Pyinfra, tmp_path: Path) -> None:
    """The cluster would be first; pyinfra itself would exit with 0."""
    done = pyinfra("good-1 good-2", "-y", "--no-wait")
    assert done.returncode == 1
    assert "the host phase is not finished on @sandbox/good-1, @sandbox/good-2" in done.stdout
    assert "run without --serial and --no-wait" in done.stdout
    assert not (tmp_path / "cluster-ran").exists()


def test_serial_works_only_with_the_cluster_host_last(pyinfra: Pyinfra, tmp_path: Path) -> None:
    """The order of --serial is pyinfra's secret; either way the cluster phase never runs over unfinished hosts."""
    done = pyinfra("good-1 good-2", "-y", "--serial")
    held_back = "the host phase is not finished on" in done.stdout
    assert (done.returncode == 1) == held_back
    assert (tmp_path / "cluster-ran").exists() != held_back


def test_limit_to_the_cluster_runs_its_phase_alone(pyinfra: Pyinfra, sandbox: Path, tmp_path: Path) -> None:
    done = pyinfra("good-1 away-1", "-y", "--limit", "cluster")
    assert done.returncode == 0, done.stdout
    assert (tmp_path / "cluster-ran").exists()
    assert not sandbox.exists()
