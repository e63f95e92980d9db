"""The Python client that gpu-provision itself uses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.sandbox.apiserver.conftest import Running, workload


@pytest.fixture
def dynamic(server: Running, tmp_path: Path) -> Any:
    """Connect a DynamicClient with the server's kubeconfig."""
    from kubernetes import client, config  # noqa: PLC0415 - slow to import
    from kubernetes.dynamic import DynamicClient  # noqa: PLC0415

    settings = client.Configuration()
    config.load_kube_config(str(server.server.kubeconfig), client_configuration=settings)
    return DynamicClient(client.ApiClient(settings), cache_file=str(tmp_path / "discovery.json"))


def test_apply_list_watch_and_delete(dynamic: Any) -> None:
    """The verbs of a run, with dry run and strict validation."""
    daemonsets = dynamic.resources.get(api_version="apps/v1", kind="DaemonSet")
    body = {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": "py", "namespace": "default"},
        "spec": workload(),
    }

    def apply(**options: Any) -> Any:
        query = [("fieldValidation", "Strict")]
        return dynamic.server_side_apply(
            daemonsets,
            body=body,
            namespace="default",
            field_manager="gpu-provision",
            serialize=False,
            query_params=query,
            **options,
        )

    assert apply(dry_run="All").status == 201
    assert daemonsets.get(namespace="default").items == []
    assert (apply().status, apply().status) == (201, 200)
    [found] = daemonsets.get(namespace="default", label_selector="!none").items
    assert found.metadata.managedFields[0].manager == "gpu-provision"
    events = daemonsets.watch(namespace="default", timeout=1)
    assert [(event["type"], event["object"].metadata.name) for event in events] == [("ADDED", "py")]
    daemonsets.delete(name="py", namespace="default")
    assert daemonsets.get(namespace="default").items == []
