"""What a container sees: its environment and command line, and the host's files."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gpu_provision.sandbox.kubelet.container import environment, read_field
from gpu_provision.sandbox.kubelet.filesystem import Filesystem, ReadOnlyMountError, build_mounts

POD = {
    "metadata": {"name": "p", "namespace": "n", "uid": "u", "labels": {"a/b": "c"}},
    "spec": {"nodeName": "gpu-1"},
    "status": {"hostIP": "10.0.0.1"},
}
RUN = {"name": "run", "hostPath": {"path": "/run/nvidia"}}
ROOT = {"name": "root", "hostPath": {"path": "/"}}
SCRIPT = {"name": "script", "configMap": {"name": "x"}}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("spec.nodeName", "gpu-1"),
        ("status.hostIP", "10.0.0.1"),
        ("metadata.labels['a/b']", "c"),
        ("metadata.annotations['none']", ""),
    ],
)
def test_fields_of_the_pod(path: str, value: str) -> None:
    assert read_field(POD, path) == value


def test_references_and_variables_are_resolved_in_order() -> None:
    """``$(NAME)`` sees what was declared before; an optional key leaves its variable out."""

    async def data_of(*asked: str) -> dict[str, str] | None:
        return {"token": "s"} if asked == ("n", "secrets", "keys") else None

    optional = {"configMapKeyRef": {"name": "none", "key": "a", "optional": True}}
    env = [
        {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "token"}}},
        {"name": "BOTH", "value": "$(TOKEN)-$(NONE)-$$(TOKEN)"},
        {"name": "OPTIONAL", "valueFrom": optional},
        {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
    ]
    found = asyncio.run(environment({"env": env}, POD, data_of))
    assert found == {"TOKEN": "s", "BOTH": "s-$(NONE)-$(TOKEN)", "NODE": "gpu-1"}


def files_of(host: dict[str, str], *mounts: dict[str, Any]) -> Filesystem:
    built = build_mounts({"volumeMounts": list(mounts)}, (RUN, ROOT, SCRIPT), {"script": {"/run.sh": "echo hi"}}, host)
    return Filesystem(built, lambda: None)


def test_files_of_the_host_are_seen_where_they_are_mounted() -> None:
    """The deepest mount decides; other paths are the container's own; /var/run is /run."""
    host = {"/run/nvidia/validations/toolkit-ready": "", "/usr/bin/nvidia-smi": "ELF"}
    files = files_of(
        host,
        {"name": "run", "mountPath": "/var/run/nvidia/validations", "subPath": "validations"},
        {"name": "root", "mountPath": "/host", "readOnly": True},
        {"name": "script", "mountPath": "/bin/entrypoint.sh", "subPath": "run.sh"},
    )
    seen = ("/run/nvidia/validations/toolkit-ready", "/host/usr/bin/nvidia-smi", "/host/run/nvidia")
    assert all(map(files.exists, seen))
    assert not files.exists("/usr/bin/nvidia-smi")
    assert (files.host_path("/host/etc/os-release"), files.host_path("/etc/os-release")) == ("/etc/os-release", "")
    assert files.read("/bin/entrypoint.sh") == "echo hi"
    with pytest.raises(ReadOnlyMountError):
        files.write("/host/etc/x", "")


def test_writes_reach_the_host_only_through_a_mount() -> None:
    """A file written elsewhere stays in the container; ``rm *-ready`` does not remove ``.driver-ctr-ready``."""
    host: dict[str, str] = {}
    files = files_of(host, {"name": "run", "mountPath": "/run/nvidia"})
    for name in ("driver-ready", ".driver-ctr-ready", "sub/x-ready"):
        files.write(f"/run/nvidia/v/{name}", "x")
    files.write("/var/private", "y")
    assert (len(host), files.read("/var/private")) == (3, "y")
    files.remove("/run/nvidia/v/*-ready")
    assert set(host) == {"/run/nvidia/v/.driver-ctr-ready", "/run/nvidia/v/sub/x-ready"}


@pytest.mark.parametrize(
    ("propagation", "seen"),
    [(None, (False, False)), ("HostToContainer", (False, True)), ("Bidirectional", (True, True))],
)
def test_mounts_propagate_as_declared(propagation: str | None, seen: tuple[bool, bool]) -> None:
    """Bidirectional publishes; HostToContainer only sees."""
    files = files_of({}, {"name": "run", "mountPath": "/run/nvidia", "mountPropagation": propagation})
    assert (files.publishes("/run/nvidia/driver"), files.propagates("/run/nvidia/driver")) == seen
