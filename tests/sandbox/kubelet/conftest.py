"""A cluster with simulated nodes in this process: the real store and controllers, time lapsed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpu_provision.sandbox import objects
from gpu_provision.sandbox.api import DAEMON_SETS, EVENTS, NODES, Object
from gpu_provision.sandbox.fleet import Fleet, MachineSpec, Timings, models
from gpu_provision.sandbox.kubelet.machine import Machine
from tests import data_file
from tests.sandbox.lab import Lab, Simulate, simulator

STACK = (Path(__file__).parent / "manifests" / "stack.yaml").read_text()
OPERANDS = (
    "driver",
    "container-toolkit",
    "operator-validator",
    "device-plugin",
    "gpu-feature-discovery",
    "dcgm-exporter",
)


def stack() -> list[Object]:
    """Return the operands' manifests, which a test may spoil."""
    return list(data_file.documents(STACK))


def fleet(*, gpus: int = 1, model: str = "Tesla T4", **more: Any) -> Fleet:
    machine = MachineSpec(name="gpu-1", kernel="5.15.0-122-generic", gpu=models()[model], gpus=gpus, **more)
    return Fleet(name="test", machines=(machine,), timings=Timings(speed=40, lease=5))


class NodeLab(Lab):
    """A running cluster with one simulated node."""

    namespace = "gpu"

    @property
    def machine(self) -> Machine:
        return self.machines["gpu-1"]

    async def label(self, **operands: str) -> None:
        wanted = operands or dict.fromkeys(OPERANDS, "true")
        labels = {f"nvidia.com/gpu.deploy.{name}": value for name, value in wanted.items()}
        await self.api.patch(NODES, "gpu-1", {"metadata": {"labels": labels}})

    async def stack(self, *manifests: Object) -> None:
        await self.create(*(manifests or stack()))
        await self.label()

    async def node(self) -> Object:
        return await self.api.get(NODES, "gpu-1")

    async def ready(self, app: str, namespace: str = "") -> Object:
        return await self.pod(app, objects.is_ready, namespace)

    async def ended(self, app: str) -> Object:
        return await self.pod(app, objects.is_finished)

    async def everything(self) -> None:
        """Bring up all operands and wait until each is ready and the node has a GPU to give."""
        await self.stack()
        for daemon_set in (await self.api.list(DAEMON_SETS, "gpu"))[0]:
            await self.ready(objects.name(daemon_set))
        await self.allocatable(1)

    async def event(self, reason: str, text: str = "", namespace: str = "gpu") -> Object:
        async def found() -> Object | None:
            events = (await self.api.list(EVENTS, namespace))[0]
            return next((e for e in events if e["reason"] == reason and text in e["message"]), None)

        return await self.until(found, f"event {reason}")

    async def allocatable(self, count: int) -> None:
        async def given() -> bool:
            return (await self.node())["status"]["allocatable"].get("nvidia.com/gpu") == str(count)

        await self.until(given, f"{count} GPUs")

    async def labelled(self, **wanted: str | None) -> None:
        """Return once the node has labels of GPU Feature Discovery with these values, or with any for None."""

        async def found() -> bool:
            labels = objects.labels(await self.node())
            values = {key: labels.get(f"nvidia.com/{key.replace('_', '.')}") for key in wanted}
            return all(values[key] == value if value else values[key] for key, value in wanted.items())

        await self.until(found, f"labels {wanted}")


@pytest.fixture
def simulate(tmp_path: Path) -> Simulate:
    return simulator(NodeLab, tmp_path, fleet())
