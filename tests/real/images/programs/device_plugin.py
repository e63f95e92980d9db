"""The device plugin: offers the GPUs to the kubelet over its socket, and says how a container gets one."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped]  # stubs are a package of their own

from . import gpus
from .deviceplugin_api import METHODS, PLUGIN, REGISTRATION, VERSION, message
from .process import end_when_told, say, stay, until

RESOURCE = "nvidia.com/gpu"
SOCKETS = Path("/var/lib/kubelet/device-plugins")
_ENDPOINT, _KUBELET = "nvidia-gpu.sock", "kubelet.sock"
_POLL, _REGISTRATION_SECONDS = 1.0, 30.0
_OWN_CONNECTION = (("grpc.use_local_subchannel_pool", 1),)
"""Without it a channel inherits the waiting time after failures of an earlier one to the same socket."""


class Plugin:
    """Answers the kubelet: offers these GPUs, and hands them out by environment and device nodes."""

    def __init__(self, found: Sequence[gpus.Gpu]) -> None:
        self._gpus = {gpu.uuid: gpu for gpu in found}
        self.ended = threading.Event()

    def answers(self) -> grpc.GenericRpcHandler:
        own = {
            "GetDevicePluginOptions": lambda _request, _context: message("DevicePluginOptions")(),
            "ListAndWatch": self._list_and_watch,
            "Allocate": self._allocate,
        }
        return grpc.method_handlers_generic_handler(PLUGIN, {name: _handler(name, own[name]) for name in METHODS})

    def _list_and_watch(self, _request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        context.add_callback(self.ended.set)
        yield message("ListAndWatchResponse")(devices=[{"ID": name, "health": "Healthy"} for name in self._gpus])
        self.ended.wait()

    def _allocate(self, request: Any, context: grpc.ServicerContext) -> Any:
        wanted = [list(each.devicesIDs) for each in request.container_requests]
        if unknown := {name for names in wanted for name in names} - self._gpus.keys():
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"unknown device: {', '.join(sorted(unknown))}")
        return message("AllocateResponse")(container_responses=[self._response(names) for names in wanted])

    def _response(self, names: Sequence[str]) -> dict[str, Any]:
        _, host = gpus.driver_files(os.environ)
        nodes = [*gpus.CONTROL_DEVICES, *(self._gpus[name].node for name in names)]
        return {
            "envs": {"NVIDIA_VISIBLE_DEVICES": ",".join(names)},
            "devices": [
                {"container_path": f"/dev/{node}", "host_path": f"{host.rstrip('/')}/dev/{node}", "permissions": "rw"}
                for node in nodes
            ],
        }


def _handler(name: str, answer: Any) -> grpc.RpcMethodHandler:
    asked, answered = map(message, METHODS[name])
    kind = grpc.unary_stream_rpc_method_handler if name == "ListAndWatch" else grpc.unary_unary_rpc_method_handler
    return kind(answer, request_deserializer=asked.FromString, response_serializer=answered.SerializeToString)


def main() -> int:
    """Offer the GPUs, and register again whenever the kubelet has started again, until told to end."""
    end_when_told()
    say("Starting NVIDIA Device Plugin", "Loading NVML")
    try:
        _, found = gpus.usable()
        while True:
            _offer(found)
    except gpus.NoDriver as problem:
        say(f"Failed to initialize NVML: {problem}", "If this is a GPU node, is its runtime class set?")
        if os.environ.get("FAIL_ON_INIT_ERROR", "true") != "true":
            stay()
        return 1
    except OSError as problem:
        say(f"error: could not start plugin: {problem}")
        return 1


def _offer(found: Sequence[gpus.Gpu]) -> None:
    """Serve and register with the kubelet, until it has made its socket again."""
    own, kubelet = SOCKETS / _ENDPOINT, SOCKETS / _KUBELET
    plugin = Plugin(found)
    server = _serve(own, plugin.answers())
    try:
        until(kubelet.exists, f"waiting for the kubelet's socket {kubelet}", _POLL)
        known = _identity(kubelet)
        _register(kubelet)
        while own.exists() and _identity(kubelet) == known:
            time.sleep(_POLL)
        say(f"'{kubelet}' was created again, restarting.")
    except grpc.RpcError as problem:
        say(f"Failed to register: {problem.code().name}, retrying")
        time.sleep(_POLL)
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


def _serve(path: Path, answers: grpc.GenericRpcHandler) -> grpc.Server:
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
    say(f"Starting to serve '{RESOURCE}' on {path}")
    return server


def _register(kubelet: Path) -> None:
    request = message("RegisterRequest")(version=VERSION, endpoint=_ENDPOINT, resource_name=RESOURCE)
    with grpc.insecure_channel(f"unix://{kubelet}", _OWN_CONNECTION) as channel:
        register = channel.unary_unary(
            f"/{REGISTRATION}/Register",
            request_serializer=message("RegisterRequest").SerializeToString,
            response_deserializer=message("Empty").FromString,
        )
        register(request, timeout=_REGISTRATION_SECONDS, wait_for_ready=True)
    say(f"Registered device plugin for '{RESOURCE}' with Kubelet")
