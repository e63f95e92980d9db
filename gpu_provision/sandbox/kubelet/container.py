"""One container: its environment and command line, its files, its GPUs, its output, its program."""

from __future__ import annotations

import asyncio
import fnmatch
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gpu_provision.sandbox.api import RUNTIME_CLASSES
from gpu_provision.sandbox.kubelet.filesystem import Filesystem
from gpu_provision.sandbox.kubelet.logs import LogKey
from gpu_provision.sandbox.kubelet.machine import Machine
from gpu_provision.sandbox.kubelet.simulation import Simulation

_NO_DEVICES = {"", "void", "none"}

_GPU_IMAGES = (
    "cuda*",
    "*vectoradd*",
    "k8s-device-plugin",
    "gpu-feature-discovery",
    "dcgm*",
    "tensorflow*",
    "pytorch*",
    "k8s-mig-manager",
    "gpu-jupyter*",
)
"""Images whose own environment says NVIDIA_VISIBLE_DEVICES=all."""

_MOUNTED_SCRIPTS = {"/bin/entrypoint.sh"}
"""Scripts that no image has: the operands' manifests bring them."""

_MAX_MESSAGE = 4096  # bytes that a kubelet takes
_KEYED = re.compile(r"metadata\.(labels|annotations)\['([^']+)'\]")
_VARIABLE = re.compile(r"\$(\$)?\(([A-Za-z_][A-Za-z0-9_.-]*)\)")
_REFERENCES = {"configMapKeyRef": "ConfigMap", "secretKeyRef": "Secret"}

DataOf = Callable[[str, str, str], Awaitable["dict[str, str] | None"]]
"""Returns the data of ``(namespace, "configmaps" | "secrets", name)``; None if there is no such object."""


@dataclass(frozen=True, slots=True)
class Program:
    """A simulated program.

    Attributes:
        run: Plays the program; returns its exit code, or runs until the container ends.
        stopped: What becomes of the machine when the program ends, by itself or not; it may have done nothing yet.
        exit_code: How it ends when it is asked to.
    """

    run: Callable[[Container], Awaitable[int]]
    on_stop: Callable[[Container], None] = lambda _: None
    exit_code: int = 0


class ContainerStartError(Exception):
    """The container runtime could not start the command; the text is the runtime's."""

    def __init__(self, command: str) -> None:
        """Put it in the runtime's words."""
        super().__init__(
            "failed to create containerd task: failed to create shim task: OCI runtime create failed: "
            f'runc create failed: unable to start container process: exec: "{command}": stat {command}: '
            "no such file or directory: unknown"
        )


class MissingReferenceError(Exception):
    """A container's environment names an object or key that does not exist; the text is the kubelet's."""


