"""Run the containers of one pod: pull images, create, start, probe, restart with back-off, stop."""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Callable

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

_MARKER = ".driver-ctr-ready"
_VALIDATIONS = "/run/nvidia/validations"
_SCRIPT = re.compile(r"/[\w./-]+\.sh\b")
_IMAGE_NOT_FOUND = (
    'rpc error: code = NotFound desc = failed to pull and unpack image "{image}": failed to resolve '
    'reference "{image}": {image}: not found'
)
Changed = Callable[[], None]


class PodContext:
    """A pod on its machine, as all that runs it knows it.

    Attributes:
        pod: The object as it is now.
        adopted: Whether its containers ran before this process did.
        pod_ip: Its address; empty before its network is there.
    """

    def __init__(self, simulation: Simulation, machine: Machine, pod: Object) -> None:
        """Take a pod that is bound to the machine."""
        self.simulation, self.machine, self.pod = simulation, machine, pod
        self.uid = str(pod["metadata"]["uid"])
        self.adopted = False
        self.pod_ip = ""

    def note(self, reason: str, message: str, field: str = "") -> None:
        """Record an event about something that went as it should."""
        self.simulation.events.normal(self.pod, reason, message, field=field)

    def warn(self, reason: str, message: str, field: str = "") -> None:
        """Record an event about a problem."""
        self.simulation.events.warning(self.pod, reason, message, field=field)


class Probes:
    """The startup and readiness probes of one container; liveness probes always pass."""

    def __init__(self, context: PodContext, container: Container, record: ContainerRecord, changed: Changed) -> None:
        """Prepare for one life of the container."""
        self._context, self._container, self._record, self._changed = context, container, record, changed
        self._probes = [probe for kind in ("startupProbe", "readinessProbe") if (probe := container.spec.get(kind))]
        command = ((container.spec.get("startupProbe") or {}).get("exec") or {}).get("command") or ()
        found = _SCRIPT.search(" ".join(command))
        self._script = found[0] if found else ""
        self._task: asyncio.Task[None] | None = None

    def started(self) -> None:
        """Note that the process runs: without probes that is all there is to it."""
        if not self._container.adopted:
            has_startup = "startupProbe" in self._container.spec
            self._set(started=not has_startup, ready=not self._probes)

    def passed(self) -> None:
        """Note that the process serves; the startup probe's script leaves its file, if the script is there."""
        files = self._container.files
        if self._script and not files.exists(self._script):
            problem = f"sh: 0: cannot open {self._script}: No such file"
            self._context.warn("Unhealthy", f"Startup probe failed: {problem}")
            return
        if self._script and _MARKER in files.read(self._script):
            lines = ("GDRCOPY_ENABLED=false", "GDS_ENABLED=false", "GPU_DIRECT_RDMA_ENABLED=false")
            files.write(f"{_VALIDATIONS}/{_MARKER}", "\n".join(lines) + "\n")
        if self._probes:
            self._task = asyncio.create_task(self._pass())
        else:
            self._set(started=True, ready=True)

    async def _pass(self) -> None:
        delay = sum(probe.get("initialDelaySeconds", 0) for probe in self._probes)
        await self._context.simulation.sleep(delay * self._context.simulation.timings.probe)
        if self._record.running:
            self._set(started=True, ready=True)

    def _set(self, *, started: bool, ready: bool) -> None:
        self._record.started, self._record.ready = started, ready
        self._container.machine.wake()
        self._changed()


