"""The known releases, and what changes from one to another."""

from __future__ import annotations

import re

import pytest

from gpu_provision import ExitCode, releases
from tests.cli.harness import Run


def rows(text: str) -> dict[str, list[str]]:
    """Return the cells of a table's rows by the first one."""
    cells = [re.split(r" {2,}", line.strip()) for line in text.splitlines()]
    return {first: rest for first, *rest in cells}


def test_all_releases_are_listed_the_newest_first(run: Run) -> None:
    """With their components; the default is marked, and older releases are named."""
    done = run("releases")
    names = [line.split()[0] for line in done.out.splitlines()[1:-1]]
    assert names == [*reversed(releases.names())]
    assert rows(done.out)["26.7.0 (default)"][:3] == [">= 1.16", "595.91.07", "v1.20.0"]
    assert done.out.splitlines()[-1].startswith("1.1.0 to 23.6.2 are known")
    document = run("releases", "--json").document
    assert [each["name"] for each in document["releases"] if each["default"]] == ["26.7.0"]
    assert document["releases"][0]["images"]["gdrcopy"] == "nvcr.io/nvidia/cloud-native/gdrdrv:v2.6"
    assert "gdrcopy" not in document["releases"][-1]["images"]


def test_a_release_is_compared_with_the_one_before_it(run: Run) -> None:
    """A component that appears, and an image of another name, differ from a new version."""
    found = rows(run("releases", "24.3.0").out)
    assert found["COMPONENT"] == ["CHANGE", "23.9.2", "24.3.0"]
    assert found["driver"] == ["updated", "550.54.14", "550.54.15"]
    assert found["gds"] == ["2.17.5", "2.17.5"]
    assert found["gdrcopy"] == ["new", "-", "v2.4.1"]
    assert found["gfd"][1:] == [
        "nvcr.io/nvidia/gpu-feature-discovery:v0.8.2-ubi8",
        "nvcr.io/nvidia/k8s-device-plugin:v0.15.0-ubi8",
    ]


def test_two_releases_are_compared_in_either_direction(run: Run) -> None:
    """Back to a release without a component, the component goes."""
    back = run("releases", "24.3.0", "v23.9.0", "--json").document
    assert [each["name"] for each in back["releases"]] == ["24.3.0", "23.9.0"]
    changes = {each["component"]: (each["before"], each["after"]) for each in back["image_changes"]}
    assert changes["gdrcopy"] == ("nvcr.io/nvidia/cloud-native/gdrdrv:v2.4.1", "")
    assert rows(run("releases", "24.3.0", "23.9.0").out)["gdrcopy"] == ["gone", "v2.4.1", "-"]
    same = run("releases", "26.7.0", "26.7.0")
    assert same.out.endswith("All images are the same.\n")


def test_nothing_comes_before_the_oldest_release(run: Run) -> None:
    assert rows(run("releases", "23.9.0").out)["driver"] == ["nvcr.io/nvidia/driver:535.104.12"]
    assert run("releases", "23.9.0", "--json").document["image_changes"] == []


@pytest.mark.parametrize("names", [["26.7"], ["26.7.0", "1.1.0"]])
def test_unknown_and_old_releases_are_wrong_usage(run: Run, names: list[str]) -> None:
    done = run("releases", *names)
    assert done.code == ExitCode.USAGE
    assert "23.9.0 is the oldest supported one" in done.err
    assert "26.7.0" in done.err
