"""The Machine Config Daemons: each brings its machine to the configuration that the node's annotation desires.

As openshift/machine-config-operator does it: the daemon asks for a drain, boots the machine into the configuration,
asks for the uncordon, and says Done. What it has done stands in annotations of the node and in the machine's state, so
a restart of the sandbox at any moment loses nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from gpu_provision.sandbox import objects
from gpu_provision.sandbox.api import NODES, NOT_FOUND, ApiError, Object
from gpu_provision.sandbox.informer import Informer
from gpu_provision.sandbox.kubelet.machine import Machine
from gpu_provision.sandbox.kubelet.simulation import Simulation
from gpu_provision.sandbox.machine_config import (
    APPLIED_DRAIN,
    CURRENT,
    DEGRADED,
    DESIRED,
    DESIRED_DRAIN,
    DONE,
    MACHINE_CONFIGS,
    POOLS,
    REASON,
    STATE,
    WORKING,
    RenderError,
    primary_pool,
)

_FAULT = "machine-config-fails"
_FAILURE = "failed to update OS to {image}: error running rpm-ostree rebase: exit status 1"


class MachineConfigDaemons:
    """One daemon for each machine with RHCOS."""

    def __init__(self, simulation: Simulation, reboot: Callable[[Machine], Awaitable[None]]) -> None:
        """``reboot`` reboots a machine and returns when it is back."""
        self._simulation, self._reboot = simulation, reboot
        self._nodes, self._pools = Informer(simulation.api, NODES), Informer(simulation.api, POOLS)
        for informer in (self._nodes, self._pools):
            informer.on_event(lambda *_: self._wake())
        self._machines = [each for each in simulation.machines.values() if each.spec.release]

    def _wake(self) -> None:
        for machine in self._machines:
            machine.wake()

    async def run(self) -> None:
        """Run all daemons until cancelled."""
        async with asyncio.TaskGroup() as group:
            for informer in (self._nodes, self._pools):
                group.create_task(informer.run())
            for informer in (self._nodes, self._pools):
                await informer.wait_for_sync()
            for machine in self._machines:
                group.create_task(self._manage(machine))

    async def _manage(self, machine: Machine) -> None:
        while True:
            try:
                await self._join(machine)
                await machine.wait_until(lambda: self._is_behind(machine))
                await self._update(machine)
            except ApiError as refusal:
                if refusal.code != NOT_FOUND:
                    raise
                await self._simulation.pause()  # the Node, or what it desires, is gone for a moment

    def _annotations(self, machine: Machine) -> Mapping[str, str]:
        node = self._nodes.objects.get(("", machine.name))
        return objects.annotations_of(node) if node else {}

    def _is_behind(self, machine: Machine) -> bool:
        found = self._annotations(machine)
        return bool(found.get(DESIRED)) and (found.get(CURRENT) != found[DESIRED] or found.get(STATE) != DONE)

    async def _annotate(self, machine: Machine, **values: str | None) -> None:
        names = {"current": CURRENT, "desired": DESIRED, "state": STATE, "reason": REASON, "drain": DESIRED_DRAIN}
        change = {"metadata": {"annotations": {names[key]: value for key, value in values.items()}}}
        self._nodes.observe(await self._simulation.api.patch(NODES, machine.name, change))

    async def _join(self, machine: Machine) -> None:
        """Boot a new machine into the configuration of its pool, once that is rendered."""
        current = self._annotations(machine).get(CURRENT, "")
        if current and machine.state.config:
            return
        await machine.wait_until(lambda: bool(current or self._pool_config(machine)))
        name = current or machine.state.config or self._pool_config(machine)
        machine.take_config(await self._simulation.api.get(MACHINE_CONFIGS, name))
        if not current:
            await self._annotate(machine, current=name, desired=name, state=DONE, reason="")

    def _pool_config(self, machine: Machine) -> str:
        node = self._nodes.objects.get(("", machine.name))
        try:
            pool = primary_pool(node, self._pools.objects.values()) if node else None
        except RenderError:
            return ""
        return str(objects.value_at(pool, "spec", "configuration", "name") or "")

    async def _update(self, machine: Machine) -> None:
        desired = self._annotations(machine)[DESIRED]
        if machine.state.config != desired:
            await self._annotate(machine, state=WORKING, reason="")
            await self._ask(machine, f"drain-{desired}")
            rendered = await self._simulation.api.get(MACHINE_CONFIGS, desired)
            if not await self._check(machine, rendered):
                return
            machine.take_config(rendered)
            await self._reboot(machine)
        await self._ask(machine, f"uncordon-{desired}")
        await self._annotate(machine, current=desired, state=DONE, reason="")

    async def _check(self, machine: Machine, rendered: Object) -> bool:
        """Say Degraded while a fault is in force; False if something else is desired by then."""
        desired = objects.name(rendered)
        if fault := machine.faults.find(_FAULT, machine.name):
            image = rendered["spec"].get("osImageURL", "")
            await self._annotate(
                machine, state=DEGRADED, reason=str(fault.get("message", _FAILURE.format(image=image)))
            )
            await machine.wait_until(
                lambda: not machine.faults.find(_FAULT, machine.name) or self._annotations(machine)[DESIRED] != desired
            )
        return self._annotations(machine).get(DESIRED) == desired

    async def _ask(self, machine: Machine, what: str) -> None:
        """Ask the controller to drain or uncordon the node, and wait until it has done so."""
        await self._annotate(machine, drain=what)
        await machine.wait_until(lambda: self._annotations(machine).get(APPLIED_DRAIN) == what)