class Puller:
    """Pulls images on behalf of pods; a machine pulls one image at a time, as kubelets do by default."""

    def __init__(self) -> None:
        """Prepare."""
        self._locks: dict[str, asyncio.Lock] = {}

    async def pull(
        self, context: PodContext, spec: Object, record: ContainerRecord, *, field: str, changed: Changed
    ) -> None:
        """Return once the image is there; report every failure on the way."""
        image, tries, machine = str(spec.get("image", "")), 0, context.machine
        while not await self._try(context, spec, image, field):
            tries += 1
            fault = machine.faults.on_image("image-pull-fails", machine.name, image)
            message = str((fault and fault.get("message")) or _IMAGE_NOT_FOUND.format(image=image))
            context.warn("Failed", f'Failed to pull image "{image}": {message}', field)
            context.warn("Failed", "Error: ErrImagePull", field)
            record.wait("ErrImagePull", message)
            changed()
            await context.simulation.pause()
            back_off = f'Back-off pulling image "{image}"'
            record.wait("ImagePullBackOff", f"{back_off}: ErrImagePull: {message}")
            context.note("BackOff", back_off, field)
            changed()
            # A fault that goes away lets the next try succeed at once.
            await context.simulation.back_off(
                tries, machine, lambda: machine.faults.on_image("image-pull-fails", machine.name, image) is None
            )
        record.image_id = image_id(image)

    async def _try(self, context: PodContext, spec: Object, image: str, field: str) -> bool:
        machine, simulation = context.machine, context.simulation
        if image in machine.state.images and spec.get("imagePullPolicy") != "Always":
            context.note("Pulled", f'Container image "{image}" already present on machine', field)
            return True
        async with self._locks.setdefault(machine.name, asyncio.Lock()):
            context.note("Pulling", f'Pulling image "{image}"', field)
            if image not in machine.state.images:
                await simulation.sleep(simulation.timings.image_pull)
            if machine.faults.on_image("image-pull-fails", machine.name, image):
                return False
            if image not in machine.state.images:
                machine.state.images[image] = image_id(image)
                machine.changed()
        took = f"{simulation.timings.scaled(simulation.timings.image_pull):.3g}s"
        context.note("Pulled", f'Successfully pulled image "{image}" in {took} ({took} including waiting)', field)
        return True


LONGEST_BACK_OFF = 30  # times the first one; the kubelet's 10 s grow to 300 s
_REMOVED_BY_HOOK = re.compile(r"rm\s+(?:-\w+\s+)*([^;&|]+)")
_ABOVE = 128


