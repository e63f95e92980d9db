"""What the specs of all operands share: an image, variables, resources and timeouts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpu_provision.model.settings import REQUIRED, setting

HOST_NETWORK: Mapping[str, Any] = {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}
"""Fields of a pod that uses the network of its node."""

DRIVER_CONTAINER_ROOT = "/run/nvidia/driver"
"""Root of the files of a driver that a container installs."""

ENABLED = "Whether the component is installed."
PULL_POLICIES = ["Always", "IfNotPresent", "Never"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """A container image in three parts, as the GPU Operator's values name them."""

    repository: str = setting("", kind="repository")
    image: str = setting("", kind="image")
    version: str = setting("", kind="version")

    @property
    def reference(self) -> str:
        """The name that a container runtime pulls: tags after a colon, digests after an at sign."""
        return self.reference_with_tag(self.version)

    def reference_with_tag(self, tag: str) -> str:
        """Return the reference with another tag or digest."""
        separator = "@" if tag.startswith("sha256:") else ":"
        return f"{self.repository}/{self.image}{separator}{tag}"


@dataclass(frozen=True, slots=True)
class SecretKey:
    """A key of a Secret in the namespace of the pods that use it; the tool never reads it."""

    name: str
    key: str


def timeout_setting(seconds: int) -> int:
    """Return the setting of a component's timeout, with this default in seconds."""
    text = "Seconds until the run reports this component as failed on a node."
    return setting(seconds, text, reference=None, minimum=1, maximum=86400)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerSpec:
    """Settings of a container with an image of its own; names as in the GPU Operator's values."""

    enabled: bool = setting(True, ENABLED)
    image: Image = setting(REQUIRED, image="version")
    image_pull_policy: str = setting("IfNotPresent", "When the kubelet pulls the image.", enum=PULL_POLICIES)
    image_pull_secrets: tuple[str, ...] = setting((), kind="image_pull_secrets")
    env: Mapping[str, str | SecretKey] = setting({}, kind="env")
    args: tuple[str, ...] = setting((), kind="args")


@dataclass(frozen=True, slots=True, kw_only=True)
class OperandSpec(ContainerSpec):
    """Settings of every component that runs containers."""

    resources: Mapping[str, Any] = setting({}, kind="resources")
    host_network: bool = setting(
        False, "Whether its pods use the network of their node, which has their ports then.", pod=HOST_NETWORK
    )
    timeout: int = timeout_setting(300)

    @property
    def settings(self) -> dict[str, str]:
        """The environment variables whose values are known here."""
        return {name: value for name, value in self.env.items() if isinstance(value, str)}
