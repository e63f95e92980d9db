"""The sections of an inventory file, and the records that declare their settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, get_args, get_type_hints

from gpu_provision.model import driver_specs, monitoring_specs, operand_specs, specs
from gpu_provision.model.extra_objects import EXTRA_KINDS
from gpu_provision.model.hosts import ConnectionMethod, HelperPod, HostPrerequisites, Preflight, SshOptions
from gpu_provision.model.inventory import ClusterConfig, HistorySection, Node, NodePool
from gpu_provision.model.openshift_specs import OpenShiftSection
from gpu_provision.model.rollout_policy import RolloutPolicy
from gpu_provision.model.settings import REQUIRED, setting
from gpu_provision.releases import DEFAULT


@dataclass(frozen=True, kw_only=True)
class PoolSection(NodePool):
    """Nodes of one kind. A pool without `gpu` gets no GPU component."""

    connect: ConnectionMethod = setting(
        ConnectionMethod.SSH, "How hosts of this pool are reached; overrides the inventory's `connect`.", shown=False
    )


@dataclass(frozen=True, kw_only=True)
class InventoryFile:
    """Nodes, their GPUs and their software."""

    name: str = setting(
        REQUIRED,
        "Name of this stack in the cluster; all its objects are members of it. Do not change it later: objects of the "
        "old name would stay in the cluster.",
        "name",
        examples=["prod"],
    )
    cluster: ClusterConfig = setting(REQUIRED)
    release: str = setting(
        DEFAULT,
        "Set of component versions. The version of a single component can be set in its section.",
        minLength=1,
        maxLength=40,
        examples=["26.7.0", "25.10.1"],
    )
    registry: str = setting(
        "",
        "Mirror that replaces the registry host of every image of the release: `nvcr.io/nvidia/driver` becomes "
        "`<registry>/nvidia/driver`. A component's own `repository` is not changed.",
        "repository",
        examples=["registry.example.com/mirror"],
    )
    image_pull_secrets: tuple[str, ...] = setting((), kind="image_pull_secrets")
    proxy: Mapping[str, str] = setting(
        {},
        "Proxies through which container runtimes of hosts pull images. The driver container gets them, too, unless "
        "they need credentials. A component's `env` and `host_prerequisites.proxy` override them.",
        "proxy",
        shown=False,
    )
    host_prerequisites: HostPrerequisites | None = setting(None)
    preflight: Preflight | None = setting(None)
    connect: ConnectionMethod = setting(
        ConnectionMethod.SSH,
        "How hosts are reached: over SSH, or through the Kubernetes API with a helper pod on the node.",
    )
    helper_pod: HelperPod | None = setting(
        None, "The pod through which hosts with `connect: kubernetes` are reached. It exists while a command runs."
    )
    ssh: SshOptions | None = setting(
        None,
        "SSH settings. Your own SSH configuration applies to what is not set here. Settings of a node override those "
        "of the inventory.",
    )
    nfd: specs.NfdSpec | None = setting(None)
    driver: driver_specs.DriverSpec | None = setting(None)
    gds: driver_specs.GdsSpec | None = setting(None)
    gdrcopy: driver_specs.GdrcopySpec | None = setting(None)
    rollout: RolloutPolicy | None = setting(None)
    history: HistorySection | None = setting(None)
    toolkit: specs.ToolkitSpec | None = setting(None)
    validator: specs.ValidatorSpec | None = setting(
        None,
        "The operator validator, and the image of the vectorAdd pods. Cannot be off: a run validates every node "
        "before it succeeds. `timeout` is also that of the validations.",
    )
    device_plugin: specs.DevicePluginSpec | None = setting(None)
    gfd: specs.GfdSpec | None = setting(None)
    mig_manager: specs.MigManagerSpec | None = setting(None)
    dcgm: monitoring_specs.DcgmSpec | None = setting(None)
    dcgm_exporter: monitoring_specs.DcgmExporterSpec | None = setting(None)
    node_status_exporter: monitoring_specs.NodeStatusExporterSpec | None = setting(None)
    daemonsets: specs.DaemonSetSettings | None = setting(None)
    host_paths: specs.HostPaths | None = setting(None)
    startup_taint: specs.StartupTaintSpec | None = setting(None)
    cdi: specs.CdiSection | None = setting(None)
    mig: specs.MigSection | None = setting(None)
    operator: specs.OperatorSection | None = setting(None)
    openshift: OpenShiftSection | None = setting(None)
    pools: Mapping[str, PoolSection] = setting({}, "Pools of nodes of one kind, by name.")
    extra_objects: tuple[Mapping[str, Any], ...] = setting(
        (),
        "Further objects of the stack, as manifests: applied last, and deleted once they are no longer here. "
        f"Kinds: {', '.join(sorted(each.kind for each in EXTRA_KINDS))}. Not for secrets: plans and records show them.",
        "extra_objects",
    )
    nodes: tuple[Node, ...] = setting((), "The machines. Nodes that a pool's node_selector selects need no entry.")


@cache
def section_type(name: str) -> type[Any]:
    """Return the record that declares the settings of a section of the inventory."""
    kind: type[Any] = get_args(get_type_hints(InventoryFile)[name])[0]
    return kind


SPECS: dict[str, type[operand_specs.ContainerSpec]] = {
    key: kind
    for key, kind in get_type_hints(specs.Specs).items()
    if isinstance(kind, type) and issubclass(kind, operand_specs.ContainerSpec)
}
"""Inventory key -> type of its spec."""

VALIDATIONS = tuple(
    name for name, kind in get_type_hints(specs.ValidatorSpec).items() if kind is specs.ValidationSettings
)
"""Keys of the validator's sections, one for each validation."""
