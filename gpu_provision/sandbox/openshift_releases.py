"""Releases of OpenShift that the sandbox knows: what each brings to a node, and the images of its payload.

Builds of RHCOS, kernels, kubelets and CRI-O are such as nodes of these minor versions report. Which build belongs to
which patch release, and the digests of the images, are the sandbox's own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

_PAYLOAD = "quay.io/openshift-release-dev/ocp-v4.0-art-dev"
_OS_COMPONENT, _TOOLKIT_COMPONENT = "rhel-coreos", "driver-toolkit"
_FIRST_RHEL_NAMED = (4, 19)
"""From this version on, RHCOS calls itself rhel in /etc/os-release; before, rhcos with OpenShift's version."""


@dataclass(frozen=True, slots=True)
class OpenShiftRelease:
    """One release of OpenShift.

    Attributes:
        version: As ClusterVersion shows it: ``4.18.13``.
        rhcos: Build of RHCOS: ``OSTREE_VERSION`` in /etc/os-release and tag of the image stream ``driver-toolkit``.
        rhel: Version of RHEL that RHCOS consists of.
        kernel: As ``uname -r`` prints it on x86_64.
        kubelet: As a node reports it; ``runtime`` too.
    """

    version: str
    rhcos: str
    rhel: str
    kernel: str
    kubelet: str
    runtime: str

    @property
    def minor(self) -> str:
        """Return the version without its patch: ``4.18``."""
        return self.version.rpartition(".")[0]

    @property
    def _is_named_rhel(self) -> bool:
        return tuple(map(int, self.minor.split("."))) >= _FIRST_RHEL_NAMED

    @property
    def os(self) -> str:
        """Return identifier and version of the operating system in one word, as fleets write them."""
        return f"rhel{self.rhel}" if self._is_named_rhel else f"rhcos{self.minor}"

    @property
    def os_image(self) -> str:
        """Return the name that a node reports."""
        return f"Red Hat Enterprise Linux CoreOS {self.rhcos}{' (Plow)' if self._is_named_rhel else ''}"

    def os_release(self) -> dict[str, str]:
        """Return the fields of /etc/os-release besides ID and VERSION_ID."""
        return {
            "VARIANT_ID": "coreos",
            "RHEL_VERSION": self.rhel,
            "OPENSHIFT_VERSION": self.minor,
            "OSTREE_VERSION": self.rhcos,
        }

    def kernel_on(self, architecture: str) -> str:
        """Return the kernel of an architecture, ``amd64`` or ``arm64``."""
        return self.kernel.replace("x86_64", "aarch64") if architecture == "arm64" else self.kernel

    @property
    def release_image(self) -> str:
        """Return the release image, as ClusterVersion shows it."""
        return f"quay.io/openshift-release-dev/ocp-release@{self._digest('release')}"

    @property
    def os_image_url(self) -> str:
        """Return the image of RHCOS, as rendered MachineConfigs name it."""
        return f"{_PAYLOAD}@{self._digest(_OS_COMPONENT)}"

    @property
    def toolkit_image(self) -> str:
        """Return the Driver Toolkit image, which has the headers of this release's kernel."""
        return f"{_PAYLOAD}@{self._digest(_TOOLKIT_COMPONENT)}"

    def _digest(self, component: str) -> str:
        return "sha256:" + hashlib.sha256(f"{component} {self.version}".encode()).hexdigest()


RELEASES: Mapping[str, OpenShiftRelease] = {
    release.version: release
    for release in (
        OpenShiftRelease(
            version="4.18.13",
            rhcos="418.94.202505062142-0",
            rhel="9.4",
            kernel="5.14.0-427.68.1.el9_4.x86_64",
            kubelet="v1.31.8",
            runtime="cri-o://1.31.8-3.rhaos4.18.gitf0f6e96.el9",
        ),
        OpenShiftRelease(
            version="4.18.24",
            rhcos="418.94.202509100653-0",
            rhel="9.4",
            kernel="5.14.0-427.87.1.el9_4.x86_64",
            kubelet="v1.31.12",
            runtime="cri-o://1.31.12-2.rhaos4.18.git4a7c2f5.el9",
        ),
        OpenShiftRelease(
            version="4.19.15",
            rhcos="9.6.20250925-0",
            rhel="9.6",
            kernel="5.14.0-570.49.1.el9_6.x86_64",
            kubelet="v1.32.8",
            runtime="cri-o://1.32.8-3.rhaos4.19.git9d8a2b1.el9",
        ),
    )
}


def later_releases(version: str) -> list[OpenShiftRelease]:
    """Return the known releases after a version, the next one first."""
    return [each for each in RELEASES.values() if _key(each.version) > _key(version)]


def _key(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def release_of_os(image: str) -> OpenShiftRelease | None:
    """Return the release whose RHCOS an image is."""
    return next((each for each in RELEASES.values() if each.os_image_url == image), None)


def release_of_toolkit(image: str) -> OpenShiftRelease | None:
    """Return the release whose Driver Toolkit an image is."""
    return next((each for each in RELEASES.values() if each.toolkit_image == image), None)