class Runner:
    """The containers of one pod."""

    def __init__(self, context: PodContext, puller: Puller, changed: Changed) -> None:
        """Nothing runs yet."""
        self._context, self._puller, self._changed = context, puller, changed
        self._contents: dict[str, dict[str, str]] = {}
        self._running: dict[str, tuple[Container, Program]] = {}
        self._tasks: dict[str, asyncio.Task[int]] = {}
        self._struck: set[str] = set()

    def prepare(self, contents: dict[str, dict[str, str]]) -> None:
        """Take the files of the pod's volumes."""
        self._contents = contents

    @staticmethod
    def restarts(policy: str, exit_code: int) -> bool:
        """Tell whether a container that ended is started again."""
        return policy == "Always" or (policy == "OnFailure" and exit_code != 0)

    async def run_to_end(self, spec: Object, record: ContainerRecord, *, init: bool) -> int:
        """Run a container until it ends for good; return its exit code."""
        policy = self._context.pod["spec"].get("restartPolicy", "Always")
        if init and policy != "Never":
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
        adopted = self._context.adopted and record.running
        if not adopted:
            await self._pull(spec, record, field)
        container = await self._created(spec, record, field, adopted=adopted)
        if not adopted:
            machine = self._context.machine
            record.run(secrets.token_hex(32), machine.spec.runtime.split(":")[0], machine.start_time())
            self._context.note("Created", f"Created container: {record.name}", field)
        probes = Probes(self._context, container, record, self._changed)
        container.attach(probes.passed)
        probes.started()
        code, reason, message = await self._execute(container, field)
        record.end(code, reason, message)
        self._changed()
        return code

    async def _pull(self, spec: Object, record: ContainerRecord, field: str) -> None:
        context = self._context
        await self._puller.pull(context, spec, record, field=field, changed=self._changed)
        await context.simulation.sleep(context.simulation.timings.container_start)

    async def _created(self, spec: Object, record: ContainerRecord, field: str, *, adopted: bool) -> Container:
        context = self._context
        namespace = context.pod["metadata"]["namespace"]

        async def lookup(resource: str, name: str) -> dict[str, str] | None:
            return await context.simulation.data_of(namespace, resource, name)

        pod = {**context.pod, "status": self._addresses()}
        while True:
            try:
                env = await environment(spec, pod, lookup)
                break
            except MissingReferenceError as problem:
                record.wait("CreateContainerConfigError", str(problem))
                context.warn("Failed", f"Error: {problem}", field)
                self._changed()
                await context.simulation.pause()
        machine = context.machine
        mounts = build_mounts(spec, context.pod["spec"].get("volumes") or (), self._contents, machine.state.files)
        return Container(
            simulation=context.simulation,
            machine=machine,
            pod=pod,
            spec=spec,
            env=env,
            argv=command_line(spec, env),
            files=Filesystem(mounts, machine.changed),
            handler=await read_handler(context.pod, context.simulation) or "",
            adopted=adopted,
            restart=record.restarts,
        )

    def _addresses(self) -> Object:
        context = self._context
        return {"hostIP": context.machine.address, "podIP": context.pod_ip}

    async def _execute(self, container: Container, field: str) -> tuple[int, str, str]:
        """Run the program; return exit code, reason and message."""
        name = container.name
        try:
            program = find_program(container)
        except ContainerStartError as problem:
            self._context.warn("Failed", f"Error: {problem}", field)
            return _ABOVE, "StartError", str(problem)
        if not container.adopted:
            self._context.note("Started", f"Started container {name}", field)
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
        machine = self._context.machine
        for name, (container, _) in self._running.items():
            if machine.faults.on_image("crash-loop", machine.name, container.image) and name in self._tasks:
                self._struck.add(name)
                self._tasks[name].cancel()

    def stop_all(self) -> dict[str, int]:
        """End what runs, hooks first; return the exit codes."""
        for task in self._tasks.values():
            task.cancel()
        codes = {name: program.exit_code for name, (_, program) in self._running.items()}
        for name, (container, _) in tuple(self._running.items()):
            _pre_stop(container)
            self._ended(name)
        return codes

    def forget_all(self) -> None:
        """Drop what runs, without hooks: the machine went away under it."""
        for task in self._tasks.values():
            task.cancel()
        self._running.clear()

    def _ended(self, name: str) -> None:
        entry = self._running.pop(name, None)
        if entry is not None:
            container, program = entry
            container.machine.clients.discard(container.key)
            program.stopped(container)

    async def _back_off(self, record: ContainerRecord, field: str, crashes: int) -> None:
        context, timings = self._context, self._context.simulation.timings
        record.restart()
        if crashes == 0:
            return
        seconds = min(timings.back_off * 2 ** (crashes - 1), timings.back_off * LONGEST_BACK_OFF)
        pod = context.pod["metadata"]
        whom = f"restarting failed container={record.name} pod={pod['name']}_{pod['namespace']}({context.uid})"
        record.wait("CrashLoopBackOff", f"back-off {timings.scaled(seconds):.3g}s {whom}")
        text = f"Back-off restarting failed container {record.name} in pod {pod['name']}_{pod['namespace']}"
        context.warn("BackOff", f"{text}({context.uid})", field)
        self._changed()
        await context.simulation.sleep(seconds)


def _pre_stop(container: Container) -> None:
    """Do what the container's preStop hook says, as far as it removes files."""
    hook = ((container.spec.get("lifecycle") or {}).get("preStop") or {}).get("exec") or {}
    for names in _REMOVED_BY_HOOK.findall(" ".join(hook.get("command") or ())):
        for pattern in names.split():
            container.files.remove(pattern.strip("'\""))
