"""The MIG manager: follows the label of its node, pauses the operands, and divides the GPUs."""

from __future__ import annotations

from functools import partial

import yaml

from gpu_provision.sandbox import objects
from gpu_provision.sandbox.api import NODES, PODS
from gpu_provision.sandbox.kubelet.container import Container, Program
from gpu_provision.sandbox.kubelet.programs.driver import is_app, label_node, wait_until_gone
from gpu_provision.sandbox.operand_rules import (
    DEPLOY,
    MIG_CLIENTS,
    MIG_CONFIG,
    MIG_STATE,
    OPERANDS,
    PAUSED_FOR_MIG,
    find_mig_devices,
    paused_labels,
    resumed_labels,
)

_VALIDATOR = "nvidia-operator-validator"


async def _run(container: Container) -> int:
    """Apply each configuration that the label requests, also at the start; an equal value again changes nothing."""
    last = ""
    while True:
        node = await container.simulation.api.get(NODES, container.machine.name)
        wanted = objects.labels(node).get(MIG_CONFIG, "")
        if wanted and wanted != last:
            container.log(f'level=info msg="Updating to MIG config: {wanted}"')
            problem = await _apply(container, wanted)
            container.log(problem or f'level=info msg="Successfully updated to MIG config: {wanted}"')
            await label_node(container, {MIG_STATE: "failed" if problem else "success"})
        last = wanted
        await container.simulation.pause()


async def _apply(container: Container, wanted: str) -> str:
    """Divide the GPUs; return why that failed."""
    machine, api = container.machine, container.simulation.api
    made = _read_devices(container, wanted)
    if made is None:
        return f"Error validating values: selected mig-config not present: {wanted}"
    if made == (f"{machine.mig.devices}x{machine.mig.profile}" if machine.mig else ""):
        return ""
    labels = objects.labels(await api.get(NODES, machine.name))
    paused = paused_labels(labels, MIG_CLIENTS, PAUSED_FOR_MIG)
    await label_node(container, {MIG_STATE: "pending", **paused})
    for operand in (each for each in MIG_CLIENTS if f"{DEPLOY}{each}" in paused):
        await wait_until_gone(container, partial(is_app, OPERANDS[operand]))
    fault = machine.faults.find("mig-fails", machine.name)
    if fault or machine.clients:
        # The operands stay paused, as with the real one, until a configuration is applied.
        return str(fault.get("message", "could not reset GPU") if fault else "GPU is in use by another client")
    machine.state.mig = made
    machine.save_and_notify()
    await label_node(container, resumed_labels(objects.labels(await api.get(NODES, machine.name)), PAUSED_FOR_MIG))
    for pod in container.simulation.pods.by_index("node", machine.name):
        if is_app(_VALIDATOR, pod):
            await api.delete(PODS, objects.name(pod), objects.namespace(pod))
    return ""


def _read_devices(container: Container, wanted: str) -> str | None:
    """Return what a configuration makes of each GPU: ``7x1g.10gb``, or an empty text; None if it does not exist."""
    file = container.env.get("CONFIG_FILE") or container.env.get("DEFAULT_CONFIG_FILE", "")
    gpu = container.machine.spec.gpu
    return find_mig_devices(yaml.safe_load(container.files.read(file)) or {}, wanted, gpu.device) if gpu else None


MANAGER = Program(_run)
