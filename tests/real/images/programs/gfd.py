"""GPU Feature Discovery: says what the node's GPUs are, in a NodeFeature or in a file for NFD's worker."""

from __future__ import annotations

import os
import time
from pathlib import Path

from . import features, gpus, kube, models
from .process import end_when_told, say, seconds, stay

_FILE = Path("/etc/kubernetes/node-feature-discovery/features.d/gfd")
_MACHINE = Path("/sys/class/dmi/id/product_name")
_MIG_FAMILIES = {"hopper", "blackwell"}
_MIG_MODELS = ("A30", "A100")


def main() -> int:
    """Publish labels again and again, until told to end."""
    end_when_told()
    say("Starting GPU Feature Discovery")
    node = os.environ.get("NODE_NAME", "")
    if not node:
        say("error: NODE_NAME is not set")
        return 1
    stamp = str(int(time.time()))
    while True:
        try:
            _publish(node, {**labels(*gpus.usable()), "nvidia.com/gfd.timestamp": stamp})
        except (gpus.NoDriver, kube.ApiError, OSError) as problem:
            say(f"error: {problem}")
            if os.environ.get("GFD_FAIL_ON_INIT_ERROR", "true") != "true":
                stay()
            return 1
        time.sleep(seconds(os.environ.get("GFD_SLEEP_INTERVAL", "60s")))


def labels(version: str, found: list[gpus.Gpu]) -> dict[str, str]:
    """Return what is said about a node's GPUs; of several models the last one counts."""
    if not found:
        return {"nvidia.com/gpu.count": "0"}
    model = models.named(found[-1].device)
    major, minor, revision = [*version.split("."), "", ""][:3]
    compute = model.compute.split(".")
    capable = model.family in _MIG_FAMILIES or any(name in model.name for name in _MIG_MODELS)
    said = {
        "cuda.driver.major": major,
        "cuda.driver.minor": minor,
        "cuda.driver.rev": revision,
        "cuda.driver-version.full": version,
        "cuda.driver-version.major": major,
        "cuda.driver-version.minor": minor,
        "cuda.driver-version.revision": revision,
        "gpu.compute.major": compute[0],
        "gpu.compute.minor": compute[1],
        "gpu.count": str(len(found)),
        "gpu.family": model.family,
        "gpu.machine": _machine(),
        "gpu.memory": str(model.memory),
        "gpu.product": model.name.replace(" ", "-"),
        "gpu.replicas": "1",
        "gpu.sharing-strategy": "none",
        "mig.capable": str(capable).lower(),
        "mps.capable": "false",
        **({"mig.strategy": os.environ.get("MIG_STRATEGY", "none")} if capable else {}),
    }
    return {f"nvidia.com/{name}": value for name, value in said.items()}


def _machine() -> str:
    try:
        return _MACHINE.read_text().strip().replace(" ", "-") or "unknown"
    except OSError:
        return "unknown"


def _publish(node: str, said: dict[str, str]) -> None:
    if os.environ.get("USE_NODE_FEATURE_API", "true") == "true":
        owners = features.owners(["pod", "ds"])
        features.publish(f"nvidia-features-for-{node}", node, said, {}, owners)
    else:
        _FILE.write_text("".join(f"{name}={value}\n" for name, value in sorted(said.items())))
    say(f"Created {len(said)} labels")
