"""A running container as a behaviour sees it: environment, files, GPU, output."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Mapping
from typing import Any

from gpu_provision.sandbox.nodes.filesystem import Filesystem
from gpu_provision.sandbox.nodes.kubelet_server import LogOf
from gpu_provision.sandbox.nodes.machine import Machine
from gpu_provision.sandbox.nodes.node import GPU_RESOURCE
from gpu_provision.sandbox.nodes.world import World

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


class CannotStart(Exception):
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
        world: World,
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
        self.world, self.machine, self.pod, self.spec = world, machine, pod, spec
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
            self.world.logs.append(LogOf(self.namespace, self.pod_name, self.uid, self.name, self._restart), text)

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
        await self.world.sleep(seconds)

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
                raise CannotStart(word)
        return ""
