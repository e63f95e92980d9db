"""Starting a pod's sandbox: the runtime class has to be one that the container runtime knows."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from functools import partial
from typing import Any

from gpu_provision.sandbox.api import ApiError
from gpu_provision.sandbox.nodes.machine import Machine
from gpu_provision.sandbox.nodes.world import NOT_FOUND, RUNTIME_CLASSES, World


async def handler_of(pod: Mapping[str, Any], world: World) -> str | None:
    """Return the handler that the pod's RuntimeClass names; None if there is no such class."""
    name = pod["spec"].get("runtimeClassName")
    if not name:
        return ""
    try:
        return str((await world.api.get(RUNTIME_CLASSES, name)).get("handler", ""))
    except ApiError as refusal:
        if refusal.code != NOT_FOUND:
            raise
        return None


async def start_sandbox(pod: Mapping[str, Any], machine: Machine, world: World) -> str:
    """Return the pod's IP address once its sandbox runs; report every failure on the way."""
    tries = 0
    while (handler := await handler_of(pod, world)) not in machine.handlers:
        world.events.warning(pod, "FailedCreatePodSandBox", _problem(pod, handler))
        await world.back_off(tries, machine, partial(_configured, machine, handler))
        tries += 1
    return machine.address if pod["spec"].get("hostNetwork") else _address(pod, machine)


def _configured(machine: Machine, handler: str | None) -> bool:
    return handler in machine.handlers


def _problem(pod: Mapping[str, Any], handler: str | None) -> str:
    if handler is None:
        return (
            "Failed to create pod sandbox: failed to get RuntimeClass "
            f'"{pod["spec"]["runtimeClassName"]}": runtimeclass.node.k8s.io not found'
        )
    return (
        "Failed to create pod sandbox: rpc error: code = Unknown desc = failed to get sandbox runtime: "
        f'no runtime for "{handler}" is configured'
    )


def _address(pod: Mapping[str, Any], machine: Machine) -> str:
    """Return an address in the machine's own range, always the same for the same pod."""
    third = zlib.crc32(machine.name.encode()) % 256
    return f"10.244.{third}.{zlib.crc32(pod['metadata']['uid'].encode()) % 250 + 2}"
