"""The device plugin: offers GPUs or their MIG devices to the kubelet over its socket, and says how containers get one.

Every GPU of a node is divided and shared in the same way, so that it offers one resource at a time.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped]  # stubs are a package of their own

from gpu_provision.sandbox.operand_rules import Offer

from . import gpus, mps, sharing
from .deviceplugin_api import METHODS, PLUGIN, REGISTRATION, VERSION, message
from .process import end_when_told, say, stay, until

SOCKETS = Path("/var/lib/kubelet/device-plugins")
_KUBELET = "kubelet.sock"
_POLL, _REGISTRATION_SECONDS = 1.0, 30.0
_OWN_CONNECTION = (("grpc.use_local_subchannel_pool", 1),)
"""Without it a channel inherits the waiting time after failures of an earlier one to the same socket."""


class Plugin:
    """Answers the kubelet: offers devices of these GPUs, and hands them out by environment and device nodes."""

    def __init__(self, found: Sequence[gpus.Gpu], offer: Offer) -> None:
        self._offer = offer
        self._gpus = {name: gpu for gpu in found for name in _devices(gpu, offer)}
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
        inside, host = gpus.driver_files(os.environ)
        control = [node for node in gpus.control_devices(os.environ) if Path(inside, "dev", node).exists()]
        nodes = dict.fromkeys([*control, *(self._gpus[name].node for name in names)])
        visible = dict.fromkeys(name.partition("::")[0] for name in names)
        environment, mounts = _mps_client(self._offer.resource) if self._offer.sharing == "mps" else ({}, [])
        return {
            "envs": {"NVIDIA_VISIBLE_DEVICES": ",".join(visible), **environment},
            "mounts": mounts,
            "devices": [
                {"container_path": f"/dev/{node}", "host_path": f"{host.rstrip('/')}/dev/{node}", "permissions": "rw"}
                for node in nodes
            ],
        }


def _devices(gpu: gpus.Gpu, offer: Offer) -> Iterator[str]:
    """Yield the names of what is offered of a GPU: itself or its MIG devices, each as often as it is shared.

    One MIG device that is a whole GPU has the name of the GPU here.
    """
    divided = [f"MIG-{gpu.uuid}/{instance}/0" for instance in range(1, offer.devices + 1)]
    for name in divided if offer.devices > 1 else [gpu.uuid]:
        yield from [f"{name}::{copy}" for copy in range(offer.replicas)] if offer.replicas > 1 else [name]


def _mps_client(resource: str) -> tuple[dict[str, str], list[dict[str, str]]]:
    """Return the variables and mounts of a client of MPS."""
    root, pipe = os.environ["MPS_ROOT"], f"{resource}/pipe"
    places = ((f"{root}/{pipe}", f"{mps.ROOT}/{pipe}"), (f"{root}/shm", str(mps.SHM)))
    mounts = [{"host_path": host, "container_path": inside} for host, inside in places]
    return {"CUDA_MPS_PIPE_DIRECTORY": f"{mps.ROOT}/{pipe}"}, mounts


def _handler(name: str, answer: Any) -> grpc.RpcMethodHandler:
    asked, answered = map(message, METHODS[name])
    kind = grpc.unary_stream_rpc_method_handler if name == "ListAndWatch" else grpc.unary_unary_rpc_method_handler
    return kind(answer, request_deserializer=asked.FromString, response_serializer=answered.SerializeToString)


def main() -> int:
    """Offer the GPUs, again when the kubelet has restarted or the configuration has changed, until told to end."""
    end_when_told()
    sharing.heed_changes()
    say("Starting NVIDIA Device Plugin", "Loading NVML")
    try:
        _, found = gpus.usable()
        while True:
            with contextlib.suppress(sharing.Changed):
                _offer(found, sharing.read_offer(gpus.mig()))
    except gpus.NoDriver as problem:
        say(f"Failed to initialize NVML: {problem}", "If this is a GPU node, is its runtime class set?")
        if os.environ.get("FAIL_ON_INIT_ERROR", "true") != "true":
            stay()
        return 1
    except OSError as problem:
        say(f"error: could not start plugin: {problem}")
        return 1


def _offer(found: Sequence[gpus.Gpu], offer: Offer) -> None:
    """Serve and register with the kubelet, until it has made its socket again."""
    own, kubelet = SOCKETS / f"nvidia-{offer.resource.partition('/')[2]}.sock", SOCKETS / _KUBELET
    if offer.sharing == "mps":
        until(mps.READY.exists, "Failed to start plugin: error waiting for MPS daemon; retrying", _POLL)
    plugin = Plugin(found, offer)
    server = _serve(own, plugin.answers(), offer.resource)
    try:
        until(kubelet.exists, f"waiting for the kubelet's socket {kubelet}", _POLL)
        known = _identity(kubelet)
        _register(kubelet, own.name, offer.resource)
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


def _serve(path: Path, answers: grpc.GenericRpcHandler, resource: str) -> grpc.Server:
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
    say(f"Starting to serve '{resource}' on {path}")
    return server


def _register(kubelet: Path, endpoint: str, resource: str) -> None:
    request = message("RegisterRequest")(version=VERSION, endpoint=endpoint, resource_name=resource)
    with grpc.insecure_channel(f"unix://{kubelet}", _OWN_CONNECTION) as channel:
        register = channel.unary_unary(
            f"/{REGISTRATION}/Register",
            request_serializer=message("RegisterRequest").SerializeToString,
            response_deserializer=message("Empty").FromString,
        )
        register(request, timeout=_REGISTRATION_SECONDS, wait_for_ready=True)
    say(f"Registered device plugin for '{resource}' with Kubelet")
