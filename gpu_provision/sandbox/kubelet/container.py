"""One container: its environment and command line, its files, its GPUs, its output, its program."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpu_provision.sandbox.kubelet.filesystem import Filesystem
from gpu_provision.sandbox.kubelet.logs import LogKey
from gpu_provision.sandbox.kubelet.machine import Machine
from gpu_provision.sandbox.kubelet.node import GPU_RESOURCE
from gpu_provision.sandbox.kubelet.simulation import Simulation


def _nothing(_: Container) -> None:
    """Leave no trace."""


@dataclass(frozen=True, slots=True)
class Program:
    """A simulated program.

    Attributes:
        run: Plays the program; returns its exit code, or runs until the container ends.
        stopped: What becomes of the machine when the program ends, by itself or not; it may have done nothing yet.
        exit_code: How it ends when it is asked to.
    """

    run: Callable[[Container], Awaitable[int]]
    stopped: Callable[[Container], None] = _nothing
    exit_code: int = 0


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

_LONGEST_MESSAGE = 4096  # bytes that a kubelet takes


class ContainerStartError(Exception):
    """The container runtime could not start the command; the text is the runtime's."""

    def __init__(self, command: str) -> None:
        """Put it in the runtime's words."""
        super().__init__(
            "failed to create containerd task: failed to create shim task: OCI runtime create failed: "
            f'runc create failed: unable to start container process: exec: "{command}": stat {command}: '
            "no such file or directory: unknown"
        )


def split_image(image: str) -> tuple[str, str]:
    """Return the last part of an image's name, and its tag."""
    last = image.split("@", maxsplit=1)[0].rsplit("/", 1)[-1]
    name, _, tag = last.partition(":")
    return name, tag


class Container:
    """One life of one container."""

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
        restart: int = 0,
    ) -> None:
        """Put the parts together; ``adopted`` means that it ran before this process did."""
        self.simulation, self.machine, self.pod, self.spec = simulation, machine, pod, spec
        self.argv, self.files, self.handler, self.adopted = argv, files, handler, adopted
        self.name = str(spec["name"])
        self.image_name, self.tag = split_image(spec.get("image", ""))
        self.env = {**self._baked_env(), **env}
        self._on_up: Callable[[], None] | None = None
        self._muted, self._restart = adopted, restart
        self._message: list[str] | None = None

    def _baked_env(self) -> dict[str, str]:
        whole = f"{self.image_name}:{self.tag}"
        uses_gpu = any(fnmatch.fnmatchcase(part, glob) for glob in _GPU_IMAGES for part in (self.image_name, whole))
        return {"NVIDIA_VISIBLE_DEVICES": "all"} if uses_gpu else {}

    @property
    def namespace(self) -> str:
        """Namespace of the pod."""
        return str(self.pod["metadata"]["namespace"])

    @property
    def pod_name(self) -> str:
        """Name of the pod."""
        return str(self.pod["metadata"]["name"])

    @property
    def uid(self) -> str:
        """UID of the pod."""
        return str(self.pod["metadata"]["uid"])

    @property
    def image(self) -> str:
        """The image as the pod names it."""
        return str(self.spec.get("image", ""))

    @property
    def key(self) -> str:
        """Names this container on its machine."""
        return f"{self.uid}/{self.name}"

    def log(self, *lines: str) -> None:
        """Print lines; a container that was only taken over again does not repeat itself until it is up."""
        if self._message is not None:
            self._message += lines
        if lines and not self._muted:
            text = "".join(f"{line}\n" for line in lines)
            self.simulation.write_log(LogKey(self.namespace, self.pod_name, self.uid, self.name, self._restart), text)

    def keep_message(self) -> None:
        """Make what it prints from now on its termination message."""
        self._message = []

    @property
    def message(self) -> str:
        """The termination message, as long as the kubelet takes it."""
        return "".join(f"{line}\n" for line in self._message or ())[:_LONGEST_MESSAGE]

    def up(self) -> None:
        """Say that the process serves: its probes pass from now on, if what they need is there."""
        self._muted = False
        if self._on_up is not None:
            self._on_up()

    def attach(self, on_up: Callable[[], None]) -> None:
        """Have ``on_up`` called when the process serves."""
        self._on_up = on_up

    def hold_gpu(self) -> None:
        """Use the GPU until the container ends: its driver cannot be unloaded meanwhile."""
        if self.visible_gpus:
            self.machine.clients.add(self.key)

    async def sleep(self, seconds: float) -> None:
        """Let time pass."""
        await self.simulation.sleep(seconds)

    async def until(self, predicate: Callable[[], bool], waiting: str = "") -> None:
        """Wait until something holds on this machine; say once what is waited for."""
        if waiting and not predicate():
            self.log(waiting)
        await self.machine.until(predicate)

    async def for_ever(self) -> int:
        """Run until the pod ends."""
        self.up()
        await self.machine.until(lambda: False)
        return 0

    @property
    def granted(self) -> int:
        """Devices that the kubelet gave to this container."""
        return len(self.machine.state.granted.get(self.key, ()))

    @property
    def visible_gpus(self) -> int:
        """GPUs that a CUDA program in this container finds."""
        if not self.machine.state.driver:
            return 0
        if self.granted:
            return min(self.granted, self.machine.gpus)
        injected = self.handler.startswith("nvidia") and GPU_RESOURCE not in self.limits
        wanted = self.env.get("NVIDIA_VISIBLE_DEVICES", "")
        return self.machine.gpus if injected and wanted not in _NO_DEVICES else 0

    @property
    def limits(self) -> Mapping[str, Any]:
        """The container's resource limits."""
        return (self.spec.get("resources") or {}).get("limits") or {}

    @property
    def script(self) -> str:
        """The shell script that the command line runs, from its text or from a mounted file; empty if none."""
        for index, word in enumerate(self.argv):
            if word in {"-c", "-ec", "-exc", "-lc"} and index + 1 < len(self.argv):
                return self.argv[index + 1]
        for word in self.argv[:2]:
            if self.files.exists(word):
                return self.files.read(word)
            if word in _MOUNTED_SCRIPTS:
                raise ContainerStartError(word)
        return ""


