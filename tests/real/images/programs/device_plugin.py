"""The device plugin: offers the GPUs to the kubelet over its socket, and says how a container gets one."""

from __future__ import annotations

import os
import signal
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent import futures
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped]  # stubs are a package of their own
import yaml

from . import cdi, gpus
from .deviceplugin_api import METHODS, PLUGIN, REGISTRATION, VERSION, message
from .process import end_when_told, say, stay, until

RESOURCE = "nvidia.com/gpu"
SOCKETS = Path("/var/lib/kubelet/device-plugins")
_KIND = "k8s.device-plugin.nvidia.com/gpu"
_ENDPOINT, _KUBELET = "nvidia-gpu.sock", "kubelet.sock"
_POLL, _REGISTRATION_SECONDS = 1.0, 30.0
_OWN_CONNECTION = (("grpc.use_local_subchannel_pool", 1),)
"""Without it a channel inherits the waiting time after failures of an earlier one to the same socket."""


class _Reload(Exception):
    """The configuration may have changed."""


@dataclass(frozen=True)
class Settings:
    """What the environment and the configuration file say."""

    strategies: Sequence[str]
    device_specs: bool
    annotation_prefix: str
    replicas: int
    inside: str
    host: str

    @staticmethod
    def of(environment: Mapping[str, str]) -> Settings:
        """Return the settings; a configuration that does not exist says nothing."""
        inside, host = gpus.driver_files(environment)
        return Settings(
            strategies=environment.get("DEVICE_LIST_STRATEGY", "envvar").split(","),
            device_specs=environment.get("PASS_DEVICE_SPECS") == "true",
            annotation_prefix=environment.get("CDI_ANNOTATION_PREFIX", "cdi.k8s.io/"),
            replicas=_replicas(environment.get("CONFIG_FILE", "")),
            inside=inside,
            host=host,
        )

    @property
    def uses_cdi(self) -> bool:
        """Whether containers get their devices through CDI files."""
        return any(strategy.startswith("cdi-") for strategy in self.strategies)


def _replicas(config: str) -> int:
    """Return how many times each GPU is offered, by time slicing or MPS."""
    document = yaml.safe_load(Path(config).read_text()) if config and Path(config).exists() else None
    sharing = (document or {}).get("sharing") or {}
    shared = (sharing.get("mps") or sharing.get("timeSlicing") or {}).get("resources") or ()
    return next((int(each["replicas"]) for each in shared if each.get("name") == RESOURCE), 1)


class Plugin:
    """Answers the kubelet."""

    def __init__(self, found: Sequence[gpus.Gpu], settings: Settings) -> None:
        """Offer these GPUs."""
        self._gpus = {gpu.uuid: gpu for gpu in found}
        self._settings = settings
        self.ended = threading.Event()

    def devices(self) -> list[str]:
        """Return what is offered: a shared GPU is offered under several names."""
        copies = self._settings.replicas
        names = list(self._gpus)
        return names if copies == 1 else [f"{name}::{copy}" for name in names for copy in range(copies)]

    def answers(self) -> grpc.GenericRpcHandler:
        """Return what serves the interface's methods."""
        own = {
            "GetDevicePluginOptions": self._options,
            "ListAndWatch": self._list_and_watch,
            "GetPreferredAllocation": self._preferred,
            "Allocate": self._allocate,
            "PreStartContainer": lambda _request, _context: message("PreStartContainerResponse")(),
        }
        return grpc.method_handlers_generic_handler(PLUGIN, {name: _handler(name, own[name]) for name in METHODS})

    def _options(self, _request: Any, _context: grpc.ServicerContext) -> Any:
        return message("DevicePluginOptions")(get_preferred_allocation_available=True)

    def _list_and_watch(self, _request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        context.add_callback(self.ended.set)
        yield message("ListAndWatchResponse")(devices=[{"ID": name, "health": "Healthy"} for name in self.devices()])
        self.ended.wait()

    def _preferred(self, request: Any, _context: grpc.ServicerContext) -> Any:
        chosen = [{"deviceIDs": preferred(each)} for each in request.container_requests]
        return message("PreferredAllocationResponse")(container_responses=chosen)

    def _allocate(self, request: Any, context: grpc.ServicerContext) -> Any:
        wanted = [list(dict.fromkeys(_plain(each.devicesIDs))) for each in request.container_requests]
        if unknown := {name for names in wanted for name in names} - self._gpus.keys():
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"unknown device: {', '.join(sorted(unknown))}")
        return message("AllocateResponse")(container_responses=[self._response(names) for names in wanted])

    def _response(self, names: Sequence[str]) -> dict[str, Any]:
        settings = self._settings
        qualified = [f"{_KIND}={name}" for name in names]
        parts: dict[str, dict[str, Any]] = {
            "envvar": {"envs": {"NVIDIA_VISIBLE_DEVICES": ",".join(names)}},
            "cdi-annotations": {
                "annotations": {f"{settings.annotation_prefix}nvidia-device-plugin_{uuid.uuid4()}": ",".join(qualified)}
            },
            "cdi-cri": {"cdi_devices": [{"name": name} for name in qualified]},
        }
        response = {key: value for strategy in settings.strategies for key, value in parts[strategy].items()}
        if settings.device_specs:
            nodes = [*gpus.CONTROL_DEVICES, *(self._gpus[name].node for name in names)]
            response["devices"] = [self._device_spec(node) for node in nodes]
        return response

    def _device_spec(self, node: str) -> dict[str, str]:
        host = self._settings.host.rstrip("/")
        return {"container_path": f"/dev/{node}", "host_path": f"{host}/dev/{node}", "permissions": "rw"}


