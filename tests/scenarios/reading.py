"""What `kubectl get` gives, without a process: scenarios wait for objects by asking again and again.

A kubectl costs a tenth of a second of a processor each time, which is missing where the waiting is for something to be
done. What somebody types, and whatever is not in the table, is typed into the real one.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from gpu_provision.sandbox.kubeconfig import credentials
from tests.contract.client import Server

_NAMESPACED = {
    "daemonset": "/apis/apps/v1",
    "event": "/api/v1",
    "lease": "/apis/coordination.k8s.io/v1",
    "pod": "/api/v1",
}
_OF_THE_CLUSTER = {"gpustack": "/apis/gpu-provision.io/v1alpha1", "node": "/api/v1"}


class Reader:
    """Reads from the API server of a kubeconfig, over one connection."""

    def __init__(self, kubeconfig: Path) -> None:
        """Ask for nothing yet."""
        self._server = Server("any", kubeconfig, kubeconfig.parent, credentials(kubeconfig))

    def close(self) -> None:
        """Close the connection."""
        self._server.close()

    def get(self, path: str) -> Any:
        """Return the object or list at a path; a refusal fails."""
        return self._server.get(path)


def path_of(arguments: Sequence[str]) -> str | None:
    """Return the path of what `kubectl get` asks for with these arguments; None for what is not in the table."""
    asked, others = _parser().parse_known_intermixed_args(arguments)
    kind = asked.kind.removesuffix("s")
    base = _NAMESPACED.get(kind) or _OF_THE_CLUSTER.get(kind)
    if base is None or others:
        return None
    is_in_one = kind in _NAMESPACED and not asked.all_namespaces
    place = f"{base}/namespaces/{asked.namespace}" if is_in_one else base
    selectors = {"labelSelector": asked.selector, "fieldSelector": asked.field_selector}
    query = urlencode({key: value for key, value in selectors.items() if value})
    return "/".join((place, f"{kind}s", *asked.name)) + (f"?{query}" if query else "")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind")
    parser.add_argument("name", nargs="*")
    parser.add_argument("-n", "--namespace", default="default")
    parser.add_argument("-A", "--all-namespaces", action="store_true")
    parser.add_argument("-l", "--selector", default="")
    parser.add_argument("--field-selector", default="")
    return parser
