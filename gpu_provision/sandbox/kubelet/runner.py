"""Run the containers of one pod: pull images, create, start, probe, restart with back-off, stop."""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from gpu_provision.sandbox.api import ApiError, Object
from gpu_provision.sandbox.kubelet.container import (
    Container,
    ContainerStartError,
    MissingReferenceError,
    Program,
    command_line,
    environment,
)
from gpu_provision.sandbox.kubelet.filesystem import Filesystem, ReadOnlyMountError, build_mounts
from gpu_provision.sandbox.kubelet.machine import Machine
from gpu_provision.sandbox.kubelet.pod_sandbox import read_handler
from gpu_provision.sandbox.kubelet.pod_status import ContainerRecord, image_id
from gpu_provision.sandbox.kubelet.programs import find_program
from gpu_provision.sandbox.kubelet.simulation import Simulation

if TYPE_CHECKING:
    from gpu_provision.sandbox.kubelet.pod import PodWorker

_MARKER = ".driver-ctr-ready"
_VALIDATIONS = "/run/nvidia/validations"
_SCRIPT = re.compile(r"/[\w./-]+\.sh\b")


class Probes:
    """The startup and readiness probes of one container; liveness probes always pass."""

    def __init__(
        self, container: Container, record: ContainerRecord, simulation: Simulation, changed: Callable[[], None]
    ) -> None:
        """Prepare for one life of the container."""
        self._container, self._record, self._simulation, self._changed = container, record, simulation, changed
        self._startup: Mapping[str, Any] | None = container.spec.get("startupProbe")
        self._readiness: Mapping[str, Any] | None = container.spec.get("readinessProbe")
        self._task: asyncio.Task[None] | None = None

    def started(self) -> None:
        """Note that the process runs: without probes that is all there is to it."""
        if self._container.adopted:
            return
        self._set(started=self._startup is None, ready=self._startup is None and self._readiness is None)

    def passed(self) -> None:
        """Note that the process serves."""
        if self._startup is None and self._readiness is None:
            self._set(started=True, ready=True)
            return
        problem = self._problem()
        if problem:
            self._simulation.events.warning(self._container.pod, "Unhealthy", f"Startup probe failed: {problem}")
            return
        self._mark()
        self._task = asyncio.create_task(self._pass())

    async def _pass(self) -> None:
        probes = [probe for probe in (self._startup, self._readiness) if probe]
        delay = sum(probe.get("initialDelaySeconds", 0) for probe in probes) * self._simulation.timings.probe
        await self._simulation.sleep(delay)
        if self._record.running:
            self._set(started=True, ready=True)

    def _set(self, *, started: bool, ready: bool) -> None:
        self._record.started, self._record.ready = started, ready
        self._container.machine.wake()
        self._changed()

    def _script(self) -> str:
        command = ((self._startup or {}).get("exec") or {}).get("command") or ()
        found = _SCRIPT.search(" ".join(command))
        return found[0] if found else ""

    def _problem(self) -> str:
        """Return why the startup probe cannot even run; empty if it can."""
        script = self._script()
        if not script or self._container.files.exists(script):
            return ""
        return f"sh: 0: cannot open {script}: No such file"

    def _mark(self) -> None:
        """Leave the file that the startup probe's script leaves."""
        script = self._script()
        if script and _MARKER in self._container.files.read(script):
            lines = ("GDRCOPY_ENABLED=false", "GDS_ENABLED=false", "GPU_DIRECT_RDMA_ENABLED=false")
            self._container.files.write(f"{_VALIDATIONS}/{_MARKER}", "\n".join(lines) + "\n")


