"""GPU Feature Discovery: labels nodes with what their GPUs are, through Node Feature Discovery."""

from __future__ import annotations

from typing import Any

from gpu_provision.components import labels, operands, pods
from gpu_provision.components.config_manager import ConfigManager
from gpu_provision.components.nfd import GROUP
from gpu_provision.components.objects import rule
from gpu_provision.components.sharing import configurations
from gpu_provision.model.cluster import Manifest, RenderContext
from gpu_provision.model.specs import GfdSpec

NAME = "gfd"
TITLE = "GPU Feature Discovery"
REQUIRES: tuple[str, ...] = ("validator",)

_ACCOUNT = "nvidia-gpu-feature-discovery"
_APP = _CONTAINER = "gpu-feature-discovery"
_FEATURES = "/etc/kubernetes/node-feature-discovery/features.d"

_RULES = [
    # It publishes what it finds as NodeFeature nvidia-features-for-<node>, in the operands' namespace.
    rule(GROUP, ["nodefeatures"], ["get", "list", "watch", "create", "update"]),
    rule("", ["pods"], ["get"]),
]


def manifests(spec: GfdSpec, context: RenderContext) -> list[Manifest]:
    """Return access rights and the DaemonSet."""
    config = ConfigManager(spec, context)
    return [
        *operands.access(_ACCOUNT, context.namespace, *_RULES, cluster_rules=config.cluster_rules),
        operands.daemon_set(
            context,
            _APP,
            selector={labels.APP: _APP, labels.PART_OF: "nvidia-gpu"},
            switch="gpu-feature-discovery",
            pod_annotations=operands.config_annotation(configurations(context)),
            pod=_pod(spec, context, config),
            gpu_containers=[_CONTAINER],
        ),
    ]


def _pod(spec: GfdSpec, context: RenderContext, config: ConfigManager) -> dict[str, Any]:
    return operands.gpu_pod(
        spec,
        context,
        _ACCOUNT,
        shareProcessNamespace=config.is_on or None,
        initContainers=[operands.wait_for_toolkit(context, operands.MOUNT_RUN_NVIDIA), *config.init_containers],
        containers=[_container(spec, context, config), *config.side_cars("gpu-feature-discovery")],
        volumes=[
            pods.host_volume("output-dir", _FEATURES),
            pods.host_volume("host-sys", "/sys"),
            operands.RUN_NVIDIA,
            *config.volumes,
        ],
    )


def _label_source(context: RenderContext) -> dict[str, str]:
    """Return the setting of a cluster whose Node Feature Discovery may read no NodeFeatures, as that of OpenShift."""
    of_openshift = context.openshift is not None and not context.inventory.specs.nfd.enabled
    return {"USE_NODE_FEATURE_API": "false"} if of_openshift else {}


def _container(spec: GfdSpec, context: RenderContext, config: ConfigManager) -> dict[str, Any]:
    declared: pods.Environment = {
        "GFD_SLEEP_INTERVAL": "60s",
        "GFD_FAIL_ON_INIT_ERROR": "true",
        "NAMESPACE": pods.Field("metadata.namespace"),
        **pods.NODE_NAME,
        "POD_NAME": pods.Field("metadata.name"),
        **operands.mig_environment(context),
        **_label_source(context),
        **config.environment,
    }
    return operands.container(
        spec,
        _CONTAINER,
        command=["gpu-feature-discovery"],
        env=declared,
        security=pods.PRIVILEGED,
        mounts=[pods.mount("output-dir", _FEATURES), pods.mount("host-sys", "/sys", read_only=True), *config.mounts],
    )
