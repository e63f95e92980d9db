"""The life of one pod on its machine: admission, volumes, network, init containers, containers, end."""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections.abc import Mapping
from functools import partial
from typing import Any

from gpu_provision.sandbox import objects
from gpu_provision.sandbox.api import CONFLICT, NOT_FOUND, PODS, ApiError, Object
from gpu_provision.sandbox.kubelet.container import read_handler, requested_devices
from gpu_provision.sandbox.kubelet.container_runner import ContainerRunner
from gpu_provision.sandbox.kubelet.machine import Machine
from gpu_provision.sandbox.kubelet.pod_status import ContainerRecord, PodContext, StatusManager, restarts
from gpu_provision.sandbox.kubelet.simulation import Simulation

_log = logging.getLogger(__name__)
_QUICK_TRIES = 2  # a ConfigMap or a directory that a pod waits for is seldom far behind
_LOST, _KILLED, _TERMINATED = 255, 137, 143  # 255 is what a kubelet reports for a container that vanished
_SOURCES = {"configMap": ("configmap", "name"), "secret": ("secret", "secretName")}
_MADE_AT_BOOT = ("/run/containerd", "/run/systemd", "/run/udev", "/run/lock", "/run/crio", "/run/docker.sock")


class MountError(Exception):
    """A volume cannot be mounted yet; the text is the kubelet's."""

    def __init__(self, volume: str, why: str) -> None:
        """Put it in the kubelet's words."""
        super().__init__(f'MountVolume.SetUp failed for volume "{volume}" : {why}')


async def read_volumes(pod: Mapping[str, Any], machine: Machine, simulation: Simulation) -> dict[str, dict[str, str]]:
    """Return the files of every volume that is not of the host. Raises MountError."""
    contents: dict[str, dict[str, str]] = {}
    for volume in pod["spec"].get("volumes") or ():
        name, metadata = volume["name"], pod["metadata"]
        _check_host_path(volume, machine)
        contents[name] = machine.empty_dir(metadata["uid"], name) if "emptyDir" in volume else {}
        for source, (kind, key) in _SOURCES.items():
            if source in volume:
                found = await simulation.data_of(metadata["namespace"], f"{kind}s", volume[source][key])
                if found is None and not volume[source].get("optional"):
                    raise MountError(name, f'{kind} "{volume[source][key]}" not found')
                contents[name] = _select_items(name, volume[source].get("items"), found or {})
    return contents


def _select_items(volume: str, items: list[dict[str, str]] | None, data: Mapping[str, str]) -> dict[str, str]:
    if items is None:
        return {f"/{key}": text for key, text in data.items()}
    missing = [item["key"] for item in items if item["key"] not in data]
    if missing:
        raise MountError(volume, f"references non-existent config key: {missing[0]}")
    return {f"/{item['path']}": data[item["key"]] for item in items}


def _check_host_path(volume: Mapping[str, Any], machine: Machine) -> None:
    """Make the directory if the volume asks for it, or complain that it is not there, as a kubelet does.

    Only what is made at run time can be missing: everything outside /run is taken to be installed.
    """
    host_path = volume.get("hostPath") or {}
    path, kind = host_path.get("path", ""), host_path.get("type", "")
    if kind == "DirectoryOrCreate":
        machine.make_directory(path)
    can_be_missing = path.startswith(("/run/", "/var/run/")) and path not in _MADE_AT_BOOT
    if kind == "Directory" and can_be_missing and not machine.has_directory(path):
        raise MountError(volume["name"], f"hostPath type check failed: {path} is not a directory")


def _has_handler(machine: Machine, handler: str | None) -> bool:
    return handler in machine.handlers


