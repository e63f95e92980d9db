"""Every label and annotation key that components write or read, in one place."""

from __future__ import annotations

from collections.abc import Mapping

# Read: labels of Node Feature Discovery.
NFD_PREFIX = "feature.node.kubernetes.io/"
NFD_OS_ID = f"{NFD_PREFIX}system-os_release.ID"
NFD_OS_VERSION = f"{NFD_PREFIX}system-os_release.VERSION_ID"
NFD_KERNEL = f"{NFD_PREFIX}kernel-version.full"
NFD_OSTREE = f"{NFD_PREFIX}system-os_release.OSTREE_VERSION"  # the release of Red Hat Enterprise Linux CoreOS
NFD_OPENSHIFT = f"{NFD_PREFIX}system-os_release.OPENSHIFT_VERSION"
NFD_GPU = (
    # The first one is from the worker configuration in `nfd`; the others are from another NFD.
    f"{NFD_PREFIX}pci-10de.present",
    f"{NFD_PREFIX}pci-0302_10de.present",
    f"{NFD_PREFIX}pci-0300_10de.present",
)

# Written to nodes, as by the GPU Operator, so that existing selectors work.
GPU_PRESENT = "nvidia.com/gpu.present"
DEPLOY_PREFIX = "nvidia.com/gpu.deploy."
DEPLOY_OPERANDS = f"{DEPLOY_PREFIX}operands"  # the user's switch for a whole node; only read
DEPLOY_DRIVER = f"{DEPLOY_PREFIX}driver"
PAUSED = "paused-for-"  # beginning of an operand's value while the driver manager or the MIG manager is at work
PRE_INSTALLED = "pre-installed"  # value of DEPLOY_DRIVER: the host has a driver; also written by the driver manager

WORKLOAD = "nvidia.com/gpu.workload.config"  # read: what uses the node's GPUs, ``container`` or ``vm-...``

# Written where a pool chooses a configuration of the device plugin; read on all nodes.
PLUGIN_CONFIG = "nvidia.com/device-plugin.config"

# Read: labels of GPU Feature Discovery.
MPS_CAPABLE = "nvidia.com/mps.capable"  # ``true`` where its configuration declares MPS
GPU_PRODUCT = "nvidia.com/gpu.product"
GPU_COUNT = "nvidia.com/gpu.count"
MIG_CAPABLE = "nvidia.com/mig.capable"
DRIVER_VERSION = "nvidia.com/cuda.driver-version.full"

# Of the MIG manager: the configuration that a node requests, and what became of it.
MIG_CONFIG = "nvidia.com/mig.config"
MIG_STATE = "nvidia.com/mig.config.state"
MIG_SUCCESS, MIG_FAILED = "success", "failed"

# Of gpu-provision.
DRIVER_GROUP = "gpu-provision.io/driver"  # on nodes and driver pods: which driver DaemonSet serves the node
HOST_DRIVER = "gpu-provision.io/host-driver"  # on nodes that use a driver of the host: its version
PLUGIN_CHOICE = "gpu-provision.io/device-plugin-config"  # on nodes: PLUGIN_CONFIG as this tool has set it
CONTAINER_RUNTIME = "gpu-provision.io/container-runtime"  # on nodes: which toolkit DaemonSet serves a mixed fleet
INVENTORY = "gpu-provision.io/inventory"  # on nodes: the inventory that gave the node its labels
COMPONENT = "gpu-provision.io/component"  # on every applied object and its pods
STACK = "gpu-provision.io/stack"  # on pods: the inventory that they belong to
DIGEST = "gpu-provision.io/digest"  # on validation pods and pod templates: names the content
INSTALLATION = "gpu-provision.io/installation"  # on adopted driver pods: the installation that their driver equals
CONFIG = "gpu-provision.io/config"  # annotation of pod templates: digest of the configuration that pods read once
NOT_VALIDATED = "gpu-provision.io/not-validated"  # taint with which nodes register: off once they are validated
VALIDATED = "gpu-provision.io/validated"  # on nodes, with startup_taint: digest of the content that was validated
RECORD = "gpu-provision.io/record"  # on objects of the tool itself, such as run records: their kind
HELPER = "gpu-provision.io/helper"  # on helper pods: their purpose
CORDONED = "gpu-provision.io/cordoned"  # annotation of nodes that gpu-provision cordoned: reason and time

OPERATOR = "gpu-operator"  # value of `app` and component of the GPU Operator's own objects; its field manager
APP = "app"
COMPONENT_OF_APP = "app.kubernetes.io/component"
PART_OF = "app.kubernetes.io/part-of"
MANAGED_BY = "app.kubernetes.io/managed-by"
APPLYSET_PART_OF = "applyset.kubernetes.io/part-of"


def deploy_label(operand: str) -> str:
    """Return the node label that schedules an operand."""
    return DEPLOY_PREFIX + operand


def has_gpu_features(node_labels: Mapping[str, str]) -> bool:
    """Whether GPU Feature Discovery has labelled a node; each of its versions names the driver's CUDA."""
    return any(key.startswith("nvidia.com/cuda.") for key in node_labels)


def has_gpu(node_labels: Mapping[str, str]) -> bool:
    """Return whether the labels of Node Feature Discovery show an NVIDIA GPU."""
    return any(node_labels.get(key) == "true" for key in NFD_GPU)


def has_mellanox_card(node_labels: Mapping[str, str]) -> bool:
    """Return whether the labels of Node Feature Discovery show a network card for GPUDirect RDMA."""
    return any(key.startswith(f"{NFD_PREFIX}pci-") and "15b3" in key for key in node_labels)


def has_nfd_labels(node_labels: Mapping[str, str]) -> bool:
    """Return whether Node Feature Discovery has labelled the node; before that, a missing GPU label means nothing."""
    return any(key.startswith(NFD_PREFIX) for key in node_labels)
