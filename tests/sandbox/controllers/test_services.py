"""Endpoints of Services on a cluster that runs."""

from __future__ import annotations

from typing import Any

from gpu_provision.sandbox.controllers.resources import (
    ENDPOINT_SLICES,
    SERVICES,
)

LABELS = {"app": "web"}


def test_a_service_without_pods_has_an_empty_slice(lab: Any) -> None:
    """So that readers tell "none" from "not yet"."""

    async def story(lab: Any) -> None:
        await lab.create(SERVICES, "Service", "web", spec={"selector": LABELS, "ports": [{"port": 80}]})

        async def empty() -> Any:
            found, _ = await lab.api.list(ENDPOINT_SLICES, "default", "kubernetes.io/service-name=web")
            return [one.get("endpoints") or [] for one in found] == [[]]

        await lab.until(empty)

    lab(story)
