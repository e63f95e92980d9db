"""Which cluster an inventory means."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpu_provision.kube.locate import locate
from gpu_provision.model.inventory import ClusterConfig
from gpu_provision.sandbox import process
from gpu_provision.sandbox.process import Sandbox
from tests.components.builders import inventory


def test_a_cluster_is_where_the_inventory_says() -> None:
    stack = replace(inventory(), cluster=ClusterConfig(kubeconfig="/k", context="prod"))
    assert locate(stack) == ("/k", "prod")


def test_a_sandbox_is_started_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def up(fleet: str) -> Sandbox:
        return Sandbox(
            name=fleet, directory=Path("/s"), kubeconfig=Path("/s/kubeconfig"), context="sandbox", url="", pid=1
        )

    monkeypatch.setattr(process, "up", up)
    assert locate(inventory()) == ("/s/kubeconfig", "sandbox")
