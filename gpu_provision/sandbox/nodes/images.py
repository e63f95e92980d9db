"""Pulling images: once per machine, one after the other, and what happens when a registry says no."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from gpu_provision.sandbox.nodes.machine import Machine
from gpu_provision.sandbox.nodes.status import ContainerRecord, image_id
from gpu_provision.sandbox.nodes.world import World


class Puller:
    """Pulls images on behalf of pods; a machine pulls one image at a time, as kubelets do by default."""

    def __init__(self, world: World) -> None:
        """Prepare."""
        self._world = world
        self._locks: dict[str, asyncio.Lock] = {}

    async def pull(  # noqa: PLR0913  what a pull needs to know and to report
        self,
        machine: Machine,
        pod: Mapping[str, Any],
        spec: Mapping[str, Any],
        record: ContainerRecord,
        *,
        field: str,
        changed: Callable[[], None],
    ) -> None:
        """Return once the image is there; report every failure on the way."""
        image, tries = str(spec.get("image", "")), 0
        while not await self._try(machine, pod, spec, field):
            tries += 1
            message = self._refusal(machine, image)
            self._world.events.warning(pod, "Failed", f'Failed to pull image "{image}": {message}', field=field)
            self._world.events.warning(pod, "Failed", "Error: ErrImagePull", field=field)
            record.wait("ErrImagePull", message)
            changed()
            await self._world.pause()
            back_off = f'Back-off pulling image "{image}"'
            record.wait("ImagePullBackOff", f"{back_off}: ErrImagePull: {message}")
            self._world.events.normal(pod, "BackOff", back_off, field=field)
            changed()
            await self._retry(machine, image, tries)
        record.image_id = image_id(image)

    async def _try(self, machine: Machine, pod: Mapping[str, Any], spec: Mapping[str, Any], field: str) -> bool:
        image = str(spec.get("image", ""))
        present = image in machine.state.images
        if present and spec.get("imagePullPolicy") != "Always":
            text = f'Container image "{image}" already present on machine'
            self._world.events.normal(pod, "Pulled", text, field=field)
            return True
        async with self._locks.setdefault(machine.name, asyncio.Lock()):
            self._world.events.normal(pod, "Pulling", f'Pulling image "{image}"', field=field)
            if image not in machine.state.images:
                await self._world.sleep(self._world.timings.image_pull)
            if machine.faults.on_image("image-pull-fails", machine.name, image):
                return False
            if image not in machine.state.images:
                machine.state.images[image] = image_id(image)
                machine.changed()
        took = f"{self._world.timings.scaled(self._world.timings.image_pull):.3g}s"
        text = f'Successfully pulled image "{image}" in {took} ({took} including waiting)'
        self._world.events.normal(pod, "Pulled", text, field=field)
        return True

    async def _retry(self, machine: Machine, image: str, tries: int) -> None:
        """Wait for the back-off, or for the fault to go away: a removed fault lets the next try succeed."""

        def lifted() -> bool:
            return machine.faults.on_image("image-pull-fails", machine.name, image) is None

        await self._world.back_off(tries, machine, lifted)

    @staticmethod
    def _refusal(machine: Machine, image: str) -> str:
        fault = machine.faults.on_image("image-pull-fails", machine.name, image)
        default = (
            f'rpc error: code = NotFound desc = failed to pull and unpack image "{image}": failed to resolve '
            f'reference "{image}": {image}: not found'
        )
        return str(fault.get("message", default)) if fault else default
