"""Node Feature Discovery: finds PCI devices of every node and writes them to its labels.

Names follow its Helm chart, installed as release ``node-feature-discovery``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Any

import yaml

from gpu_provision.components import operands, pods
from gpu_provision.components.objects import RBAC, config_map, is_at_least, manifest, role, rule, service_account
from gpu_provision.components.security_constraints import PRIVILEGED
from gpu_provision.inventory.resolve import merge
from gpu_provision.model.cluster import Kind, Manifest, ObjectRef, RenderContext
from gpu_provision.model.specs import NfdSpec

NAME = "nfd"
TITLE = "Node Feature Discovery"
REQUIRES: tuple[str, ...] = ("prerequisites",)
GROUP = "nfd.k8s-sigs.io"
NODE_FEATURE = Kind(f"{GROUP}/v1alpha1", "NodeFeature")

NODE_OF_FEATURE = "nfd.node.kubernetes.io/node-name"
"""Label of a NodeFeature: its node."""

MASTER_LEASE = "nfd-master.nfd.kubernetes.io"
"""Name of the Lease by which masters elect a leader, in their namespace."""

_FULL_NAME = "node-feature-discovery"
_LABELS = {"app.kubernetes.io/name": _FULL_NAME, "app.kubernetes.io/instance": _FULL_NAME}
_CONFIG_DIRECTORY = "/etc/kubernetes/node-feature-discovery"

# extraLabelNs lets GPU Feature Discovery's labels through. Written as JSON, which is YAML.
_MASTER_CONFIG = 'extraLabelNs: ["nvidia.com"]\n'

# Network and display classes; the label then names the vendor only: pci-10de.present.
_WORKER_CONFIG = """\
sources:
  pci:
    deviceClassWhitelist: ["02", "0200", "0207", "0300", "0302"]
    deviceLabelFields: ["vendor"]
