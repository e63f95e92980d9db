"""Run the containers of one pod: pull images, create, start, probe, restart with back-off, stop."""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Callable

from gpu_provision.sandbox.api import ApiError, Object
from gpu_provision.sandbox.faults import NodeFault
from gpu_provision.sandbox.kubelet.container import (
    Container,
    ContainerStartError,
    MissingReferenceError,
    Program,
    environment,
    expand,
    read_handler,
)
from gpu_provision.sandbox.kubelet.filesystem import Filesystem, ReadOnlyMountError, build_mounts
from gpu_provision.sandbox.kubelet.pod_status import ContainerRecord, PodContext, image_id, restarts
from gpu_provision.sandbox.kubelet.programs import find_program
from gpu_provision.sandbox.kubelet.simulation import MAX_BACK_OFF

_MARKER = ".driver-ctr-ready"
_VALIDATIONS = "/run/nvidia/validations"
_MARKED = ("GDRCOPY_ENABLED", "GDS_ENABLED", "GPU_DIRECT_RDMA_ENABLED")
_SCRIPT = re.compile(r"/[\w./-]+\.sh\b")
_REMOVED_BY_HOOK = re.compile(r"rm\s+(?:-\w+\s+)*([^;&|]+)")
_IMAGE_NOT_FOUND = (
    'rpc error: code = NotFound desc = failed to pull and unpack image "{image}": failed to resolve '
    'reference "{image}": {image}: not found'
)
_START_ERROR = 128


