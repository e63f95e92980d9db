"""The custom resources of Node Feature Discovery, ``nfd.k8s-sigs.io/v1alpha1``, good for 0.14 to 0.19."""

from __future__ import annotations

import json
from pathlib import Path

from gpu_provision.model.cluster import Manifest

GROUP = "nfd.k8s-sigs.io"


def crds() -> list[Manifest]:
    """Return the three definitions, each time as values of their own."""
    found: list[Manifest] = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
    return found
