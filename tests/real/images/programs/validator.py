"""The operator validator: one check for each COMPONENT, and a file that says it passed."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from gpu_provision.sandbox.operand_rules import OWNING_KINDS, driver_ready

from . import gpus, kube
from .process import end_when_told, say, serve, stay, until

VALIDATIONS = Path("/run/nvidia/validations")
_DRIVER_ROOT = "/run/nvidia/driver"
_HOST_PLACES = ("usr/bin", "usr/sbin", "bin", "sbin", "usr/lib/wsl/lib", "opt/bin")
_PAUSE = 5.0
_RETRYING = f'level=warning msg="failed to validate the driver, retrying after {_PAUSE:.0f} seconds"'
_TRIES_PLUGIN = 30


class Invalid(Exception):
    """A check did not pass."""


def main() -> int:
    end_when_told()
    component = os.environ.get("COMPONENT", "")
    if component == "metrics":
        serve(int(os.environ["METRICS_PORT"]), {"/metrics": lambda: (200, _metrics(os.environ["NODE_NAME"]))})
        stay()
    return check(component)


def _metrics(node: str) -> str:
    """Return which validations the node has passed, as the node status exporter names them."""
    names = ("driver", "toolkit", "cuda", "plugin")
    ready = ((name, int(Path(VALIDATIONS, f"{name}-ready").exists())) for name in names)
    return "".join(f'gpu_operator_node_{name}_ready{{node="{node}"}} {value}\n' for name, value in ready)


def check(component: str) -> int:
    """Run a check; its file is removed first and written on success."""
    run = CHECKS.get(component)
    if run is None:
        say(f'level=fatal msg="invalid -c <component-name> flag value: {component}"')
        return 1
    ready = Path(os.environ.get("OUTPUT_DIR") or VALIDATIONS, f"{component}-ready")
    try:
        ready.unlink(missing_ok=True)
        ready.write_text(run())
    except (Invalid, gpus.NoDriver, kube.ApiError, OSError) as problem:
        say(f'level=fatal msg="{component} is not ready: {problem}"')
        return 1
    say(f'level=info msg="{component} is validated"')
    return 0


def _driver() -> str:
    installed = any(Path("/host", place, "nvidia-smi").is_file() for place in _HOST_PLACES)
    if installed and subprocess.run(["chroot", "/host", "nvidia-smi"], check=False).returncode == 0:
        say('level=info msg="Detected a pre-installed driver on the host"')
        return driver_ready(host=True)
    say('level=info msg="Attempting to validate a driver container installation"')
    marked = _driver_is_marked()
    if os.environ.get("WITH_WAIT") == "true":
        until(lambda: _driver_answers(marked=marked), _RETRYING, _PAUSE)
    elif not _driver_answers(marked=marked):
        message = f"nvidia-smi does not run from {_DRIVER_ROOT}"
        raise Invalid(message)
    if os.environ.get("DISABLE_DEV_CHAR_SYMLINK_CREATION") != "true" and not Path("/host-dev-char").is_dir():
        message = "failed to create symlinks under /dev/char: /host-dev-char is not mounted"
        raise Invalid(message)
    return driver_ready(host=False)


def _driver_is_marked() -> bool:
    """Tell whether a driver DaemonSet of the GPU Operator itself exists, whose probe leaves a file to wait for."""
    namespace = os.environ.get("OPERATOR_NAMESPACE", "")
    if not namespace:
        return False
    query = {"labelSelector": "app.kubernetes.io/component=nvidia-driver"}
    listed = kube.request("GET", f"/apis/apps/v1/namespaces/{namespace}/daemonsets", query=query)["items"]
    owners = [owner["kind"] for item in listed for owner in item["metadata"].get("ownerReferences", ())]
    return bool(OWNING_KINDS.intersection(owners))


def _driver_answers(*, marked: bool) -> bool:
    if marked and not (VALIDATIONS / ".driver-ctr-ready").exists():
        return False
    program, library = Path(_DRIVER_ROOT, gpus.SMI), Path(_DRIVER_ROOT, gpus.NVML)
    if not (program.exists() and library.exists()):
        return False
    return subprocess.run([program], check=False, env={**os.environ, "LD_PRELOAD": str(library)}).returncode == 0


def _toolkit() -> str:
    """Run nvidia-smi, which this image does not have: it is there if the container runtime put it there."""
    say('level=info msg="Running command nvidia-smi"')
    if subprocess.run(["nvidia-smi"], check=False).returncode:
        message = "nvidia-smi failed"
        raise Invalid(message)
    return ""


def _plugin() -> str:
    name = os.environ.get("NODE_NAME")
    if not name:
        message = "invalid -n <node-name> flag: must not be empty string"
        raise Invalid(message)
    for _ in range(_TRIES_PLUGIN):
        capacity = kube.request("GET", f"/api/v1/nodes/{name}")["status"].get("capacity", {})
        offered = {name for name, count in capacity.items() if count != "0"}
        if any(name == "nvidia.com/gpu" or name.startswith("nvidia.com/mig-") for name in offered):
            return ""
        say('level=info msg="GPU resources are not yet discovered by the node, retrying"')
        time.sleep(_PAUSE)
    message = "GPU resources are not discovered by the node"
    raise Invalid(message)


CHECKS: dict[str, Callable[[], str]] = {"driver": _driver, "toolkit": _toolkit, "plugin": _plugin}
