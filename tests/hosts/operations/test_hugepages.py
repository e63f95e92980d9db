"""Huge pages: decided from the record, done on simulated hosts, the shell on scratch directories."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from gpu_provision.hosts.facts.system import kilobytes, size_of
from gpu_provision.hosts.operations.settings import reserve_now
from gpu_provision.hosts.runner import prepare, teardown
from gpu_provision.hosts.scripts import HUGEPAGES_FILE, STATE, UNAWARE_KUBELETS
from gpu_provision.model.inventory import Inventory
from gpu_provision.sandbox import hosts
from gpu_provision.sandbox.hosts import SimulatedHost
from tests.hosts.operations.test_settings import SHELLS, fresh, only, with_settings
from tests.hosts.operations.test_teardown import files
from tests.hosts.test_runner import FIRST, inventory

__all__ = ["fresh"]

WANTED = {"2Mi": 512, "1Gi": 4}
SMALL, LARGE = "sys/kernel/mm/hugepages/hugepages-2048kB", "sys/kernel/mm/hugepages/hugepages-1048576kB"


def test_pages_are_reserved_once_kept_and_released(fresh: tuple[Inventory, Path]) -> None:
    """First run, second run, fewer behind our back, a reboot, nothing declared any more, teardown."""
    plain, root = fresh
    before = files(root)
    declared = with_settings(plain, hugepages=WANTED)
    restarted = "kubelet restarted, to count huge pages"
    assert only(declared).changes == (
        *FIRST,
        "huge pages reserved: 4 x 1Gi (0 before), 512 x 2Mi (0 before)",
        "huge pages kept for the boot",
        restarted,
    )
    assert [(root / pool / "nr_hugepages").read_text() for pool in (SMALL, LARGE)] == ["512\n", "4\n"]
    assert only(declared).changes == ()
    (root / SMALL / "nr_hugepages").write_text("7\n")
    assert only(declared).changes == ("huge pages reserved: 512 x 2Mi (7 before)", restarted)
    hosts.reboot(SimulatedHost("good-1", root))
    assert (root / SMALL / "nr_hugepages").read_text() == "512\n"
    assert only(declared).changes == ()
    assert only(plain).changes == ("huge pages no longer kept for the boot",)
    assert only(plain).changes == ()
    teardown(plain)
    pools = {f"{pool}/nr_hugepages" for pool in (SMALL, LARGE)}
    left = {path: content for path, content in files(root).items() if path not in pools}
    assert left.keys() - before.keys() == set()
    assert not (root / HUGEPAGES_FILE.lstrip("/")).exists()


def test_dry_run_shows_and_reserves_nothing(fresh: tuple[Inventory, Path]) -> None:
    """The words of the plan are those of the run."""
    declared, root = fresh
    (host,) = prepare(with_settings(declared, hugepages={"2Mi": 8}), dry_run=True).hosts
    assert host.changes[len(FIRST) :][0] == "huge pages reserved: 8 x 2Mi (0 before)"
    assert (root / SMALL / "nr_hugepages").read_text() == "0\n"


def test_next_run_restarts_the_kubelet_after_an_interruption(fresh: tuple[Inventory, Path]) -> None:
    """The pages are there and the kubelet does not know: the next run restarts it."""
    declared, root = fresh
    wanted = with_settings(declared, hugepages={"2Mi": 8})
    only(wanted)
    start = (root / "proc/977/stat").read_text().split()[-1]
    (root / "run/gpu-provision").mkdir(exist_ok=True)
    (root / UNAWARE_KUBELETS.lstrip("/")).write_text(f"977 {start} kubelet\n")
    assert only(wanted).changes == ("kubelet restarted, to count huge pages",)
    assert only(wanted).changes == ()


def test_kubelet_of_a_distribution_is_not_restarted_but_told_of(tmp_path: Path, sandbox: Path) -> None:
    """It is more than a kubelet; the warning is gone once it was restarted."""
    declared = with_settings(inventory(tmp_path, "good-1"), hugepages={"2Mi": 8})
    fleet = tmp_path / "mine.yaml"
    fleet.write_text(fleet.read_text().replace("nodes:", "nodes:\n- {name: unused}").replace(
        "{name: good-1,", "{name: good-1, kubelet: v1.31.4+k3s1, "))  # fmt: skip
    result = prepare(declared)
    assert [(finding.code, finding.evidence, finding.fix) for finding in result.findings] == [
        ("GP669", "k3s-agent[977]", "systemctl restart k3s or k3s-agent")
    ]
    assert [finding.code for finding in prepare(declared).findings] == ["GP669"]
    stat = sandbox / "mine/hosts/good-1/proc/977/stat"
    stat.write_text(stat.read_text().replace(" 2500", " 9900"))
    assert not prepare(declared).findings


def test_host_that_cannot_have_them_fails_and_is_left_alone(fresh: tuple[Inventory, Path]) -> None:
    """A size that its processor lacks; more than its memory."""
    declared, root = fresh
    for wanted, words in (({"64Ki": 1}, "no huge pages of 64Ki"), ({"1Gi": 1000}, "too little memory")):
        outcome = only(with_settings(declared, hugepages=wanted))
        assert [finding.code for finding in outcome.errors] == ["GP666"]
        assert words in outcome.reason
    assert not (root / HUGEPAGES_FILE.lstrip("/")).exists()


@pytest.mark.parametrize(("size", "kib"), [("2Mi", 2048), ("1Gi", 1048576), ("64Ki", 64), ("512Mi", 524288)])
def test_sizes_are_those_of_kubernetes(size: str, kib: int) -> None:
    """As the names of its resources have them."""
    assert (kilobytes(size), size_of(kib)) == (kib, size)


@pytest.mark.parametrize("shell", SHELLS, ids=lambda words: words[0])
def test_shell_remembers_how_many_there_was_room_for(tmp_path: Path, shell: list[str]) -> None:
    """Each size once; a kernel that refuses altogether is no failure of the command."""
    pool = tmp_path / "pools/hugepages-2048kB"
    pool.mkdir(parents=True)
    (pool / "nr_hugepages").write_text("3\n")
    script = reserve_now({"2Mi": 512}).replace("/sys/kernel/mm/hugepages", str(tmp_path / "pools"))
    script = script.replace(STATE, str(tmp_path / "state")).replace('echo "$2" 2>/dev/null >"$3"', "false")
    for _ in range(2):
        done = subprocess.run([*shell, "-c", script], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "state/hugepages").read_text() == "2Mi 512 3\n"
