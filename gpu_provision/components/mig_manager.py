"""The MIG manager: divides the GPUs of a node into MIG devices, as the node's label ``nvidia.com/mig.config`` says.

It follows the label at once, so a run writes the label of a working node only in a rollout.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from gpu_provision.components import labels, operands, pods
from gpu_provision.components.objects import config_map, digest, is_at_least, rule
from gpu_provision.inventory.mig import ALL_DISABLED, ALL_ENABLED, Instances, declared_configurations, layouts
from gpu_provision.model.cluster import Manifest, RenderContext, Target
from gpu_provision.model.inventory import Inventory, NodePool
from gpu_provision.model.specs import MigManagerSpec

NAME = "mig_manager"
TITLE = "MIG manager"
REQUIRES: tuple[str, ...] = ("toolkit",)

_APP = "nvidia-mig-manager"
_ENTRYPOINT = "nvidia-mig-manager-entrypoint"
_CONFIG, _CLIENTS = "default-mig-parted-config", "default-gpu-clients"
_CONFIG_DIRECTORY = "/mig-parted-config"
_DIGITS = 8

# Services of DGX systems and of packages with DCGM, as in the GPU Operator.
_SERVICES = [
    *(f"nvsm{part}.service" for part in ("", "-mqtt", "-core", "-api-gateway", "-notifier")),
    *(f"{name}.service" for name in ("nv_peer_mem", "nvidia-dcgm", "dcgm", "dcgm-exporter")),
]

_RULES = [
    rule("", ["pods"], ["get", "list", "watch", "delete"]),
    rule("", ["configmaps"], ["create", "get", "list", "update", "patch"]),
]
_CLUSTER_RULES = [rule("", ["nodes"], ["get", "list", "watch", "update", "patch"]), rule("", ["pods"], ["list"])]


def spec(inventory: Inventory) -> MigManagerSpec | None:
    """Return the spec if the MIG manager is on, or if a pool declares a configuration for it."""
    own = inventory.specs.mig_manager
    return own if own.enabled or any(pool.mig for pool in inventory.pools.values()) else None


def manifests(spec: MigManagerSpec, context: RenderContext) -> list[Manifest]:
    """Return access rights, the ConfigMaps that the inventory does not name, and the DaemonSet."""
    own, namespace = {labels.APP: _APP}, context.namespace
    entrypoint = operands.entrypoint(context, "mig-manager")
    files = [(_ENTRYPOINT, entrypoint)]
    configurations = {"config.yaml": _to_text("mig-configs", _configurations(spec))}
    files += [(spec.config.name or _CONFIG, configurations)] if spec.config.data or not spec.config.name else []
    clients = {"clients.yaml": _to_text("systemd-services", _SERVICES)}
    files += [] if spec.gpu_clients_config.name else [(_CLIENTS, clients)]
    return [
        *operands.access(_APP, namespace, *_RULES, cluster_rules=_CLUSTER_RULES),
        *(config_map(name, namespace, data, own) for name, data in files),
        operands.daemon_set(
            context,
            _APP,
            switch="mig-manager",
            # The kubelet takes minutes to show a running pod another content of a ConfigMap.
            pod_annotations=operands.config_annotation(entrypoint, spec.config.data),
            pod=_pod(spec, context),
            gpu_containers=[_APP],
        ),
    ]


def wants_geometry(target: Target) -> bool:
    """Whether a node requests the MIG configuration of its pool.

    In a pool for any GPUs only those do that GPU Feature Discovery finds capable of MIG, once their driver runs.
    """
    pool = target.pool
    return pool.mig is not None and (not pool.takes_any_gpu or target.labels.get(labels.MIG_CAPABLE) == "true")


def requested_configuration(inventory: Inventory, pool: NodePool) -> str:
    """Return the value of the label by which nodes request the configuration of their pool; empty without one.

    The name of a configuration that the inventory declares ends in a digest of its content. So another content is
    another request, and a MIG manager that restarts with it leaves the devices of its node alone.
    """
    config = pool.mig.config if pool.mig else ""
    entries = declared_configurations(inventory.specs.mig_manager).get(config)
    return _versioned_name(config, entries) if entries else config


def requested_configurations(inventory: Inventory) -> dict[str, str]:
    """Return the same for every pool, by its name."""
    return {name: requested_configuration(inventory, pool) for name, pool in inventory.pools.items()}


def _versioned_name(name: str, entries: Sequence[Mapping[str, Any]]) -> str:
    return f"{name}-{digest(entries, _DIGITS)}"


def _to_text(key: str, entries: Mapping[str, object] | Sequence[str]) -> str:
    """Return YAML with a line for each entry; JSON is YAML."""
    pairs = entries.items() if isinstance(entries, Mapping) else ()
    lines = [f"  {json.dumps(name)}: {json.dumps(entry)}\n" for name, entry in pairs]
    lines += [] if pairs else [f"  - {entry}\n" for entry in entries]
    return f"version: v1\n{key}:\n{''.join(lines)}"


def _configurations(spec: MigManagerSpec) -> dict[str, Any]:
    """Return the configurations of every known GPU, and those of the inventory.

    Since 0.14, the MIG manager makes its own of the hardware, unless the driver is too old to list profiles. With a
    file of configurations, it has only these.
    """
    made: dict[str, Any] = {}
    for layout in layouts():
        for name, instances in layout.configurations.items():
            made.setdefault(name, []).append({"device-filter": list(layout.ids), **_entry(instances)})
    made |= {ALL_DISABLED: [_entry(None)], ALL_ENABLED: [_entry({})]}
    own = declared_configurations(spec)
    versioned = {_versioned_name(name, entries): entries for name, entries in own.items()}
    return made | dict(own) | versioned


def _entry(instances: Instances | None) -> dict[str, Any]:
    made = {} if instances is None else {"mig-devices": dict(instances)}
    return {"devices": "all", "mig-enabled": instances is not None, **made}


def _pod(spec: MigManagerSpec, context: RenderContext) -> dict[str, Any]:
    config = spec.config.name or _CONFIG
    is_given = bool(spec.config.name or spec.config.data)
    # Before 0.14, it has no configurations of its own.
    is_fallback = not is_given and is_at_least(spec.image.version, (0, 14))
    file = "config-default.yaml" if is_fallback else "config.yaml"
    return operands.gpu_pod(
        spec,
        context,
        _APP,
        hostPID=True,
        hostIPC=True,
        initContainers=[operands.wait_for_toolkit(context, operands.MOUNT_VALIDATIONS_TO_CONTAINER)],
        containers=[
            operands.container(
                spec,
                _APP,
                command=["/bin/entrypoint.sh"],
                env=_environment(context, {("DEFAULT_" if is_fallback else "") + "CONFIG_FILE": file}),
                security=pods.PRIVILEGED,
                mounts=[
                    pods.mount(_ENTRYPOINT, "/bin/entrypoint.sh", read_only=True, sub_path="entrypoint.sh"),
                    operands.MOUNT_VALIDATIONS,
                    pods.mount("host-sys", "/sys"),
                    pods.mount("host-root", "/host", pods.TO_CONTAINER),
                    pods.mount("gpu-clients", "/gpu-clients"),
                    pods.mount("mig-parted-config", _CONFIG_DIRECTORY),
                    pods.mount("driver-install-dir", "/driver-root", pods.TO_CONTAINER),
                    pods.mount("cdi-root", "/var/run/cdi"),
                ],
            )
        ],
        volumes=[
            pods.config_volume(_ENTRYPOINT, mode=0o700),
            pods.host_volume("host-sys", "/sys", "Directory"),
            operands.RUN_NVIDIA_VALIDATIONS,
            operands.DRIVER_INSTALL_DIR,
            operands.HOST_ROOT,
            pods.config_volume("gpu-clients", spec.gpu_clients_config.name or _CLIENTS),
            pods.config_volume("mig-parted-config", config, items=[("config.yaml", file)]),
            operands.CDI_ROOT,
        ],
    )


def _environment(context: RenderContext, config: dict[str, str]) -> pods.Environment:
    specs = context.inventory.specs
    cdi = {"CDI_ENABLED": "true", **operands.cdi_hook(specs.toolkit)}
    return {
        **pods.NODE_NAME,
        "POD_NAME": pods.Field("metadata.name"),
        "POD_NAMESPACE": pods.Field("metadata.namespace"),
        "GPU_CLIENTS_FILE": "/gpu-clients/clients.yaml",
        "DEFAULT_GPU_CLIENTS_NAMESPACE": pods.Field("metadata.namespace"),
        **{name: f"{_CONFIG_DIRECTORY}/{file}" for name, file in config.items()},
        **(cdi if specs.cdi_enabled else {}),
    }
