"""The catalogue of releases."""

from __future__ import annotations

import re
from dataclasses import is_dataclass
from typing import get_type_hints

import pytest

from gpu_provision import components, releases
from gpu_provision.model.specs import Specs
from gpu_provision.releases import COMPONENTS


def test_releases_from_23_9_on_can_be_installed() -> None:
    """Oldest first, as lists for people rely on it; the newest is the default."""
    numbers = [tuple(map(int, name.split("."))) for name in (*releases.older_names(), *releases.names())]
    assert numbers == sorted({*numbers})
    assert releases.names()[0] == "23.9.0"
    assert releases.names()[-1] == releases.DEFAULT == "26.7.0"
    assert len(releases.names()) == 22


@pytest.mark.parametrize("name", releases.names())
def test_a_release_is_complete(name: str) -> None:
    """Every image has a registry, a name and a version."""
    release = releases.release(name)
    assert release.name == name
    for key in (*COMPONENTS, "driver_manager"):
        if key == "gdrcopy" and name.startswith("23.9."):
            assert not release.image(key).version, "the chart has it since 24.3.0"
            continue
        assert re.fullmatch(r"(nvcr\.io|registry\.k8s\.io)/[a-z0-9/-]+:[A-Za-z0-9._-]+", release.image(key).reference)


def test_the_newest_release_word_for_word() -> None:
    """The images that the reference's 26.7.0 runs."""
    release = releases.release("26.7.0")
    assert {key: image.reference for key, image in release.images.items()} == {
        "nfd": "registry.k8s.io/nfd/node-feature-discovery:v0.19.0",
        "driver": "nvcr.io/nvidia/driver:595.91.07",
        "driver_manager": "nvcr.io/nvidia/cloud-native/k8s-driver-manager:v0.12.0",
        "gds": "nvcr.io/nvidia/cloud-native/nvidia-fs:2.29.4",
        "gdrcopy": "nvcr.io/nvidia/cloud-native/gdrdrv:v2.6",
        "toolkit": "nvcr.io/nvidia/k8s/container-toolkit:v1.20.0",
        "validator": "nvcr.io/nvidia/gpu-operator:v26.7.0",
        "device_plugin": "nvcr.io/nvidia/k8s-device-plugin:v0.20.0",
        "gfd": "nvcr.io/nvidia/k8s-device-plugin:v0.20.0",
        "mig_manager": "nvcr.io/nvidia/cloud-native/k8s-mig-manager:v0.15.0",
        "dcgm": "nvcr.io/nvidia/cloud-native/dcgm:4.6.0-1-ubuntu24.04",
        "dcgm_exporter": "nvcr.io/nvidia/k8s/dcgm-exporter:4.6.0-4.8.3-distroless",
        "node_status_exporter": "nvcr.io/nvidia/gpu-operator:v26.7.0",
    }


def test_every_component_with_an_image_is_in_the_catalogue() -> None:
    """A component that is added without versions would have no image in any release."""
    sections = get_type_hints(Specs).items()
    with_image = {name for name, spec in sections if is_dataclass(spec) and "image" in get_type_hints(spec)}
    assert with_image == {*COMPONENTS}
    assert {component.name for component in components.COMPONENTS} & with_image == with_image - {"gds", "gdrcopy"}


def test_releases_are_compared_component_by_component() -> None:
    """The release before the oldest one does not exist."""
    before = releases.previous("24.3.0")
    assert before
    changed = {each.component for each in releases.compare(before, releases.release("24.3.0")) if each.is_change}
    assert changed == {*COMPONENTS, "driver_manager"} - {"gds"}
    assert releases.previous("23.9.0") is None


def test_a_leading_v_is_accepted() -> None:
    """As in image tags and Git tags."""
    assert releases.release("v25.3.4") is releases.release("25.3.4")


@pytest.mark.parametrize("name", [*releases.older_names(), "26.7.1", "27.1.0", "latest", "", "26.7"])
def test_other_releases_are_refused(name: str) -> None:
    """One that is too old by its name, with the oldest that can be had; one that was never published is not guessed."""
    too_old = name in releases.older_names()
    output = rf"{re.escape(name)} is too old.*23\.9\.0 is the oldest" if too_old else "there is no release"
    with pytest.raises(releases.UnknownReleaseError, match=output) as raised:
        releases.release(name)
    assert raised.value.too_old == too_old


def test_versions_of_components_ascend_by_number() -> None:
    """550.127 comes after 550.90; those of older releases are known, too."""
    plugins, drivers = releases.versions("device_plugin"), releases.driver_versions()
    assert (plugins[0], plugins[-1], len({*plugins})) == ("v0.14.2-ubi8", "v0.20.0", len(plugins))
    assert drivers.index("550.90.07") < drivers.index("550.127.05")
    assert (drivers[0], drivers[-1]) == ("440.64.00", "595.91.07")
