"""Runs gpu-provision with one mistake in its manifests, which only a kubelet or a container runtime notices.

python -m tests.real.node.mutations NAME ARGUMENT...
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from gpu_provision import components
from gpu_provision.cli import main
from gpu_provision.components import Component
from gpu_provision.model.cluster import Manifest, RenderContext

Mutation = Callable[[dict[str, Any]], None]


def _containers(pod: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield from pod.get("initContainers", ())
    yield from pod["containers"]


def _keep_mounts_private(pod: dict[str, Any]) -> None:
    """Mount propagation: what a container mounts stays its own."""
    for container in _containers(pod):
        for mount in container["volumeMounts"]:
            mount.pop("mountPropagation", None)


def _expect_a_file(pod: dict[str, Any]) -> None:
    """The type of a hostPath: it is a folder."""
    volume = next(volume for volume in pod["volumes"] if volume["name"] == "run-nvidia")
    volume["hostPath"]["type"] = "File"


def _forbid_root(pod: dict[str, Any]) -> None:
    """The security context: it contradicts itself."""
    for container in pod["containers"]:
        container["securityContext"] = {"runAsUser": 0, "runAsNonRoot": True}


def _ask_for_another_path(pod: dict[str, Any]) -> None:
    """A probe: the program does not serve this."""
    for container in pod["containers"]:
        container["readinessProbe"]["httpGet"]["path"] = "/healthy"
        container["readinessProbe"]["initialDelaySeconds"] = 1
        container["readinessProbe"]["periodSeconds"] = 1


MUTATIONS: Mapping[str, tuple[str, Mutation]] = {
    "private-mounts": ("driver", _keep_mounts_private),
    "host-path-type": ("gfd", _expect_a_file),
    "security-context": ("gfd", _forbid_root),
    "probe-path": ("dcgm_exporter", _ask_for_another_path),
}
"""Name -> the component whose DaemonSets it is about, and what it does to their pods."""


def with_mistake(component: Component, mutation: Mutation) -> Component:
    def manifests(spec: Any, context: RenderContext) -> list[Manifest]:
        made = component.manifests(spec, context)
        for manifest in made:
            if manifest["kind"] == "DaemonSet":
                mutation(manifest["spec"]["template"]["spec"])
        return made

    return dataclasses.replace(component, manifests=manifests)


def apply(name: str) -> None:
    mutated, mutation = MUTATIONS[name]
    components.COMPONENTS = tuple(
        with_mistake(component, mutation) if component.name == mutated else component
        for component in components.COMPONENTS
    )


if __name__ == "__main__":
    for chosen in sys.argv[1].split(","):
        apply(chosen)
    sys.exit(main(sys.argv[2:]))
