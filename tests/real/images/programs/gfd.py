"""GPU Feature Discovery: publishes what the node's GPUs are in a NodeFeature."""

from __future__ import annotations

import os
import time
from pathlib import Path

from gpu_provision.sandbox.operand_rules import gpu_labels

from . import features, gpus, kube
from .process import end_when_told, say, seconds, stay

_MACHINE = Path("/sys/class/dmi/id/product_name")


def main() -> int:
    end_when_told()
    say("Starting GPU Feature Discovery")
    node = os.environ.get("NODE_NAME", "")
    if not node:
        say("error: NODE_NAME is not set")
        return 1
    stamp = str(int(time.time()))
    while True:
        try:
            labels = {**_labels(*gpus.usable()), "nvidia.com/gfd.timestamp": stamp}
            features.publish(f"nvidia-features-for-{node}", node, labels)
        except (gpus.NoDriver, kube.ApiError, OSError) as problem:
            say(f"error: {problem}")
            if os.environ.get("GFD_FAIL_ON_INIT_ERROR", "true") != "true":
                stay()
            return 1
        say(f"Created {len(labels)} labels")
        time.sleep(seconds(os.environ.get("GFD_SLEEP_INTERVAL", "60s")))


def _labels(version: str, found: list[gpus.Gpu]) -> dict[str, str]:
    if not found:
        return {"nvidia.com/gpu.count": "0"}
    product = _MACHINE.read_text().strip() if _MACHINE.exists() else ""
    strategy = os.environ.get("MIG_STRATEGY", "none")
    labels = gpu_labels(gpus.model(found[-1].device), len(found), version, strategy=strategy)
    return {**labels, "nvidia.com/gpu.machine": product.replace(" ", "-") or "unknown"}