class ContainerRunner:
    """The containers of one pod.

    Attributes:
        contents: The files of the pod's volumes, once they are mounted.
    """

    def __init__(self, context: PodContext, changed: Callable[[], None]) -> None:
        """Nothing runs yet; ``changed`` is called when the pod's status is another."""
        self._context, self._changed = context, changed
        self.contents: dict[str, dict[str, str]] = {}
        self._running: dict[str, tuple[Container, Program]] = {}
        self._tasks: dict[str, asyncio.Task[int]] = {}
        self._struck: set[str] = set()

    async def run_to_end(self, spec: Object, record: ContainerRecord, *, init: bool) -> int:
        """Run a container until it ends for good; return its exit code."""
        policy = self._context.pod["spec"].get("restartPolicy", "Always")
        if init and policy != "Never":
            policy = "OnFailure"
        field = f"spec.{'initContainers' if init else 'containers'}{{{record.name}}}"
        crashes = 0
        while True:
            code = await self._run_once(spec, record, field)
            if not restarts(policy, code):
                return code
            record.restart()
            if crashes:
                await self._back_off(record, field, crashes)
            crashes += 1

    async def _run_once(self, spec: Object, record: ContainerRecord, field: str) -> int:
        context, machine, simulation = self._context, self._context.machine, self._context.simulation
        adopted = context.adopted and record.running
        if not adopted:
            await self._pull(spec, record, field)
            await simulation.sleep(simulation.timings.container_start)
        container = await self._create(spec, record, field, adopted=adopted)
        if not adopted:
            record.run(secrets.token_hex(32), machine.spec.runtime.split(":")[0], machine.start_time())
            context.event("Created", f"Created container: {record.name}", field)
            has_probe = any(spec.get(kind) for kind in ("startupProbe", "readinessProbe"))
            self._report(container, record, started="startupProbe" not in spec, ready=not has_probe)
        code, reason, message = await self._execute(container, field)
        record.end(code, reason, message)
        self._changed()
        return code

    async def _pull(self, spec: Object, record: ContainerRecord, field: str) -> None:
        """Return once the image is there; report every failure on the way."""
        context, simulation, image, tries = self._context, self._context.simulation, str(spec.get("image", "")), 0
        while not await self._try_to_pull(spec, image, field):
            tries += 1
            fault = self._fault("image-pull-fails", image)
            message = str((fault and fault.get("message")) or _IMAGE_NOT_FOUND.format(image=image))
            context.event("Failed", f'Failed to pull image "{image}": {message}', field, warning=True)
            context.event("Failed", "Error: ErrImagePull", field, warning=True)
            record.wait("ErrImagePull", message)
            self._changed()
            await simulation.pause()
            back_off = f'Back-off pulling image "{image}"'
            record.wait("ImagePullBackOff", f"{back_off}: ErrImagePull: {message}")
            context.event("BackOff", back_off, field)
            self._changed()
            # A fault that goes away lets the next try succeed at once.
            await simulation.back_off(tries, context.machine, lambda: not self._fault("image-pull-fails", image))
        record.image_id = image_id(image)

    async def _try_to_pull(self, spec: Object, image: str, field: str) -> bool:
        """Pull an image; a machine pulls one at a time, as kubelets do by default."""
        context, machine, timings = self._context, self._context.machine, self._context.simulation.timings
        if image in machine.state.images and spec.get("imagePullPolicy") != "Always":
            context.event("Pulled", f'Container image "{image}" already present on machine', field)
            return True
        async with machine.pulling:
            context.event("Pulling", f'Pulling image "{image}"', field)
            if image not in machine.state.images:
                await context.simulation.sleep(timings.image_pull)
            if self._fault("image-pull-fails", image):
                return False
            if image not in machine.state.images:
                machine.state.images[image] = image_id(image)
                machine.save_and_notify()
        took = f"{timings.scale(timings.image_pull):.3g}s"
        context.event("Pulled", f'Successfully pulled image "{image}" in {took} ({took} including waiting)', field)
        return True

    def _fault(self, kind: str, image: str) -> NodeFault | None:
        return self._context.machine.faults.find_for_image(kind, self._context.machine.name, image)

    async def _create(self, spec: Object, record: ContainerRecord, field: str, *, adopted: bool) -> Container:
        context, machine = self._context, self._context.machine
        pod = {**context.pod, "status": {"hostIP": machine.address, "podIP": context.pod_ip}}
        while True:
            try:
                env = await environment(spec, pod, context.simulation.data_of)
                break
            except MissingReferenceError as problem:
                record.wait("CreateContainerConfigError", str(problem))
                context.event("Failed", f"Error: {problem}", field, warning=True)
                self._changed()
                await context.simulation.pause()
        mounts = build_mounts(spec, context.pod["spec"].get("volumes") or (), self.contents, machine.state.files)
        return Container(
            simulation=context.simulation,
            machine=machine,
            pod=pod,
            spec=spec,
            env=env,
            argv=tuple(expand(word, env) for word in (*(spec.get("command") or ()), *(spec.get("args") or ()))),
            files=Filesystem(mounts, machine.save_and_notify),
            handler=await read_handler(context.pod, context.simulation) or "",
            adopted=adopted,
            restart=record.restarts,
            on_up=lambda container: self._probe(container, record),
        )

    def _probe(self, container: Container, record: ContainerRecord) -> None:
        """Pass the probes of a container that serves; liveness probes always pass.

        The startup probe's script leaves its file, if the script is there.
        """
        spec, files = container.spec, container.files
        command = ((spec.get("startupProbe") or {}).get("exec") or {}).get("command") or ()
        found = _SCRIPT.search(" ".join(command))
        if found and not files.exists(found[0]):
            problem = f"Startup probe failed: sh: 0: cannot open {found[0]}: No such file"
            self._context.event("Unhealthy", problem, warning=True)
            return
        if found and _MARKER in files.read(found[0]):
            lines = (f"{name}: {container.env.get(name, 'false')}\n" for name in _MARKED)
            files.write(f"{_VALIDATIONS}/{_MARKER}", "".join(lines))
        probes = [probe for kind in ("startupProbe", "readinessProbe") if (probe := spec.get(kind))]
        if probes:
            delay = sum(probe.get("initialDelaySeconds", 0) for probe in probes)
            container.probing = asyncio.create_task(self._pass_probes(container, record, delay))
        else:
            self._report(container, record, started=True, ready=True)

    async def _pass_probes(self, container: Container, record: ContainerRecord, delay: float) -> None:
        await container.simulation.sleep(delay * container.simulation.timings.probe)
        if record.running:
            self._report(container, record, started=True, ready=True)

    def _report(self, container: Container, record: ContainerRecord, *, started: bool, ready: bool) -> None:
        record.started, record.ready = started, ready
        container.machine.wake()
        self._changed()

    async def _execute(self, container: Container, field: str) -> tuple[int, str, str]:
        """Run the program; return exit code, reason and message."""
        name = container.name
        try:
            program = find_program(container)
        except ContainerStartError as problem:
            self._context.event("Failed", f"Error: {problem}", field, warning=True)
            return _START_ERROR, "StartError", str(problem)
        if not container.adopted:
            self._context.event("Started", f"Started container {name}", field)
        self._changed()
        self._running[name] = (container, program)
        self._tasks[name] = asyncio.create_task(self._play(container, program))
        try:
            self.inject_crash()
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
        self._on_exit(container.name)
        return code

    def _crash(self, container: Container) -> int:
        self._struck.discard(container.name)
        fault = self._fault("crash-loop", container.image)
        container.log(str(fault.get("message", "fatal error: simulated crash")) if fault else "fatal error")
        self._on_exit(container.name)
        return int(fault.get("exit_code", 1)) if fault else 1

    def inject_crash(self) -> None:
        """Crash the containers that a fault is meant for."""
        for name, (container, _) in self._running.items():
            if name in self._tasks and self._fault("crash-loop", container.image):
                self._struck.add(name)
                self._tasks[name].cancel()

    def stop_all(self) -> dict[str, int]:
        """End what runs, after the files that preStop hooks remove; return the exit codes."""
        for task in self._tasks.values():
            task.cancel()
        codes = {name: program.exit_code for name, (_, program) in self._running.items()}
        for name, (container, _) in tuple(self._running.items()):
            hook = ((container.spec.get("lifecycle") or {}).get("preStop") or {}).get("exec") or {}
            for names in _REMOVED_BY_HOOK.findall(" ".join(hook.get("command") or ())):
                for pattern in names.split():
                    container.files.remove(pattern.strip("'\""))
            self._on_exit(name)
        return codes

    def forget_all(self) -> None:
        """Drop what runs, without hooks: the machine went away under it."""
        for task in self._tasks.values():
            task.cancel()
        self._running.clear()

    def _on_exit(self, name: str) -> None:
        entry = self._running.pop(name, None)
        if entry is not None:
            container, program = entry
            container.machine.clients.discard(container.key)
            program.on_stop(container)

    async def _back_off(self, record: ContainerRecord, field: str, crashes: int) -> None:
        context, timings = self._context, self._context.simulation.timings
        seconds = min(timings.back_off * 2 ** (crashes - 1), timings.back_off * MAX_BACK_OFF)
        pod = context.pod["metadata"]
        container = f"failed container={record.name} pod={pod['name']}_{pod['namespace']}({context.uid})"
        message = f"back-off {timings.scale(seconds):.3g}s restarting {container}"
        record.wait("CrashLoopBackOff", message)
        text = f"Back-off restarting failed container {record.name} in pod {pod['name']}_{pod['namespace']}"
        context.event("BackOff", f"{text}({context.uid})", field, warning=True)
        self._changed()
        await context.simulation.sleep(seconds)
