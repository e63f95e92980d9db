"""The device plugin's stand-in speaks the kubelet's interface over real sockets."""

from __future__ import annotations

import contextlib
import queue
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped]  # stubs are a package of their own
import pytest

from tests.real.images.programs import gpus
from tests.real.images.programs.device_plugin import Settings, offer, preferred, serve_at
from tests.real.images.programs.deviceplugin_api import METHODS, PLUGIN, REGISTRATION, message

_DEADLINE = 60
GPUS = [gpus.Gpu(index, f"GPU-{index}", f"0000:0{index}:00.0", "1eb8", "Tesla T4") for index in range(2)]
SETTINGS = Settings.of({"DEVICE_LIST_STRATEGY": "cdi-annotations,cdi-cri", "PASS_DEVICE_SPECS": "true"})


class Kubelet:
    """Listens where a kubelet does, and asks the plugin that registers."""

    def __init__(self, sockets: Path) -> None:
        """Start to listen."""
        self._sockets = sockets
        self.registrations: queue.Queue[Any] = queue.Queue()
        register = grpc.unary_unary_rpc_method_handler(
            self._register,
            request_deserializer=message("RegisterRequest").FromString,
            response_serializer=message("Empty").SerializeToString,
        )
        answers = grpc.method_handlers_generic_handler(REGISTRATION, {"Register": register})
        self._server = serve_at(sockets / "kubelet.sock", answers)

    def _register(self, request: Any, _context: Any) -> Any:
        self.registrations.put(request)
        return message("Empty")()

    def ask(self, method: str, request: Any) -> Any:
        """Return the plugin's answer, of a stream the first."""
        asked, answered = map(message, METHODS[method])
        with grpc.insecure_channel(f"unix://{self._sockets / 'nvidia-gpu.sock'}") as channel:
            kind = channel.unary_stream if method == "ListAndWatch" else channel.unary_unary
            call = kind(
                f"/{PLUGIN}/{method}",
                request_serializer=asked.SerializeToString,
                response_deserializer=answered.FromString,
            )
            answer = call(request, timeout=_DEADLINE, wait_for_ready=True)
            return next(answer) if method == "ListAndWatch" else answer

    def stop(self) -> None:
        """End, as a kubelet that is restarted: its socket goes."""
        self._server.stop(None).wait()
        (self._sockets / "kubelet.sock").unlink(missing_ok=True)


@pytest.fixture
def sockets() -> Iterator[Path]:
    """A folder whose name is short enough for a socket's path."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


@pytest.fixture
def kubelet(sockets: Path) -> Iterator[Kubelet]:
    """A kubelet beside which a plugin runs."""
    made = Kubelet(sockets)
    with _plugin(sockets):
        yield made
    made.stop()


@contextlib.contextmanager
def _plugin(sockets: Path) -> Iterator[None]:
    stop = threading.Event()
    running = threading.Thread(target=offer, args=(sockets, GPUS, SETTINGS, stop))
    running.start()
    try:
        yield
    finally:
        stop.set()
        running.join(_DEADLINE)
    assert not running.is_alive()


def test_it_registers_and_offers_every_gpu(kubelet: Kubelet) -> None:
    request = kubelet.registrations.get(timeout=_DEADLINE)
    assert (request.version, request.endpoint, request.resource_name) == (
        "v1beta1",
        "nvidia-gpu.sock",
        "nvidia.com/gpu",
    )
    listed = kubelet.ask("ListAndWatch", message("Empty")())
    assert [(device.ID, device.health) for device in listed.devices] == [("GPU-0", "Healthy"), ("GPU-1", "Healthy")]
    assert kubelet.ask("GetDevicePluginOptions", message("Empty")()).get_preferred_allocation_available


def test_an_allocation_says_how_the_container_gets_its_gpu(kubelet: Kubelet) -> None:
    """By CDI for runtimes that know it, and by device nodes of the driver's root for all others."""
    kubelet.registrations.get(timeout=_DEADLINE)
    request = message("AllocateRequest")(container_requests=[{"devicesIDs": ["GPU-1"]}])
    [response] = kubelet.ask("Allocate", request).container_responses
    [(key, value)] = response.annotations.items()
    assert key.startswith("cdi.k8s.io/nvidia-device-plugin_")
    assert value == "k8s.device-plugin.nvidia.com/gpu=GPU-1"
    assert [device.name for device in response.cdi_devices] == [value]
    assert ("/dev/nvidia1", "/run/nvidia/driver/dev/nvidia1", "rw") in {
        (each.container_path, each.host_path, each.permissions) for each in response.devices
    }
    assert not dict(response.envs)


def test_a_gpu_that_nobody_offered_is_refused(kubelet: Kubelet) -> None:
    kubelet.registrations.get(timeout=_DEADLINE)
    request = message("AllocateRequest")(container_requests=[{"devicesIDs": ["GPU-9"]}])
    with pytest.raises(grpc.RpcError, match="unknown device: GPU-9"):
        kubelet.ask("Allocate", request)


def test_it_registers_again_with_a_kubelet_that_was_restarted(sockets: Path) -> None:
    first = Kubelet(sockets)
    with _plugin(sockets):
        first.registrations.get(timeout=_DEADLINE)
        first.stop()
        second = Kubelet(sockets)
        second.registrations.get(timeout=_DEADLINE)
        assert len(second.ask("ListAndWatch", message("Empty")()).devices) == 2
    second.stop()


def test_shared_gpus_are_offered_several_times(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}")
    assert Settings.of({"CONFIG_FILE": str(config)}) == replace(Settings.of({}), replicas=4)


def test_a_preferred_allocation_holds_what_must_be_in_it() -> None:
    request = message("ContainerPreferredAllocationRequest")(
        available_deviceIDs=["c", "b", "a"], must_include_deviceIDs=["c"], allocation_size=2
    )
    assert preferred(request) == ["c", "a"]