"""

# Labels of the modules that the driver's side-cars load: templates/nodefeaturerules.yaml of the GPU Operator 26.7.
# Rules in the worker's configuration have the same effect as a NodeFeatureRule, and need no further kind.
_MODULE_LABELS = {"gdrdrv": "gdrcopy", "nvidia_fs": "gds", "nvidia_peermem": "peermem"}
_MODULE_RULES = [
    {
        "name": f"kernel-module-{module}",
        "labels": {f"nvidia.com/{name}.capable": "true"},
        "matchFeatures": [{"feature": "kernel.loadedmodule", "matchExpressions": {module: {"op": "Exists"}}}],
    }
    for module, name in _MODULE_LABELS.items()
]

# Labels of CoreOS that the Node Feature Discovery of OpenShift has by default, and the upstream one has not.
_COREOS_RULES = [
    {
        "name": f"os-release-{name}",
        "labelsTemplate": "{{ range .system.osrelease }}"
        "feature.node.kubernetes.io/system-os_release.{{ .Name }}={{ .Value }}\n{{ end }}",
        "matchFeatures": [{"feature": "system.osrelease", "matchExpressions": {name: {"op": "Exists"}}}],
    }
    for name in ("OSTREE_VERSION", "OPENSHIFT_VERSION")
]

_UNPRIVILEGED = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
    "runAsNonRoot": True,
}

# Both names of the control plane's taint: clusters before 1.24 use the second.
_CONTROL_PLANE = tuple(
    {"key": f"node-role.kubernetes.io/{role}", "operator": "Equal", "effect": "NoSchedule"}
    for role in ("control-plane", "master")
)

_GPU_TAINT = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}

_ON_CONTROL_PLANE = {"key": "node-role.kubernetes.io/control-plane", "operator": "In", "values": [""]}
_NEAR_CONTROL_PLANE = {
    "nodeAffinity": {
        "preferredDuringSchedulingIgnoredDuringExecution": [
            {"weight": 1, "preference": {"matchExpressions": [_ON_CONTROL_PLANE]}}
        ]
    }
}

# Of chart 0.19.
_MASTER_RESOURCES = {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "4Gi"}}
_GC_RESOURCES = {"requests": {"cpu": "10m", "memory": "128Mi"}, "limits": {"memory": "1Gi"}}

_WORKER_HOST_PATHS = {
    "host-boot": ("/boot", "/host-boot"),
    "host-os-release": ("/etc/os-release", "/host-etc/os-release"),
    "host-sys": ("/sys", "/host-sys"),
    "host-usr-lib": ("/usr/lib", "/host-usr/lib"),
    "host-lib": ("/lib", "/host-lib"),
    "host-proc-swaps": ("/proc/swaps", "/host-proc/swaps"),
    "features-d": (f"{_CONFIG_DIRECTORY}/features.d/", f"{_CONFIG_DIRECTORY}/features.d/"),
}

_MASTER_RULES = [
    rule("", ["namespaces"], ["watch", "list"]),
    rule("", ["nodes", "nodes/status"], ["get", "patch", "update", "list"]),
    rule(GROUP, ["nodefeatures", "nodefeaturerules", "nodefeaturegroups"], ["get", "list", "watch"]),
    rule(GROUP, ["nodefeaturegroups/status"], ["patch", "update"]),
    rule("coordination.k8s.io", ["leases"], ["create"]),
    rule("coordination.k8s.io", ["leases"], ["get", "update"], names=["nfd-master.nfd.kubernetes.io"]),
]

_WORKER_RULES = [rule(GROUP, ["nodefeatures"], ["create", "get", "update", "delete"]), rule("", ["pods"], ["get"])]

_GC_RULES = [
    rule("", ["nodes"], ["list", "watch"]),
    rule("topology.node.k8s.io", ["noderesourcetopologies"], ["delete", "list"]),
    rule(GROUP, ["nodefeatures"], ["delete", "list"]),
]

FORMER = tuple(ObjectRef(f"{RBAC}/v1", kind, "", f"{_FULL_NAME}-gc") for kind in ("ClusterRole", "ClusterRoleBinding"))
"""Objects of stacks of earlier versions; a run removes them."""


def manifests(spec: NfdSpec, context: RenderContext) -> list[Manifest]:
    """Return CRDs, access rights, configuration, master, worker and garbage collector.

    ``env`` applies to all three; ``args`` and ``resources`` to the worker only, which runs on every node.
    """
    namespace, subject = spec.namespace, _FULL_NAME
    common: dict[str, Any] = {"subject": subject, "labels": _LABELS}
    master_config = {"nfd-master.conf": _master_config(spec)}
    worker_config = {"nfd-worker.conf": _worker_config(spec, context)}
    worker_rules = [*_WORKER_RULES, *([PRIVILEGED] if context.openshift else [])]
    like = next(
        each for each in GENERATIONS if is_at_least(spec.image.version, each.since)
    )  # a digest counts as newest
    return [
        *crds(),
        service_account(_FULL_NAME, namespace, _LABELS),
        *role(_FULL_NAME, namespace, [*_MASTER_RULES, *_GC_RULES], **common, kind="ClusterRole"),  # of one account
        *role(f"{_FULL_NAME}-worker", namespace, worker_rules, **common),
        config_map(f"{_FULL_NAME}-master-conf", namespace, master_config, _LABELS),
        config_map(f"{_FULL_NAME}-worker-conf", namespace, worker_config, _LABELS),
        _master(spec, like, context),
        _worker(spec, like, context),
        *([_gc(spec, like, context)] if spec.gc.enabled else []),
    ]


def _master_config(spec: NfdSpec) -> str:
    return _merged(_MASTER_CONFIG, spec.master_config)


def _worker_config(spec: NfdSpec, context: RenderContext) -> str:
    own = spec.worker_config.get("sources", {}).get("custom", [])
    added = [*(_MODULE_RULES if spec.nodefeaturerules else ()), *(_COREOS_RULES if context.openshift else ())]
    rules = {"sources": {"custom": [*added, *own]}} if added else {}
    return _merged(_WORKER_CONFIG, spec.worker_config, rules)


def _merged(default: str, *settings: Mapping[str, Any]) -> str:
    """Return a configuration with settings over its default, as JSON, which is YAML; without any, as it is."""
    if not any(settings):
        return default
    return json.dumps(reduce(merge, map(dict, settings), yaml.safe_load(default)), indent=2) + "\n"


def crds() -> list[Manifest]:
    """Return new copies of the CRDs ``nfd.k8s-sigs.io/v1alpha1``, which fit 0.14 to 0.19."""
    definitions: list[Manifest] = json.loads(Path(__file__).with_name("nfd_crds.json").read_text(encoding="utf-8"))
    return definitions


def _master(spec: NfdSpec, like: Generation, context: RenderContext) -> Manifest:
    container = _container(
        spec,
        "master",
        args=[*like.flags, *(["-enable-leader-election"] if spec.master.replicas > 1 else [])],
        ports=like.ports,
        startupProbe=_probe(like.health, failureThreshold=30),
        livenessProbe=_probe(like.health),
        readinessProbe=_probe(like.health, failureThreshold=10),
        resources=spec.master.resources or _MASTER_RESOURCES,
        volumeMounts=[pods.mount("nfd-master-conf", _CONFIG_DIRECTORY, read_only=True)],
    )
    pod = _pod(
        spec,
        container,
        nodeSelector=dict(spec.master.node_selector),
        affinity=spec.master.affinity or _NEAR_CONTROL_PLANE,
        # In a cluster of new nodes only, master and garbage collector have no other node.
        tolerations=pods.tolerations(_CONTROL_PLANE, spec.master.tolerations, pods.startup_tolerations(context)),
        volumes=[_config_volume("master")],
    )
    return _workload("Deployment", spec, "master", pod, config=_master_config(spec), replicas=spec.master.replicas)


def _worker(spec: NfdSpec, like: Generation, context: RenderContext) -> Manifest:
    defaults = {"requests": {"cpu": "5m", "memory": "64Mi"}, "limits": {"memory": "512Mi"}}
    mounts = [pods.mount(name, path, read_only=True) for name, (_, path) in _WORKER_HOST_PATHS.items()]
    container = _container(
        spec,
        "worker",
        args=[*like.worker_flags, *like.flags, *spec.args],
        env={"POD_NAME": pods.Field("metadata.name"), "POD_UID": pods.Field("metadata.uid")},
        ports=like.ports,
        livenessProbe=_probe(like.health, initialDelaySeconds=10),
        readinessProbe=_probe(like.health, initialDelaySeconds=5, failureThreshold=10),
        resources=spec.resources or defaults,
        volumeMounts=[*mounts, pods.mount("nfd-worker-conf", _CONFIG_DIRECTORY, read_only=True)],
    )
    # Without the worker, a tainted node gets no GPU label.
    tolerated = pods.operand_tolerations(context, spec.worker_tolerations, first=(*_CONTROL_PLANE, _GPU_TAINT))
    hosts = [pods.host_volume(name, path) for name, (path, _) in _WORKER_HOST_PATHS.items()]
    place = {"nodeSelector": dict(spec.worker.node_selector), "affinity": spec.worker.affinity}
    pod = _pod(spec, container, **place, tolerations=tolerated, volumes=[*hosts, _config_volume("worker")])
    rolling = {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "10%"}}
    return _workload("DaemonSet", spec, "worker", pod, config=_worker_config(spec, context), updateStrategy=rolling)


def _gc(spec: NfdSpec, like: Generation, context: RenderContext) -> Manifest:
    container = _container(
        spec,
        "gc",
        args=["-gc-interval=1h"],
        ports=like.gc_ports,
        livenessProbe=_probe(like.gc_health, initialDelaySeconds=10),
        readinessProbe=_probe(like.gc_health, initialDelaySeconds=5),
        resources=spec.gc.resources or _GC_RESOURCES,
    )
    pod = _pod(
        spec,
        container,
        nodeSelector=dict(spec.gc.node_selector),
        affinity=spec.gc.affinity,
        tolerations=pods.tolerations(spec.gc.tolerations, pods.startup_tolerations(context)),
    )
    return _workload("Deployment", spec, "gc", pod, replicas=spec.gc.replicas)


def _container(
    spec: NfdSpec,
    part: str,
    *,
    args: Sequence[str],
    ports: Sequence[tuple[str, int]],
    env: pods.Environment | None = None,
    **fields: Any,
) -> dict[str, Any]:
    return pods.container(
        part,
        spec,
        command=[f"nfd-{part}"],
        args=list(args),
        env=pods.environment({**pods.NODE_NAME, **(env or {})}, spec.env),
        securityContext=_UNPRIVILEGED,
        ports=[pods.port(name, number) for name, number in ports],
        **fields,
    )


def _pod(spec: NfdSpec, container: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {
        "serviceAccountName": _FULL_NAME,
        "priorityClassName": spec.priority_class_name,
        "dnsPolicy": "ClusterFirstWithHostNet",
        "enableServiceLinks": False,
        "imagePullSecrets": pods.pull_secrets(spec),
        "containers": [container],
        **fields,
    }


def _config_volume(part: str) -> dict[str, Any]:
    key = f"nfd-{part}.conf"
    return pods.config_volume(f"nfd-{part}-conf", f"{_FULL_NAME}-{part}-conf", items=[(key, key)])


def _workload(
    kind: str, spec: NfdSpec, part: str, pod: Mapping[str, Any], *, config: str = "", **fields: Any
) -> Manifest:
    labels = _LABELS | {"role": part}
    annotations = operands.config_annotation({part: config}) if config else {}
    body = {
        "selector": {"matchLabels": labels},
        **fields,
        "template": {"metadata": {"labels": labels, "annotations": annotations}, "spec": dict(pod)},
    }
    return manifest(("apps/v1", kind), f"{_FULL_NAME}-{part}", namespace=spec.namespace, labels=labels, spec=body)


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """Versions of Node Feature Discovery with the same flags, from ``since`` on; ``gc``: the garbage collector.

    ``flags``, ``ports`` and ``health`` are of master and worker; versions without ``health`` have no probe.
    """

    since: tuple[int, int]
    flags: tuple[str, ...]
    worker_flags: tuple[str, ...] = ()
    ports: tuple[tuple[str, int], ...]
    gc_ports: tuple[tuple[str, int], ...] = (("metrics", 8081),)
    health: dict[str, Any] | None
    gc_health: dict[str, Any] | None = None


_HTTP = {"httpGet": {"path": "/healthz", "port": "http"}}

# Newest first. Up to 0.17 the health service is gRPC, for which API servers before 1.24 have no probe: the probe only
# opens its port.
_PORTS = (("http", 8080),)
_0_18 = Generation(since=(0, 18), flags=("-port=8080",), ports=_PORTS, gc_ports=_PORTS, health=_HTTP, gc_health=_HTTP)
GENERATIONS = (
    replace(_0_18, since=(0, 19), worker_flags=("-owner-refs=pod,ds",)),
    _0_18,
    Generation(
        since=(0, 16),
        flags=("-metrics=8081", "-grpc-health=8082"),
        ports=(("metrics", 8081), ("health", 8082)),
        health={"tcpSocket": {"port": "health"}},
    ),
    Generation(since=(0, 0), flags=("-metrics=8081",), ports=(("metrics", 8081),), gc_ports=(), health=None),
)


def _probe(health: dict[str, Any] | None, **fields: int) -> dict[str, Any] | None:
    """Return a probe, or None without a health service."""
    return health | fields if health else None
