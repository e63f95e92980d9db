"""The components: pure functions from a typed spec and a context to Kubernetes manifests."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from gpu_provision import releases
from gpu_provision.components import (
    architectures,
    dcgm,
    dcgm_exporter,
    device_plugin,
    device_plugin_validation,
    driver,
    driver_validation,
    extra_objects,
    gfd,
    machine_config,
    mig_manager,
    mps_control_daemon,
    nfd,
    node_labels,
    node_status_exporter,
    openshift_problems,
    prerequisites,
    security_constraints,
    startup_taint,
    targets,
    toolkit,
    validator,
)
from gpu_provision.components.architectures import UsedImage
from gpu_provision.model.cluster import Manifest, RenderContext
from gpu_provision.model.findings import Finding
from gpu_provision.model.inventory import Inventory

__all__ = ["COMPONENTS", "Component", "desired", "problems", "requirements"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """One component, as its module describes it."""

    name: str  # its key in the inventory, and its name in plans and tables
    title: str  # for people
    requires: tuple[str, ...]  # names of components that must be ready first, on the same node
    # Its spec in the inventory, or None if it is off. Default: the section of its name.
    spec: Callable[[Inventory], Any]
    # Whether it is needed although the inventory leaves that open. Default: yes.
    is_needed: Callable[[Any, RenderContext], bool]
    # Returns canonical manifests: equal meaning is equal value.
    manifests: Callable[[Any, RenderContext], list[Manifest]]
    # Findings before anything is written.
    problems: Callable[[Any, RenderContext], tuple[Finding, ...]]

    def version(self, spec: Any) -> str:
        """Return the version of a spec; empty for components without an image."""
        image = getattr(spec, "image", None)
        return image.version if image else ""


def _component(module: ModuleType) -> Component:
    def spec(inventory: Inventory) -> Any:
        own = getattr(inventory.specs, module.NAME)
        return own if own.enabled else None

    return Component(
        name=module.NAME,
        title=module.TITLE,
        requires=module.REQUIRES,
        spec=getattr(module, "spec", spec),
        is_needed=getattr(module, "is_needed", lambda _spec, _context: True),
        manifests=module.manifests,
        problems=getattr(module, "problems", lambda _spec, _context: ()),
    )


_MODULES = (
    prerequisites,
    machine_config,
    nfd,
    node_labels,
    driver,
    toolkit,
    driver_validation,
    validator,
    mig_manager,
    device_plugin,
    device_plugin_validation,
    gfd,
    mps_control_daemon,
    dcgm,
    dcgm_exporter,
    node_status_exporter,
    startup_taint,
    extra_objects,
)

COMPONENTS: tuple[Component, ...] = tuple(map(_component, _MODULES))
"""All components in dependency order."""

_WITH_IMAGE = frozenset(releases.COMPONENTS) - {driver.NAME}  # whose image is the same on all nodes


_OF_NODES = frozenset({node_labels.NAME, device_plugin_validation.NAME, startup_taint.NAME})
"""Components whose manifests are Nodes, or pods of one node each: names that no object of an inventory has."""


def render_manifests(context: RenderContext, without: Collection[str] = ()) -> dict[str, list[Manifest]]:
    """Return the manifests of every component that is on and needed, in dependency order."""
    rendered = {
        component.name: component.manifests(spec, context)
        for component, spec in _needed_components(context)
        if component.name not in without
    }
    if context.openshift is None:
        return rendered
    own = {name: items for name, items in rendered.items() if name != extra_objects.NAME}
    return rendered | security_constraints.with_constraints(own)


def needed(context: RenderContext) -> tuple[str, ...]:
    """Return the names of the components that are on and needed, in dependency order."""
    return tuple(component.name for component, _ in _needed_components(context))


def _needed_components(context: RenderContext) -> Iterator[tuple[Component, Any]]:
    every = _enabled_components(context.inventory)
    return ((component, spec) for component, spec in every if component.is_needed(spec, context))


def problems(context: RenderContext) -> tuple[Finding, ...]:
    """Return findings about the nodes, then about each component that is on."""
    own = (
        finding
        for component, spec in _enabled_components(context.inventory)
        for finding in component.problems(spec, context)
    )
    return (
        *targets.problems(context),
        *openshift_problems.problems(context),
        *own,
        *architectures.problems(images_of_other_architectures(context)),
        *_collisions(context),
    )


def images_of_other_architectures(context: RenderContext) -> Iterator[UsedImage]:
    """Yield the images of each node that is not amd64, those beside its driver included."""
    enabled = _enabled_components(context.inventory)
    own = {each.name: spec.image.reference for each, spec in enabled if each.name in _WITH_IMAGE}
    for target in architectures.other_than_amd64(context.targets):
        by_key = {**own, **driver.images_of(target, context.inventory.specs)}
        yield from (UsedImage(target, key, image) for key, image in by_key.items())


def _collisions(context: RenderContext) -> tuple[Finding, ...]:
    """Return findings about objects of the inventory that a component makes as well, or that are made twice."""
    others = render_manifests(context, without={*_OF_NODES, extra_objects.NAME}).values()
    made = [item for items in others for item in items]
    return (*extra_objects.collisions(context, made), *extra_objects.repetitions(made))


def _enabled_components(inventory: Inventory) -> list[tuple[Component, Any]]:
    """Return the components that are on, with their specs."""
    specs = ((component, component.spec(inventory)) for component in COMPONENTS)
    return [(component, spec) for component, spec in specs if spec is not None]


def requirements(inventory: Inventory) -> Mapping[str, tuple[str, ...]]:
    """Return the requirements of each component that is on; one that is off is replaced by its own requirements."""
    on = {component.name for component, _ in _enabled_components(inventory)}
    result: dict[str, tuple[str, ...]] = {}
    for component in COMPONENTS:
        required = (name for wanted in component.requires for name in ((wanted,) if wanted in on else result[wanted]))
        result[component.name] = tuple(dict.fromkeys(required))
    return {name: required for name, required in result.items() if name in on}