Lookup = Callable[[str, str], Awaitable["dict[str, str] | None"]]
"""Returns the data of ``("configmaps" | "secrets", name)``; None if there is no such object."""

_KEYED = re.compile(r"metadata\.(labels|annotations)\['([^']+)'\]")
_VARIABLE = re.compile(r"\$(\$)?\(([A-Za-z_][A-Za-z0-9_.-]*)\)")
_REFERENCES = {"configMapKeyRef": "configmaps", "secretKeyRef": "secrets"}
_SINGULAR = {"configmaps": "configmap", "secrets": "secret"}


class MissingReferenceError(Exception):
    """A container's environment names an object or key that does not exist; the text is the kubelet's."""


def read_field(pod: Mapping[str, Any], path: str) -> str:
    """Return a field of a pod as the downward API does; empty for one that is not set."""
    keyed = _KEYED.fullmatch(path)
    if keyed:
        return str((pod["metadata"].get(keyed[1]) or {}).get(keyed[2], ""))
    value: Any = pod
    for part in path.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return "" if value is None else str(value)


def expand(text: str, env: Mapping[str, str]) -> str:
    """Replace ``$(NAME)`` by the variable's value; ``$$(NAME)`` is left as ``$(NAME)``."""

    def value(match: re.Match[str]) -> str:
        if match[1]:
            return f"$({match[2]})"
        return env.get(match[2], match[0])

    return _VARIABLE.sub(value, text)


async def environment(container: Mapping[str, Any], pod: Mapping[str, Any], lookup: Lookup) -> dict[str, str]:
    """Return a container's environment. Raises MissingReference."""
    env: dict[str, str] = {}
    for entry in container.get("env") or ():
        value = await _value(entry, pod, lookup)
        if value is not None:
            env[entry["name"]] = expand(value, env)
    return env


async def _value(entry: Mapping[str, Any], pod: Mapping[str, Any], lookup: Lookup) -> str | None:
    source = entry.get("valueFrom")
    if not source:
        return str(entry.get("value", ""))
    if "fieldRef" in source:
        return read_field(pod, source["fieldRef"]["fieldPath"])
    for kind, resource in _REFERENCES.items():
        if kind in source:
            return await _key(source[kind], resource, pod, lookup)
    return ""


async def _key(reference: Mapping[str, Any], resource: str, pod: Mapping[str, Any], lookup: Lookup) -> str | None:
    data = await lookup(resource, reference["name"])
    if data is not None and reference["key"] in data:
        return data[reference["key"]]
    if reference.get("optional"):
        return None
    if data is None:
        raise MissingReferenceError(_not_found(resource, reference["name"]))
    kind = "ConfigMap" if resource == "configmaps" else "Secret"
    where = f"{kind} {pod['metadata'].get('namespace', '')}/{reference['name']}"
    message = f"couldn't find key {reference['key']} in {where}"
    raise MissingReferenceError(message)


def _not_found(resource: str, name: str) -> str:
    return f'{_SINGULAR[resource]} "{name}" not found'


def command_line(container: Mapping[str, Any], env: Mapping[str, str]) -> tuple[str, ...]:
    """Return command and arguments as the pod gives them; what the image itself would add is not known."""
    words: Sequence[str] = [*(container.get("command") or ()), *(container.get("args") or ())]
    return tuple(expand(word, env) for word in words)
