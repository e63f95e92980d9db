"""GPU Feature Discovery: publishes what the node's GPUs are in a NodeFeature."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from gpu_provision.sandbox.operand_rules import gpu_labels, mig_labels

from . import features, gpus, kube, sharing
from .process import end_when_told, say, seconds, stay

_MACHINE = Path("/sys/class/dmi/id/product_name")


def main() -> int:
    end_when_told()
    sharing.heed_changes()
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
        with contextlib.suppress(sharing.Changed):
            time.sleep(seconds(os.environ.get("GFD_SLEEP_INTERVAL", "60s")))


def _labels(version: str, found: list[gpus.Gpu]) -> dict[str, str]:
    if not found:
        return {"nvidia.com/gpu.count": "0"}
    product = _MACHINE.read_text().strip() if _MACHINE.exists() else ""
    strategy = os.environ.get("MIG_STRATEGY", "none")
    model, mig = gpus.measured(found[-1]), gpus.mig()
    _, _, copies, kind = sharing.read_offer(mig)
    labels = gpu_labels(model, len(found), version, strategy=strategy, copies=copies, sharing=kind)
    if mig and strategy != "none":
        labels |= mig_labels(model, len(found), mig, strategy=strategy, copies=copies)
    return {**labels, "nvidia.com/gpu.machine": product.replace(" ", "-") or "unknown"}
