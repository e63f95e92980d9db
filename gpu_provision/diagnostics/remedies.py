"""What a symptom means and what to do about it: a table of what users of GPU nodes report again and again."""

from __future__ import annotations

import re
from typing import NamedTuple

_TROUBLE = re.compile(
    r"BackOff|Err[A-Z]|Unschedulable|Failed|Killed|exit \d|tolerate|NotReady|no node of this name|declares"
)


class Remedy(NamedTuple):
    """The code of the finding, the cause in words, and what to do."""

    code: str
    cause: str
    fix: str


def is_trouble(reason: str) -> bool:
    """Whether a reason for not being ready yet is more than waiting: worth reporting at once."""
    return bool(_TROUBLE.search(reason))


def find_remedy(*symptoms: str) -> Remedy:
    """Return what the first symptom that the table knows means; an unknown one has no cause."""
    for symptom in symptoms:
        for pattern, found in _TABLE:
            if re.search(pattern, symptom):
                return found
    return _UNKNOWN


_UNKNOWN = Remedy("GP500", "", "look at the pod: kubectl describe pod and kubectl logs name the rest")


def _row(code: str, pattern: str, cause: str, fix: str) -> tuple[str, Remedy]:
    return pattern, Remedy(code, cause, fix)


_TABLE: tuple[tuple[str, Remedy], ...] = (
    _row(
        "GP501",
        r"not gone after \d+ s",
        "pods did not leave the node in time",
        "let them go, such as by a disruption budget that allows it (kubectl get pdb -A), or give them more "
        "time in driver.upgrade_policy, and run again",
    ),
    _row(
        "GP502",
        r"ErrImagePull|ImagePullBackOff|InvalidImageName",
        "the image cannot be pulled",
        "check that the registry has exactly this tag, and that the node may reach it: repository, version, "
        "image_pull_secrets and registry in the inventory",
    ),
    _row(
        "GP501",
        r"[Kk]ernel headers|linux-headers|kernel-devel|failed to build for kernel|resolve Linux kernel version",
        "the driver cannot be built for the kernel that the node runs",
        "boot a kernel whose headers the distribution still serves, or choose a driver.version that has an "
        "image for it; see uname -r on the node",
    ),
    _row(
        "GP501",
        r"[Nn]ouveau",
        "the nouveau driver holds the GPU",
        "run the host phase (host_prerequisites.blacklist_nouveau: true) and reboot the node",
    ),
    _row(
        "GP501",
        r"[Kk]ey was rejected|Required key not available|[Ss]ecure [Bb]oot",
        "Secure Boot refuses the unsigned kernel module",
        "enroll a machine owner key, use a signed precompiled driver, or turn Secure Boot off",
    ),
    _row(
        "GP501",
        r"Unable to load the kernel module|could not insert 'nvidia",
        "the driver's kernel module cannot be loaded",
        "dmesg on the node says why: a GPU that this driver version does not know, modules of the wrong type "
        "(driver.kernel_module_type), a module without a trusted signature, or one of another driver",
    ),
    _row(
        "GP501",
        r"in use|cannot be unloaded|[Cc]ould not unload",
        "something on the node still uses the old driver",
        "stop the pods and services that hold /dev/nvidia* on this node, then run again",
    ),
    _row(
        "GP500",
        r"no runtime for|RuntimeHandler .* not supported|runtime handler",
        "the container runtime does not know the nvidia handler",
        "see the log of the container toolkit on this node",
    ),
    _row(
        "GP500",
        r"unresolvable CDI devices",
        "the node's CDI files do not have the GPU that the container is to get",
        "see /var/run/cdi on the node, and the log of the container toolkit there, which writes it; "
        "cdi.enabled: false does without",
    ),
    _row(
        "GP500",
        r"hostPath type check failed",
        "a path of the node is missing, or is not what the pod mounts",
        "look at that path on the node (ls -ld); mend there what made it, or should have made it",
    ),
    _row(
        "GP500",
        r"not a shared( or slave)? mount",
        "the node does not share its mounts with containers",
        "mount --make-rshared / on the node, and see that no MountFlags keep kubelet and the container runtime "
        "in mounts of their own",
    ),
    _row(
        "GP500",
        r"MountVolume\.SetUp failed",
        "a volume of the pod cannot be mounted",
        "make what the evidence names exist, or correct its name in the inventory",
    ),
    _row(
        "GP500",
        r"FailedCreatePodSandBox",
        "the node's container runtime cannot set up the pod",
        "mend on the node what the evidence names: the network plugin and /etc/cni/net.d, the pause image, the "
        "runtime's own files; journalctl -u kubelet -u containerd says more",
    ),
    _row(
        "GP500",
        r"runAsNonRoot|breaks non-root policy",
        "the pod demands an ordinary user and the image runs as root",
        "use the component's own image, or one that is built for an ordinary user",
    ),
    _row(
        "GP501",
        r"failed to validate the driver, retrying",
        "other pods cannot use the driver that runs",
        "on the node, chroot /run/nvidia/driver nvidia-smi must work. If that folder is empty, what the driver "
        "container mounts does not reach the node: findmnt -o TARGET,PROPAGATION / and /run must say shared, "
        "also in the mount namespace of the container runtime",
    ),
    _row(
        "GP500",
        r"[Pp]robe failed",
        "the container runs, but its probe fails",
        "the evidence is what the probe got; the pod's log tells what the container does instead",
    ),
    _row(
        "GP500",
        r"previous pod is still terminating|FailedKillPod|FailedPreStopHook",
        "the previous pod does not end",
        "kubectl describe pod says since when it is to go, and what keeps it: a finalizer, a program that "
        "outlives its grace period, or a container runtime that cannot end it (journalctl -u kubelet -u "
        "containerd). The next one starts when it is gone; run again then",
    ),
    _row(
        "GP505",
        r"NFD sees no NVIDIA device",
        "the inventory declares a GPU where the PCI bus shows none",
        "look with lspci -d 10de: on the node; reseat the card, or move the node to a pool without gpu",
    ),
    _row(
        "GP506",
        r"no node of this name",
        "the inventory declares a node that has not joined the cluster",
        "join it, or correct its name in the inventory (kubectl get nodes)",
    ),
    _row(
        "GP504",
        r"the inventory declares .*(offers|counts)",
        "declared and offered GPUs differ",
        "look with nvidia-smi -L in the driver pod of this node; a card may have fallen off the bus (dmesg | grep Xid)",
    ),
    _row(
        "GP516",
        r"system not yet initialized|\b802\b.*(CUDA|cuda)|(CUDA|cuda).*\b802\b|cudaErrorSystemNotReady",
        "CUDA waits for the NVSwitch fabric of the node: the fabric manager is not running, or not of the "
        "driver's version",
        "a driver of the host: systemctl status nvidia-fabricmanager, whose version has to equal the driver's "
        "(nv-fabricmanager --version, /proc/driver/nvidia/version); then systemctl enable --now "
        "nvidia-fabricmanager. A driver container starts its own: see its log, and on the node nvidia-smi -q | "
        "grep -A2 Fabric",
    ),
    _row(
        "GP503",
        r"no CUDA-capable device|the validation failed|Failed to allocate device vector|CUDA error",
        "vectorAdd could not use the GPU",
        "compare the driver's version with the GPU model, and look at the driver pod's log and dmesg on this node",
    ),
    _row(
        "GP512",
        r"taint \{gpu-provision\.io/not-validated",
        "the node has the startup taint, as it is not validated yet",
        "wait for its validation: gpu-provision status says what that waits for. A pod that has to run before, "
        "such as the cluster's own, needs a toleration of gpu-provision.io/not-validated",
    ),
    _row(
        "GP515",
        r"untolerated taint|had taint \{|do not tolerate",
        "the node has a taint that keeps the stack's pods off",
        "tolerate it: daemonsets.tolerations: [{key: KEY, operator: Exists}] in the inventory; or take it off: "
        "kubectl taint node NODE KEY-",
    ),
    _row(
        "GP503",
        r"Insufficient nvidia\.com/gpu",
        "all GPUs of the node are taken by other pods",
        "free one GPU, or validate later: gpu-provision validate --gpus",
    ),
)
"""Pattern of a symptom -> what it means; the first that fits counts."""