class Puller:
    """Pulls images on behalf of pods; a machine pulls one image at a time, as kubelets do by default."""

    def __init__(self, simulation: Simulation) -> None:
        """Prepare."""
        self._simulation = simulation
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
            self._simulation.events.warning(pod, "Failed", f'Failed to pull image "{image}": {message}', field=field)
            self._simulation.events.warning(pod, "Failed", "Error: ErrImagePull", field=field)
            record.wait("ErrImagePull", message)
            changed()
            await self._simulation.pause()
            back_off = f'Back-off pulling image "{image}"'
            record.wait("ImagePullBackOff", f"{back_off}: ErrImagePull: {message}")
            self._simulation.events.normal(pod, "BackOff", back_off, field=field)
            changed()
            await self._retry(machine, image, tries)
        record.image_id = image_id(image)

    async def _try(self, machine: Machine, pod: Mapping[str, Any], spec: Mapping[str, Any], field: str) -> bool:
        image = str(spec.get("image", ""))
        present = image in machine.state.images
        if present and spec.get("imagePullPolicy") != "Always":
            text = f'Container image "{image}" already present on machine'
            self._simulation.events.normal(pod, "Pulled", text, field=field)
            return True
        async with self._locks.setdefault(machine.name, asyncio.Lock()):
            self._simulation.events.normal(pod, "Pulling", f'Pulling image "{image}"', field=field)
            if image not in machine.state.images:
                await self._simulation.sleep(self._simulation.timings.image_pull)
            if machine.faults.on_image("image-pull-fails", machine.name, image):
                return False
            if image not in machine.state.images:
                machine.state.images[image] = image_id(image)
                machine.changed()
        took = f"{self._simulation.timings.scaled(self._simulation.timings.image_pull):.3g}s"
        text = f'Successfully pulled image "{image}" in {took} ({took} including waiting)'
        self._simulation.events.normal(pod, "Pulled", text, field=field)
        return True

    async def _retry(self, machine: Machine, image: str, tries: int) -> None:
        """Wait for the back-off, or for the fault to go away: a removed fault lets the next try succeed."""

        def lifted() -> bool:
            return machine.faults.on_image("image-pull-fails", machine.name, image) is None

        await self._simulation.back_off(tries, machine, lifted)

    @staticmethod
    def _refusal(machine: Machine, image: str) -> str:
        fault = machine.faults.on_image("image-pull-fails", machine.name, image)
        default = (
            f'rpc error: code = NotFound desc = failed to pull and unpack image "{image}": failed to resolve '
            f'reference "{image}": {image}: not found'
        )
        return str(fault.get("message", default)) if fault else default


LONGEST_BACK_OFF = 30  # times the first one; the kubelet's 10 s grow to 300 s
_REMOVED_BY_HOOK = re.compile(r"rm\s+(?:-\w+\s+)*([^;&|]+)")
_ABOVE = 128
_SIGTERM = 143


