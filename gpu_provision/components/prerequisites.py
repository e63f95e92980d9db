"""Namespaces and runtime classes, which everything else needs to exist."""

from __future__ import annotations

from gpu_provision.components.labels import COMPONENT_OF_APP
from gpu_provision.components.objects import manifest, role, rule
from gpu_provision.model.cluster import Manifest, RenderContext
from gpu_provision.model.inventory import Inventory

NAME = "prerequisites"
TITLE = "Namespaces and runtime classes"
REQUIRES: tuple[str, ...] = ()

# Drivers load kernel modules: their pods are privileged, which clusters with a stricter default would refuse.
_PRIVILEGED = {f"pod-security.kubernetes.io/{mode}": "privileged" for mode in ("enforce", "audit", "warn")}


def spec(inventory: Inventory) -> Inventory:
    """Return the inventory: these cannot be off."""
    return inventory


def namespaces(inventory: Inventory) -> tuple[str, ...]:
    """Return the namespaces that the components of an inventory need."""
    nfd = inventory.specs.nfd
    return tuple(dict.fromkeys([inventory.cluster.namespace, *([nfd.namespace] if nfd.enabled else [])]))


# On OpenShift, the cluster's own Prometheus reads the namespaces with this label, and needs these rights there. A label
# for Pod Security does no harm: SecurityContextConstraints come beside it.
MONITORED = {"openshift.io/cluster-monitoring": "true"}
_PROMETHEUS, _MONITORING = "prometheus-k8s", "openshift-monitoring"
_PROMETHEUS_RULES = [rule("", ["services", "endpoints", "pods"], ["get", "list", "watch"])]


def manifests(spec: Inventory, context: RenderContext) -> list[Manifest]:
    """Return Namespaces, and RuntimeClasses, whose handlers have the same names; an NRI plugin needs no classes."""
    cdi_classes = ("nvidia-cdi", "nvidia-legacy") if spec.specs.cdi_enabled else ()
    classes = () if spec.specs.nri_plugin_enabled else (spec.specs.runtime_class, *cdi_classes)
    labels = {COMPONENT_OF_APP: "gpu-operator"}
    return [
        *(manifest(("v1", "Namespace"), name, labels=_labels(name, context)) for name in namespaces(spec)),
        *(monitoring_access(context.namespace) if context.openshift else ()),
        *(
            manifest(("node.k8s.io/v1", "RuntimeClass"), name, labels=labels, handler=name)
            for name in dict.fromkeys(classes)
        ),
    ]


def _labels(namespace: str, context: RenderContext) -> dict[str, str]:
    """Return the labels of a namespace; only that of the operands has metrics."""
    is_monitored = context.openshift is not None and namespace == context.namespace
    return {**_PRIVILEGED, **(MONITORED if is_monitored else {})}


def monitoring_access(namespace: str) -> list[Manifest]:
    """Return the rights of OpenShift's own Prometheus in a namespace."""
    return role(_PROMETHEUS, namespace, _PROMETHEUS_RULES, subject=_PROMETHEUS, subject_namespace=_MONITORING)