class Container:
    """One life of one container.

    Attributes:
        image_name: The last part of its image's name; ``tag`` is the image's tag.
        key: Names this container on its machine.
        adopted: Whether it ran before this process did.
    """

    def __init__(  # noqa: PLR0913  the parts that a kubelet puts together for a container
        self,
        *,
        simulation: Simulation,
        machine: Machine,
        pod: Mapping[str, Any],
        spec: Mapping[str, Any],
        env: Mapping[str, str],
        argv: tuple[str, ...],
        files: Filesystem,
        handler: str,
        adopted: bool,
        restart: int,
        on_up: Callable[[Container], None],
    ) -> None:
        """Put the parts together; ``on_up`` is called when the process serves."""
        self.simulation, self.machine, self.pod, self.spec = simulation, machine, pod, spec
        self.argv, self.files, self.handler, self.adopted = argv, files, handler, adopted
        self.name, self.image = str(spec["name"]), str(spec.get("image", ""))
        self.image_name, _, self.tag = self.image.split("@", maxsplit=1)[0].rsplit("/", 1)[-1].partition(":")
        metadata = pod["metadata"]
        self.namespace, self.pod_name = str(metadata["namespace"]), str(metadata["name"])
        self.key = f"{metadata['uid']}/{self.name}"
        names = (self.image_name, f"{self.image_name}:{self.tag}")
        uses_gpu = any(fnmatch.fnmatchcase(name, glob) for glob in _GPU_IMAGES for name in names)
        self.env = {**({"NVIDIA_VISIBLE_DEVICES": "all"} if uses_gpu else {}), **env}
        self.probing: asyncio.Task[None] | None = None
        self._on_up, self._muted = on_up, adopted
        self._log = LogKey(self.namespace, self.pod_name, str(metadata["uid"]), self.name, restart)
        self._message: list[str] | None = None

    def log(self, *lines: str) -> None:
        """Print lines; a container that was only taken over again does not repeat itself until it is up."""
        if self._message is not None:
            self._message += lines
        if lines and not self._muted:
            self.simulation.write_log(self._log, "".join(f"{line}\n" for line in lines))

    def keep_message(self) -> None:
        """Make what it prints from now on its termination message."""
        self._message = []

    @property
    def message(self) -> str:
        """The termination message, as long as the kubelet takes it."""
        return "".join(f"{line}\n" for line in self._message or ())[:_MAX_MESSAGE]

    def report_started(self) -> None:
        """Say that the process serves: its probes pass from now on, if what they need is there."""
        self._muted = False
        self._on_up(self)

    def hold_gpu(self) -> None:
        """Use the GPU until the container ends: its driver cannot be unloaded meanwhile."""
        if self.visible_gpus:
            self.machine.clients.add(self.key)

    async def sleep(self, seconds: float) -> None:
        """Let time pass."""
        await self.simulation.sleep(seconds)

    async def wait_until(self, predicate: Callable[[], bool], waiting: str = "") -> None:
        """Wait until something holds on this machine; say once what is waited for."""
        if waiting and not predicate():
            self.log(waiting)
        await self.machine.wait_until(predicate)

    async def run_forever(self) -> int:
        """Run until the pod ends."""
        self.report_started()
        await self.machine.wait_until(lambda: False)
        return 0

    @property
    def visible_gpus(self) -> int:
        """GPUs that a CUDA program in this container finds: those granted, or those that the runtime injects."""
        if not self.machine.state.driver:
            return 0
        granted = len(self.machine.state.granted.get(self.key, ()))
        if granted:
            return min(granted, self.machine.gpus)
        devices = (self.pod["metadata"].get("annotations") or {}).get(f"nvidia.cdi.k8s.io/container.{self.name}", "")
        by_plugin = self.machine.has_nri_plugin and devices == "management.nvidia.com/gpu=all"
        requested = requested_devices(self.spec, self.machine.state.resource)
        injected = (self.handler.startswith("nvidia") or by_plugin) and not requested
        wanted = self.env.get("NVIDIA_VISIBLE_DEVICES", "")
        return self.machine.gpus if injected and wanted not in _NO_DEVICES else 0

    @property
    def script(self) -> str:
        """The shell script that the command line runs, from its text or from a mounted file; empty if none."""
        for index, word in enumerate(self.argv):
            if word in {"-c", "-ec", "-exc", "-lc", "-xc"} and index + 1 < len(self.argv):
                return self.argv[index + 1]
        for word in self.argv[:2]:
            if self.files.exists(word):
                return self.files.read(word)
            if word in _MOUNTED_SCRIPTS:
                raise ContainerStartError(word)
        return ""


def requested_devices(container: Mapping[str, Any], resource: str = "") -> int:
    """Return how many devices of a resource, or of any of NVIDIA's, a container's limits request."""
    limits = (container.get("resources") or {}).get("limits") or {}
    names = [resource] if resource else [name for name in limits if name.startswith("nvidia.com/")]
    return sum(int(limits.get(name, 0)) for name in names)


async def read_handler(pod: Mapping[str, Any], simulation: Simulation) -> str | None:
    """Return the handler that the pod's RuntimeClass names; None if there is no such class."""
    name = pod["spec"].get("runtimeClassName")
    found = await simulation.api.find(RUNTIME_CLASSES, name) if name else {}
    return None if found is None else str(found.get("handler", ""))


def read_field(pod: Mapping[str, Any], path: str) -> str:
    """Return a field of a pod as the downward API does; empty for one that is not set."""
    keyed = _KEYED.fullmatch(path)
    value: Any = pod
    for part in ("metadata", keyed[1], keyed[2]) if keyed else path.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return "" if value is None else str(value)


def expand(text: str, env: Mapping[str, str]) -> str:
    """Replace ``$(NAME)`` by the variable's value; ``$$(NAME)`` is left as ``$(NAME)``."""
    return _VARIABLE.sub(lambda match: f"$({match[2]})" if match[1] else env.get(match[2], match[0]), text)


async def environment(container: Mapping[str, Any], pod: Mapping[str, Any], data_of: DataOf) -> dict[str, str]:
    """Return a container's environment. Raises MissingReferenceError."""
    env: dict[str, str] = {}
    for entry in container.get("env") or ():
        source, value = entry.get("valueFrom") or {}, str(entry.get("value", ""))
        if "fieldRef" in source:
            value = read_field(pod, source["fieldRef"]["fieldPath"])
        for reference, kind in _REFERENCES.items():
            if reference in source:
                found = await _read_key(source[reference], kind, pod["metadata"].get("namespace", ""), data_of)
                if found is None:
                    break
                value = found
        else:
            env[entry["name"]] = expand(value, env)
    return env


async def _read_key(reference: Mapping[str, Any], kind: str, namespace: str, data_of: DataOf) -> str | None:
    name, key = reference["name"], reference["key"]
    data = await data_of(namespace, f"{kind.lower()}s", name)
    if data is not None and key in data:
        return data[key]
    if reference.get("optional"):
        return None
    missing = f"couldn't find key {key} in {kind} {namespace}/{name}"
    raise MissingReferenceError(f'{kind.lower()} "{name}" not found' if data is None else missing)
