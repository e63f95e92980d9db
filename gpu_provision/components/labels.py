"""Every label and annotation key that components write or read, in one place."""

from __future__ import annotations

from collections.abc import Mapping

# Read: what Node Feature Discovery writes.
NFD_PREFIX = "feature.node.kubernetes.io/"
NFD_OS_ID = f"{NFD_PREFIX}system-os_release.ID"
NFD_OS_VERSION = f"{NFD_PREFIX}system-os_release.VERSION_ID"
NFD_GPU = (
    # The first comes of our own worker configuration; the class forms of another NFD.
    f"{NFD_PREFIX}pci-10de.present",
    f"{NFD_PREFIX}pci-0302_10de.present",
    f"{NFD_PREFIX}pci-0300_10de.present",
)

# Written to nodes, as the GPU Operator does, so that its users' selectors go on working.
GPU_PRESENT = "nvidia.com/gpu.present"
DEPLOY_PREFIX = "nvidia.com/gpu.deploy."
DEPLOY_OPERANDS = f"{DEPLOY_PREFIX}operands"  # the user's own switch for a whole node; never written by us
DEPLOY_DRIVER = f"{DEPLOY_PREFIX}driver"
PAUSED = "paused-for-"  # beginning of an operand's value while the driver manager or the MIG manager is at work
PRE_INSTALLED = "pre-installed"  # value of it: the host has its own; also written by the driver manager

# Read: what GPU Feature Discovery writes.
GPU_PRODUCT = "nvidia.com/gpu.product"
GPU_COUNT = "nvidia.com/gpu.count"
DRIVER_VERSION = "nvidia.com/cuda.driver-version.full"

# Ours.
DRIVER_GROUP = "gpu-provision.io/driver"  # on nodes and driver pods: which driver DaemonSet serves the node
HOST_DRIVER = "gpu-provision.io/host-driver"  # on nodes whose own driver was preferred: its version
CONTAINER_RUNTIME = "gpu-provision.io/container-runtime"  # on nodes: which toolkit DaemonSet serves a mixed fleet
INVENTORY = "gpu-provision.io/inventory"  # on nodes: the inventory that gave the node its labels
COMPONENT = "gpu-provision.io/component"  # on every applied object and its pods
STACK = "gpu-provision.io/stack"  # on pods: the inventory that they belong to
DIGEST = "gpu-provision.io/digest"  # on validation pods and pod templates: names the content
INSTALLATION = "gpu-provision.io/installation"  # on driver pods that we took over: what their driver is as good as
CONFIG = "gpu-provision.io/config"  # annotation of pod templates: names the configuration that pods read once
NOT_VALIDATED = "gpu-provision.io/not-validated"  # taint with which nodes register: off once they are validated
VALIDATED = "gpu-provision.io/validated"  # on nodes, with startup_taint: digest of the content that was validated
RECORD = "gpu-provision.io/record"  # on what the tool keeps for itself beside the stack's objects: what it is
HELPER = "gpu-provision.io/helper"  # on helper pods: what they are for
CORDONED = "gpu-provision.io/cordoned"  # annotation of nodes: we cordoned it, what for and since when

OPERATOR = "gpu-operator"  # value of `app` and component of the GPU Operator's own objects; its field manager
APP = "app"
COMPONENT_OF_APP = "app.kubernetes.io/component"
PART_OF = "app.kubernetes.io/part-of"
MANAGED_BY = "app.kubernetes.io/managed-by"
APPLYSET_PART_OF = "applyset.kubernetes.io/part-of"


def deploy(operand: str) -> str:
    """Return the node label that lets an operand onto a node."""
    return DEPLOY_PREFIX + operand


def has_gpu(node_labels: Mapping[str, str]) -> bool:
    """Return whether Node Feature Discovery says that the node has an NVIDIA GPU."""
    return any(node_labels.get(key) == "true" for key in NFD_GPU)


def has_nfd_labels(node_labels: Mapping[str, str]) -> bool:
    """Return whether Node Feature Discovery has labelled the node at all; until then its silence means nothing."""
    return any(key.startswith(NFD_PREFIX) for key in node_labels)