class PodWorker(PodContext):
    """Runs one pod: one task for its life, one for its end."""

    def __init__(self, simulation: Simulation, machine: Machine, pod: Object) -> None:
        """Take over a pod that is bound to the machine."""
        super().__init__(simulation, machine, pod)
        self._status = StatusManager(self)
        self.runner = ContainerRunner(self, self._status.schedule_write)
        self._life: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin, unless the pod has already ended."""
        if objects.is_finished(self.pod) or self._life is not None:
            return
        if objects.status(self.pod).get("containerStatuses") and not self.adopted:
            self._lose_containers()  # they ran on a machine that has forgotten everything, such as its driver
            self._life = asyncio.create_task(self._live_after_reboot())
        else:
            self._life = asyncio.create_task(self._run_lifecycle())

    def update(self, pod: Object) -> None:
        """Take in the pod as it is now."""
        self.pod = pod
        self._status.observe(pod)
        if objects.is_deleting(pod) and self._ending is None:
            self._ending = asyncio.create_task(self._end())

    def kill(self) -> None:
        """Stop at once: the pod is gone from the cluster."""
        if self._life is not None:
            self._life.cancel()
        self._record_killing()
        self.runner.stop_all()
        self.machine.release(self.uid)

    def abandon(self) -> None:
        """Stop simulating, as if nothing had happened to the pod: the sandbox ends, the machine does not."""
        for task in (self._life, self._ending, self._status.task):
            if task is not None:
                task.cancel()

    def reboot(self) -> None:
        """Lose every container; the pod starts again once the machine is back."""
        if self._life is None or self._life.done() or self._ending is not None:
            return
        self._life.cancel()
        self.runner.forget_all()
        self._lose_containers()
        self._life = asyncio.create_task(self._live_after_reboot())

    def _running(self) -> list[ContainerRecord]:
        return [record for record in (*self.inits, *self.mains) if record.running]

    def _lose_containers(self) -> None:
        for record in self._running():
            record.end(_LOST, "Unknown")
        self.pod_ip, self.adopted = "", False

    async def _live_after_reboot(self) -> None:
        await self.machine.wait_until(lambda: not self.machine.rebooting)
        if self.pod["spec"].get("restartPolicy", "Always") == "Never" and any(r.exit_code for r in self.mains):
            self._status.schedule_write()
            return
        for record in (*self.inits, *self.mains):
            if record.running or record.exit_code is not None:
                record.restart()
            record.wait("PodInitializing")
        await self._run_lifecycle()

    async def _run_lifecycle(self) -> None:
        try:
            deadline = self.pod["spec"].get("activeDeadlineSeconds")
            async with asyncio.timeout(self.simulation.timings.scale(deadline) if deadline else None):
                await self._run()
        except TimeoutError:
            self.runner.stop_all()
            for record in self._running():
                record.end(_KILLED, "Error")
            self.machine.release(self.uid)
            self._status.fail_pod("DeadlineExceeded", "Pod was active on the node longer than the specified deadline")
        except ApiError as error:
            _log.warning("pod %s: %s", self.name, error)
        except Exception:  # noqa: BLE001 - a fault of one simulated pod must not end all machines
            _log.exception("pod %s: the simulation failed", self.name)

    async def _run(self) -> None:
        refusal = None if self.adopted else self._refusal()
        if refusal:
            self.event(*refusal, warning=True)
            await self._status.reject(*refusal)
            return
        contents = await self._mount_volumes()
        self.pod_ip = self.pod_ip or await self._start_sandbox()
        self.runner.contents = contents
        if await self._initialize():
            policy = self.pod["spec"].get("restartPolicy", "Always")
            async with asyncio.TaskGroup() as group:
                for spec, record in zip(self.pod["spec"]["containers"], self.mains, strict=True):
                    if record.exit_code is None or restarts(policy, record.exit_code):
                        group.create_task(self.runner.run_to_end(spec, record, init=False))
        self._status.schedule_write()
        self.machine.release(self.uid)

    def _refusal(self) -> tuple[str, str] | None:
        """Return why the machine does not take the pod, as reason and message; None if it does, with its devices."""
        machine, state, most = self.machine, self.machine.state, self.machine.spec.pods
        on_node = self.simulation.pods.by_index("node", machine.name)
        others = sum(not objects.is_finished(other) and objects.uid(other) != self.uid for other in on_node)
        if others >= most:
            message = f"Node didn't have enough resource: pods, requested: 1, used: {others}, capacity: {most}"
            return "OutOfpods", message
        if state.devices is None:
            return None  # no plugin ever registered: a kubelet does not know the resource and ignores the request
        for container in (*(self.pod["spec"].get("initContainers") or ()), *self.pod["spec"]["containers"]):
            count = requested_devices(container, state.resource)
            if count and not machine.grant(f"{self.uid}/{container['name']}", count):
                machine.release(self.uid)
                free = state.devices - sum(map(len, state.granted.values()))
                why = f"Allocate failed due to requested number of devices unavailable for {state.resource}"
                numbers = f"Requested: {count}, Available: {free}"
                return "UnexpectedAdmissionError", f"{why}. {numbers}, which is unexpected"
        return None

    async def _mount_volumes(self) -> dict[str, dict[str, str]]:
        self._status.schedule_write()
        tries = 0
        while True:
            try:
                return await read_volumes(self.pod, self.machine, self.simulation)
            except MountError as problem:
                self.event("FailedMount", str(problem), warning=True)
                await self.simulation.back_off(min(tries, _QUICK_TRIES), self.machine)
                tries += 1

    async def _start_sandbox(self) -> str:
        """Return the pod's IP address, always the same, once its sandbox runs; report every failure on the way."""
        machine, tries = self.machine, 0
        while (handler := await read_handler(self.pod, self.simulation)) not in machine.handlers:
            problem = "rpc error: code = Unknown desc = failed to get sandbox runtime: "
            problem += f'no runtime for "{handler}" is configured'
            if handler is None:
                runtime_class = self.pod["spec"]["runtimeClassName"]
                problem = f'failed to get RuntimeClass "{runtime_class}": runtimeclass.node.k8s.io not found'
            self.event("FailedCreatePodSandBox", f"Failed to create pod sandbox: {problem}", warning=True)
            await self.simulation.back_off(tries, machine, partial(_has_handler, machine, handler))
            tries += 1
        if self.pod["spec"].get("hostNetwork"):
            return machine.address
        return f"10.244.{zlib.crc32(machine.name.encode()) % 256}.{zlib.crc32(self.uid.encode()) % 250 + 2}"

    async def _initialize(self) -> bool:
        """Run the init containers one after the other; False if the pod failed on the way."""
        specs = self.pod["spec"].get("initContainers") or ()
        for spec, record in zip(specs, self.inits, strict=True):
            if record.exit_code != 0 and await self.runner.run_to_end(spec, record, init=True) != 0:
                return False
        return True

    async def _end(self) -> None:
        if self._life is not None:
            self._life.cancel()
        metadata = self.pod["metadata"]
        grace = metadata.get("deletionGracePeriodSeconds", 30)
        self._record_killing()
        await self.simulation.sleep(min(grace, self.simulation.timings.termination))
        codes = self.runner.stop_all()
        for record in self._running():
            record.end(codes.get(record.name, _TERMINATED))
        self.machine.release(self.uid)
        await self._status.flush()
        try:
            await self.simulation.api.delete(PODS, metadata["name"], metadata["namespace"], grace_seconds=0)
        except ApiError as error:
            if error.code not in {NOT_FOUND, CONFLICT}:
                _log.warning("pod %s: %s", self.name, error)

    def _record_killing(self) -> None:
        for record in self._running():
            self.event("Killing", f"Stopping container {record.name}")
