"""The operator validator: one check for each COMPONENT, and a file that says it passed."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import gpus, kube
from .process import end_when_told, say, until

VALIDATIONS = Path("/run/nvidia/validations")
_DRIVER_ROOT = "/run/nvidia/driver"
_HOST_PLACES = ("usr/bin", "usr/sbin", "bin", "sbin", "usr/lib/wsl/lib", "opt/bin")
_OWNING_KINDS = {"ClusterPolicy", "NVIDIADriver"}
_DAEMON_SET = "nvidia-operator-validator"
_PAUSE = 5.0
_RETRYING = f'level=warning msg="failed to validate the driver, retrying after {_PAUSE:.0f} seconds"'
_TRIES_PLUGIN, _TRIES_POD = 30, 60
_ENDED = {"Succeeded", "Failed"}


class Invalid(Exception):
    """A check did not pass."""


def main() -> int:
    """Run the check that COMPONENT names."""
    end_when_told()
    return check(os.environ.get("COMPONENT", ""))


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
    if _host_driver():
        say('level=info msg="Detected a pre-installed driver on the host"')
        return _places("/", "/host")
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
    return _places(_DRIVER_ROOT, "/driver-root")


def _host_driver() -> bool:
    found = next((place for place in _HOST_PLACES if Path("/host", place, "nvidia-smi").is_file()), None)
    return found is not None and subprocess.run(["chroot", "/host", "nvidia-smi"], check=False).returncode == 0


def _driver_is_marked() -> bool:
    """Tell whether a driver DaemonSet of the GPU Operator itself exists, whose probe leaves a file to wait for."""
    namespace = os.environ.get("OPERATOR_NAMESPACE", "")
    if not namespace:
        return False
    query = {"labelSelector": "app.kubernetes.io/component=nvidia-driver"}
    listed = kube.request("GET", f"/apis/apps/v1/namespaces/{namespace}/daemonsets", query=query)["items"]
    owners = [owner["kind"] for item in listed for owner in item["metadata"].get("ownerReferences", ())]
    return bool(_OWNING_KINDS.intersection(owners))


def _driver_answers(*, marked: bool) -> bool:
    if marked and not (VALIDATIONS / ".driver-ctr-ready").exists():
        return False
    program, library = Path(_DRIVER_ROOT, gpus.SMI), Path(_DRIVER_ROOT, gpus.NVML)
    if not (program.exists() and library.exists()):
        return False
    return subprocess.run([program], check=False, env={**os.environ, "LD_PRELOAD": str(library)}).returncode == 0


def _places(root: str, inside: str) -> str:
    """Return what the file says; entrypoints of other components read it as shell assignments."""
    values = {
        "IS_HOST_DRIVER": str(root == "/").lower(),
        "NVIDIA_DRIVER_ROOT": root,
        "DRIVER_ROOT_CTR_PATH": inside,
        "NVIDIA_DEV_ROOT": root,
        "DEV_ROOT_CTR_PATH": inside,
    }
    return "".join(f"{name}={value}\n" for name, value in values.items())


def _toolkit() -> str:
    """Run nvidia-smi, which this image does not have: it is there if the container runtime put it there."""
    say('level=info msg="Running command nvidia-smi"')
    if subprocess.run(["nvidia-smi"], check=False).returncode:
        message = "nvidia-smi failed"
        raise Invalid(message)
    return ""


def _cuda() -> str:
    return _workload("nvidia-cuda-validator", "cuda-validation", {"env": [_ALL_DEVICES]})


_ALL_DEVICES = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}


def _plugin() -> str:
    name = _required("NODE_NAME")
    for _ in range(_TRIES_PLUGIN):
        capacity = kube.request("GET", f"/api/v1/nodes/{name}")["status"].get("capacity", {})
        if any(
            key.startswith(("nvidia.com/gpu", "nvidia.com/mig-")) and count != "0" for key, count in capacity.items()
        ):
            break
        say('level=info msg="GPU resources are not yet discovered by the node, retrying"')
        time.sleep(_PAUSE)
    else:
        message = "GPU resources are not discovered by the node"
        raise Invalid(message)
    if os.environ.get("WITH_WORKLOAD") != "true":
        return ""
    limits = {"resources": {"limits": {"nvidia.com/gpu": "1"}}}
    return _workload("nvidia-device-plugin-validator", "plugin-validation", limits)


def _required(name: str) -> str:
    if not os.environ.get(name):
        message = f"invalid configuration: {name} must not be empty"
        raise Invalid(message)
    return os.environ[name]


def _workload(app: str, name: str, extra: dict[str, Any]) -> str:
    """Run vectorAdd in a pod of its own on this node, and wait until it has succeeded."""
    node, namespace, image = _required("NODE_NAME"), _required("OPERATOR_NAMESPACE"), _required("VALIDATOR_IMAGE")
    daemon_set = kube.request("GET", f"/apis/apps/v1/namespaces/{namespace}/daemonsets/{_DAEMON_SET}")
    pods = f"/api/v1/namespaces/{namespace}/pods"
    old = {"labelSelector": f"app={app}", "fieldSelector": f"spec.nodeName={node}"}
    for pod in kube.request("GET", pods, query=old)["items"]:
        kube.request("DELETE", f"{pods}/{pod['metadata']['name']}", {"gracePeriodSeconds": 0})
    tolerations = daemon_set["spec"]["template"]["spec"].get("tolerations", [])
    container = {
        "image": image,
        "imagePullPolicy": os.environ.get("VALIDATOR_IMAGE_PULL_POLICY", "IfNotPresent"),
        "command": ["sh", "-c"],
        "securityContext": {"privileged": True},
    }
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"generateName": f"{app}-", "namespace": namespace, "labels": {"app": app}},
        "spec": {
            "nodeName": node,
            "restartPolicy": "OnFailure",
            "serviceAccountName": "nvidia-operator-validator",
            "runtimeClassName": os.environ.get("VALIDATOR_RUNTIME_CLASS") or None,
            "tolerations": tolerations,
            "initContainers": [{**container, "name": name, "args": ["vectorAdd"], **extra}],
            "containers": [{**container, "name": app, "args": ["echo cuda workload validation is successful"]}],
        },
    }
    return _succeeded(f"{pods}/{kube.request('POST', pods, pod)['metadata']['name']}")


def _succeeded(path: str) -> str:
    phase = ""
    for _ in range(_TRIES_POD):
        phase = kube.request("GET", path)["status"].get("phase", "")
        if phase in _ENDED:
            break
        time.sleep(_PAUSE)
    if phase != "Succeeded":
        message = f"pod {path.rpartition('/')[2]} did not succeed: {phase or 'unknown'}"
        raise Invalid(message)
    return ""


CHECKS: dict[str, Callable[[], str]] = {"driver": _driver, "toolkit": _toolkit, "cuda": _cuda, "plugin": _plugin}