class Runner:
    """The containers of one pod."""

    def __init__(self, worker: PodWorker, puller: Puller, changed: Callable[[], None]) -> None:
        """Nothing runs yet."""
        self._worker, self._puller, self._changed = worker, puller, changed
        self._contents: dict[str, dict[str, str]] = {}
        self._running: dict[str, tuple[Container, Program]] = {}
        self._tasks: dict[str, asyncio.Task[int]] = {}
        self._struck: set[str] = set()
        self._sidecars: list[asyncio.Task[int]] = []

    def prepare(self, contents: dict[str, dict[str, str]]) -> None:
        """Take the files of the pod's volumes."""
        self._contents = contents

    @staticmethod
    def restarts(policy: str, exit_code: int) -> bool:
        """Tell whether a container that ended is started again."""
        return policy == "Always" or (policy == "OnFailure" and exit_code != 0)

    async def start_sidecar(self, spec: Object, record: ContainerRecord) -> None:
        """Start an init container that goes on running, and return once it has started."""
        self._sidecars.append(asyncio.create_task(self.run_to_end(spec, record, init=True, policy="Always")))
        await self._worker.machine.until(lambda: record.started)

    async def run_to_end(self, spec: Object, record: ContainerRecord, *, init: bool, policy: str = "") -> int:
        """Run a container until it ends for good; return its exit code."""
        policy = policy or self._worker.pod["spec"].get("restartPolicy", "Always")
        if init and policy != "Never" and not spec.get("restartPolicy"):
            policy = "OnFailure"
        field = f"spec.{'initContainers' if init else 'containers'}{{{record.name}}}"
        crashes = 0
        while True:
            code = await self._once(spec, record, field)
            if not self.restarts(policy, code):
                return code
            await self._back_off(record, field, crashes)
            crashes += 1

    async def _once(self, spec: Object, record: ContainerRecord, field: str) -> int:
        adopted = self._worker.adopted and record.running
        if not adopted:
            await self._pull(spec, record, field)
        container = await self._created(spec, record, field, adopted=adopted)
        if not adopted:
            machine = self._worker.machine
            record.run(secrets.token_hex(32), machine.spec.runtime.split(":")[0], machine.start_time())
            self._say("Created", f"Created container: {record.name}", field)
        probes = Probes(container, record, self._worker.simulation, self._changed)
        container.attach(probes.passed)
        probes.started()
        code, reason, message = await self._execute(container, field)
        record.end(code, reason, message)
        self._changed()
        return code

    async def _pull(self, spec: Object, record: ContainerRecord, field: str) -> None:
        worker = self._worker
        await self._puller.pull(worker.machine, worker.pod, spec, record, field=field, changed=self._changed)
        await worker.simulation.sleep(worker.simulation.timings.container_start)

    async def _created(self, spec: Object, record: ContainerRecord, field: str, *, adopted: bool) -> Container:
        worker = self._worker
        namespace = worker.pod["metadata"]["namespace"]

        async def lookup(resource: str, name: str) -> dict[str, str] | None:
            return await worker.simulation.data_of(namespace, resource, name)

        pod = {**worker.pod, "status": self._addresses()}
        while True:
            try:
                env = await environment(spec, pod, lookup)
                break
            except MissingReferenceError as problem:
                record.wait("CreateContainerConfigError", str(problem))
                worker.simulation.events.warning(worker.pod, "Failed", f"Error: {problem}", field=field)
                self._changed()
                await worker.simulation.pause()
        machine = worker.machine
        mounts = build_mounts(spec, worker.pod["spec"].get("volumes") or (), self._contents, machine.state.files)
        return Container(
            simulation=worker.simulation,
            machine=machine,
            pod=pod,
            spec=spec,
            env=env,
            argv=command_line(spec, env),
            files=Filesystem(mounts, machine.changed),
            handler=await read_handler(worker.pod, worker.simulation) or "",
            adopted=adopted,
            restart=record.restarts,
        )

    def _addresses(self) -> Object:
        worker = self._worker
        return {"hostIP": worker.machine.address, "podIP": worker.pod_ip}

    async def _execute(self, container: Container, field: str) -> tuple[int, str, str]:
        """Run the program; return exit code, reason and message."""
        name = container.name
        try:
            program = find_program(container)
        except ContainerStartError as problem:
            self._worker.simulation.events.warning(self._worker.pod, "Failed", f"Error: {problem}", field=field)
            return _ABOVE, "StartError", str(problem)
        if not container.adopted:
            self._say("Started", f"Started container {name}", field)
        self._changed()
        self._running[name] = (container, program)
        self._tasks[name] = asyncio.create_task(self._play(container, program))
        try:
            self.strike()
            return await self._tasks[name], "", container.message
        except asyncio.CancelledError:
            if name not in self._struck:
                raise
            return self._crash(container), "", ""
        finally:
            if name in self._tasks:
                self._tasks.pop(name).cancel()

    async def _play(self, container: Container, program: Program) -> int:
        try:
            code = await program.run(container)
        except ReadOnlyMountError as problem:
            container.log(f"cannot create {problem}: Read-only file system")
            code = 1
        except (ApiError, KeyError) as problem:
            container.log(f"error: {problem}")
            code = 1
        self._ended(container.name)
        return code

    def _crash(self, container: Container) -> int:
        self._struck.discard(container.name)
        fault = container.machine.faults.on_image("crash-loop", container.machine.name, container.image)
        container.log(str(fault.get("message", "fatal error: simulated crash")) if fault else "fatal error")
        self._ended(container.name)
        return int(fault.get("exit_code", 1)) if fault else 1

    def strike(self) -> None:
        """Crash the containers that a fault is meant for."""
        machine = self._worker.machine
        for name, (container, _) in self._running.items():
            if machine.faults.on_image("crash-loop", machine.name, container.image) and name in self._tasks:
                self._struck.add(name)
                self._tasks[name].cancel()

    def stop_all(self) -> dict[str, int]:
        """End what runs, hooks first; return the exit codes."""
        for task in (*self._sidecars, *self._tasks.values()):
            task.cancel()
        codes = {name: program.exit_code for name, (_, program) in self._running.items()}
        for name, (container, _) in tuple(self._running.items()):
            _pre_stop(container)
            self._ended(name)
        return codes

    def forget_all(self) -> None:
        """Drop what runs, without hooks: the machine went away under it."""
        for task in (*self._sidecars, *self._tasks.values()):
            task.cancel()
        self._running.clear()
        self._sidecars.clear()

    def _ended(self, name: str) -> None:
        entry = self._running.pop(name, None)
        if entry is not None:
            container, program = entry
            container.machine.clients.discard(container.key)
            program.stopped(container)

    async def _back_off(self, record: ContainerRecord, field: str, crashes: int) -> None:
        worker, timings = self._worker, self._worker.simulation.timings
        record.restart()
        if crashes == 0:
            return
        seconds = min(timings.back_off * 2 ** (crashes - 1), timings.back_off * LONGEST_BACK_OFF)
        pod = worker.pod["metadata"]
        whom = f"restarting failed container={record.name} pod={pod['name']}_{pod['namespace']}({worker.uid})"
        record.wait("CrashLoopBackOff", f"back-off {timings.scaled(seconds):.3g}s {whom}")
        text = f"Back-off restarting failed container {record.name} in pod {pod['name']}_{pod['namespace']}"
        worker.simulation.events.warning(worker.pod, "BackOff", f"{text}({worker.uid})", field=field)
        self._changed()
        await worker.simulation.sleep(seconds)

    def _say(self, reason: str, message: str, field: str) -> None:
        self._worker.simulation.events.normal(self._worker.pod, reason, message, field=field)


def _pre_stop(container: Container) -> None:
    """Do what the container's preStop hook says, as far as it removes files."""
    hook = ((container.spec.get("lifecycle") or {}).get("preStop") or {}).get("exec") or {}
    for names in _REMOVED_BY_HOOK.findall(" ".join(hook.get("command") or ())):
        for pattern in names.split():
            container.files.remove(pattern.strip("'\""))