def _plain(names: Iterable[str]) -> Iterator[str]:
    return (name.partition("::")[0] for name in names)


def preferred(request: Any) -> list[str]:
    """Return which of the available devices to hand out: those that must be among them, then the first others."""
    must = list(request.must_include_deviceIDs)
    others = [name for name in sorted(request.available_deviceIDs) if name not in must]
    return [*must, *others][: request.allocation_size]


def _handler(name: str, answer: Any) -> grpc.RpcMethodHandler:
    asked, answered = map(message, METHODS[name])
    kind = grpc.unary_stream_rpc_method_handler if name == "ListAndWatch" else grpc.unary_unary_rpc_method_handler
    return kind(answer, request_deserializer=asked.FromString, response_serializer=answered.SerializeToString)


def main() -> int:
    """Offer the GPUs, and register again whenever the kubelet has started again, until told to end."""
    end_when_told()
    signal.signal(signal.SIGHUP, _reload)
    say("Starting NVIDIA Device Plugin", "Loading NVML")
    while True:
        try:
            offer(SOCKETS, *_found(), threading.Event())
        except _Reload:
            say("Received SIGHUP, restarting.")
        except gpus.NoDriver as problem:
            say(f"Failed to initialize NVML: {problem}", "If this is a GPU node, is its runtime class set?")
            if os.environ.get("FAIL_ON_INIT_ERROR", "true") != "true":
                stay()
            return 1
        except OSError as problem:
            say(f"error: could not start plugin: {problem}")
            return 1


def _reload(_number: int, _frame: object) -> None:
    raise _Reload


def _found() -> tuple[list[gpus.Gpu], Settings]:
    settings = Settings.of(os.environ)
    _, found = gpus.usable()
    if settings.uses_cdi:
        gpus.driver(settings.inside)
        devices = {gpu.uuid: [gpu.node] for gpu in found}
        written = cdi.specification(_KIND, devices, settings.inside, settings.host)
        cdi.write(cdi.DIRECTORY / "k8s.device-plugin.nvidia.com-gpu.json", written)
    return found, settings


def offer(sockets: Path, found: Sequence[gpus.Gpu], settings: Settings, stop: threading.Event) -> None:
    """Serve and register with the kubelet whose sockets these are; do both again when it has made its socket again."""
    own, kubelet = sockets / _ENDPOINT, sockets / _KUBELET
    while not stop.is_set():
        plugin = Plugin(found, settings)
        server = _serve(own, plugin)
        try:
            until(lambda: kubelet.exists() or stop.is_set(), f"waiting for the kubelet's socket {kubelet}", _POLL)
            known = _identity(kubelet)
            _register(kubelet)
            while own.exists() and _identity(kubelet) == known and not stop.wait(_POLL):
                pass
            say(f"'{kubelet}' was created again, restarting.")
        except grpc.RpcError as problem:
            say(f"Failed to register: {problem.code().name}, retrying")
            stop.wait(_POLL)
        finally:
            plugin.ended.set()
            server.stop(None).wait()
            own.unlink(missing_ok=True)


def _identity(path: Path) -> tuple[int, int] | None:
    """Return what differs when a file was made again; None if there is none."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_ctime_ns


def _serve(own: Path, plugin: Plugin) -> grpc.Server:
    server = serve_at(own, plugin.answers())
    say(f"Starting to serve '{RESOURCE}' on {own}")
    return server


def serve_at(path: Path, answers: grpc.GenericRpcHandler) -> grpc.Server:
    """Serve at a path, whatever was there before.

    A server that ends removes the path that it was made with, some time later, whichever server has it then: so each is
    made with a path of its own, and renamed.
    """
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=8))
    server.add_generic_rpc_handlers((answers,))
    made = path.with_name(f".{time.monotonic_ns()}")
    server.add_insecure_port(f"unix://{made}")
    server.start()
    made.rename(path)
    return server


def _register(kubelet: Path) -> None:
    options = {"get_preferred_allocation_available": True}
    request = message("RegisterRequest")(version=VERSION, endpoint=_ENDPOINT, resource_name=RESOURCE, options=options)
    with grpc.insecure_channel(f"unix://{kubelet}", _OWN_CONNECTION) as channel:
        register = channel.unary_unary(
            f"/{REGISTRATION}/Register",
            request_serializer=message("RegisterRequest").SerializeToString,
            response_deserializer=message("Empty").FromString,
        )
        register(request, timeout=_REGISTRATION_SECONDS, wait_for_ready=True)
    say(f"Registered device plugin for '{RESOURCE}' with Kubelet")
