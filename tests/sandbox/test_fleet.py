"""Fleet files: what they build, and every mistake told at once."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gpu_provision.sandbox.errors import FleetError
from gpu_provision.sandbox.fleet_file import load_fleet

BAD = sorted((Path(__file__).parent / "fleets" / "bad").glob("*.yaml"))
EXPECTED = re.compile(r"# (GP\d+)(?: line (\d+))?(?: (\S+))?: (.*?)(?: -> (.*))?$")


def test_the_default_fleet_is_what_the_documentation_says() -> None:
    """Two nodes with a T4, one with eight H100, one without a GPU, one control-plane node."""
    fleet = load_fleet()
    shown = {m.name: (m.os, m.gpu.name if m.gpu else "", m.gpus, m.roles) for m in fleet.machines}
    assert fleet.name == "default"
    assert shown == {
        "control-1": ("ubuntu22.04", "", 0, ("control-plane",)),
        "cpu-1": ("ubuntu22.04", "", 0, ()),
        "t4-1": ("ubuntu22.04", "Tesla T4", 1, ()),
        "t4-2": ("ubuntu22.04", "Tesla T4", 1, ()),
        "h100-1": ("ubuntu24.04", "NVIDIA H100 80GB HBM3", 8, ()),
    }


def test_one_entry_can_be_many_machines(tmp_path: Path) -> None:
    """``count`` with a pattern numbers machines that are otherwise equal; ``nodes-50`` is a fleet for benchmarks."""
    path = tmp_path / "mine.yaml"
    path.write_text("nodes: [{name: 'gpu-{:03}', count: 200, gpu: {model: T4}}]")
    fleet = load_fleet(path)
    assert [m.name for m in fleet.machines][::199] == ["gpu-001", "gpu-200"]
    assert {(m.gpus, m.kernel) for m in fleet.machines} == {(1, "5.15.0-122-generic")}
    bench = load_fleet("nodes-50")
    assert (bench.name, len(bench.machines), bench.machines[50].name) == ("nodes-50", 51, "gpu-050")


def test_machines_of_an_openshift_fleet_run_its_release(tmp_path: Path) -> None:
    """A machine with a system of its own is no RHCOS; what a fleet says of a machine itself stays."""
    path = tmp_path / "mine.yaml"
    nodes = "[{name: a, roles: [control-plane]}, {name: b, kernel: 5.14.1}, {name: c, os: rhel9.4}]"
    path.write_text(f"openshift: {{version: 4.19.15, proxy: {{http: 'http://p:1'}}}}\nnodes: {nodes}")
    fleet = load_fleet(path)
    shown = [(m.os, m.kernel.partition("-")[0], m.roles, m.release is not None) for m in fleet.machines]
    assert shown == [
        ("rhel9.6", "5.14.0", ("control-plane", "master"), True),
        ("rhel9.6", "5.14.1", ("worker",), True),
        ("rhel9.4", "5.14.0", (), False),
    ]
    assert fleet.machines[0].runtime.startswith("cri-o://1.32")
    assert fleet.openshift is not None
    assert (fleet.openshift.release.version, fleet.openshift.proxy) == ("4.19.15", {"http": "http://p:1"})
    assert load_fleet().openshift is None


def test_a_file_that_is_not_there_is_one_finding() -> None:
    """The problem names the built-in fleets."""
    with pytest.raises(FleetError) as refused:
        load_fleet("nowhere.yaml")
    assert [(f.code, f.where) for f in refused.value.problems] == [("GP701", "nowhere.yaml")]
    assert "default" in refused.value.problems[0].fix


@pytest.mark.parametrize("path", BAD, ids=lambda path: path.stem)
def test_mistakes_are_reported_at_once_with_line_and_remedy(path: Path) -> None:
    """Each bad fleet lists its findings in its first lines."""
    expected = [match.groups() for line in path.read_text().splitlines() if (match := EXPECTED.match(line))]
    with pytest.raises(FleetError) as refused:
        load_fleet(path)
    found = list(refused.value.problems)
    assert len(found) == len(expected)
    for (code, line, where, what, fix), finding in zip(expected, found, strict=True):
        assert (finding.code, finding.what[: len(what)]) == (code, what)
        assert line is None or f":{line}" in finding.where
        assert where is None or finding.where.endswith(where)
        assert fix is None or finding.fix == fix
