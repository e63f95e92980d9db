"""Namespaces and runtime classes, which everything else needs to exist."""

from __future__ import annotations

from dataclasses import dataclass

from gpu_provision.components.labels import COMPONENT_OF_APP
from gpu_provision.components.objects import manifest
from gpu_provision.model.cluster import Manifest, RenderContext
from gpu_provision.model.inventory import Inventory

NAME = "prerequisites"
TITLE = "Namespaces and runtime classes"
REQUIRES: tuple[str, ...] = ()

# Drivers load kernel modules: their pods are privileged, which clusters with a stricter default would refuse.
_PRIVILEGED = {f"pod-security.kubernetes.io/{mode}": "privileged" for mode in ("enforce", "audit", "warn")}


@dataclass(frozen=True, slots=True, kw_only=True)
class PrerequisitesSpec:
    """What must exist. ``runtime_classes`` are at once the names of their handlers."""

    namespaces: tuple[str, ...]
    runtime_classes: tuple[str, ...]


def spec(inventory: Inventory) -> PrerequisitesSpec:
    """Return the namespaces and runtime classes that this inventory's components need."""
    specs = inventory.specs
    namespaces = [inventory.cluster.namespace] + ([specs.nfd.namespace] if specs.nfd.enabled else [])
    cdi_classes = ("nvidia-cdi", "nvidia-legacy") if specs.cdi_enabled else ()
    return PrerequisitesSpec(
        namespaces=tuple(dict.fromkeys(namespaces)),
        runtime_classes=tuple(dict.fromkeys((specs.runtime_class, *cdi_classes))),
    )


def manifests(spec: PrerequisitesSpec, _context: RenderContext) -> list[Manifest]:
    """Return Namespaces and RuntimeClasses."""
    return [
        *(manifest(("v1", "Namespace"), name, labels=_PRIVILEGED) for name in spec.namespaces),
        *(
            manifest(("node.k8s.io/v1", "RuntimeClass"), name, labels={COMPONENT_OF_APP: "gpu-operator"}, handler=name)
            for name in spec.runtime_classes
        ),
    ]
