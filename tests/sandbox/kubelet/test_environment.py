"""The environment and the command line of a container."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gpu_provision.sandbox.kubelet.container import command_line, environment, expand

POD = {
    "metadata": {"name": "p", "namespace": "n", "uid": "u", "labels": {"a/b": "c"}},
    "spec": {"nodeName": "gpu-1"},
    "status": {"hostIP": "10.0.0.1"},
}
DATA = {("configmaps", "conf"): {"key": "value", "other": "2"}, ("secrets", "keys"): {"token": "s"}}


async def lookup(resource: str, name: str) -> dict[str, str] | None:
    """Return what the cluster has."""
    return DATA.get((resource, name))


def env_of(**container: Any) -> dict[str, str]:
    """Resolve a container's environment."""
    return asyncio.run(environment(container, POD, lookup))


def field(path: str) -> dict[str, Any]:
    """Return a variable X that is a field of the pod."""
    return {"name": "X", "valueFrom": {"fieldRef": {"fieldPath": path}}}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("spec.nodeName", "gpu-1"),
        ("metadata.name", "p"),
        ("metadata.namespace", "n"),
        ("metadata.uid", "u"),
        ("status.hostIP", "10.0.0.1"),
        ("metadata.labels['a/b']", "c"),
        ("metadata.annotations['none']", ""),
    ],
)
def test_fields_of_the_pod(path: str, value: str) -> None:
    """The downward API."""
    assert env_of(env=[field(path)]) == {"X": value}


def test_references_and_variables_are_resolved_in_order() -> None:
    """``$(NAME)`` sees what was declared before."""
    env = env_of(
        env=[
            {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "token"}}},
            {"name": "BOTH", "value": "$(TOKEN)-$(NONE)-$$(TOKEN)"},
        ]
    )
    assert env == {"TOKEN": "s", "BOTH": "s-$(NONE)-$(TOKEN)"}


def test_optional_references_may_be_missing() -> None:
    """An optional key leaves its variable out."""
    optional = {"configMapKeyRef": {"name": "none", "key": "a", "optional": True}}
    assert env_of(env=[{"name": "X", "valueFrom": optional}]) == {}


def test_commands_see_the_environment() -> None:
    """``$(NAME)`` in command and arguments."""
    assert command_line({"command": ["run"], "args": ["$(A)"]}, {"A": "1"}) == ("run", "1")
    assert expand("$(B)", {"A": "1"}) == "$(B)"
