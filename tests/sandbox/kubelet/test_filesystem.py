"""What a container sees of the host's files."""

from __future__ import annotations

import pytest

from gpu_provision.sandbox.kubelet.filesystem import Filesystem, ReadOnlyMountError, build_mounts

VOLUMES = [
    {"name": "run", "hostPath": {"path": "/run/nvidia"}},
    {"name": "root", "hostPath": {"path": "/"}},
    {"name": "script", "configMap": {"name": "x"}},
    {"name": "scratch", "emptyDir": {}},
]


def files_of(host: dict[str, str], *mounts: dict[str, object]) -> Filesystem:
    """Return the view of a container with these mounts."""
    contents = {"script": {"/run.sh": "echo hi"}, "scratch": {}}
    return Filesystem(build_mounts({"volumeMounts": list(mounts)}, VOLUMES, contents, host), lambda: None)


def test_files_of_the_host_are_seen_where_they_are_mounted() -> None:
    """The deepest mount decides; other paths are the container's own."""
    host = {"/run/nvidia/validations/toolkit-ready": "", "/usr/bin/nvidia-smi": "ELF"}
    files = files_of(
        host,
        {"name": "run", "mountPath": "/run/nvidia/validations", "subPath": "validations"},
        {"name": "root", "mountPath": "/host", "readOnly": True},
    )
    assert files.exists("/run/nvidia/validations/toolkit-ready")
    assert files.exists("/host/usr/bin/nvidia-smi")
    assert files.exists("/host/run/nvidia")
    assert not files.exists("/usr/bin/nvidia-smi")
    assert files.host_path("/host/etc/os-release") == "/etc/os-release"
    assert files.host_path("/etc/os-release") == ""


def test_writes_reach_the_host_only_through_a_mount() -> None:
    """A file written elsewhere stays in the container."""
    host: dict[str, str] = {}
    files = files_of(host, {"name": "run", "mountPath": "/run/nvidia"})
    files.write("/run/nvidia/validations/driver-ready", "x")
    files.write("/var/private", "y")
    assert host == {"/run/nvidia/validations/driver-ready": "x"}
    assert files.read("/var/private") == "y"


def test_read_only_mounts_refuse() -> None:
    """As the kernel does."""
    files = files_of({}, {"name": "root", "mountPath": "/host", "readOnly": True})
    with pytest.raises(ReadOnlyMountError):
        files.write("/host/etc/x", "")


def test_a_single_file_of_a_config_map_is_mounted_over_a_path() -> None:
    """``subPath`` names the key."""
    files = files_of({}, {"name": "script", "mountPath": "/bin/entrypoint.sh", "subPath": "run.sh"})
    assert files.read("/bin/entrypoint.sh") == "echo hi"


def test_shell_patterns_leave_hidden_files_alone() -> None:
    """``rm *-ready`` does not remove ``.driver-ctr-ready``."""
    host = {"/run/nvidia/v/driver-ready": "", "/run/nvidia/v/.driver-ctr-ready": "", "/run/nvidia/v/sub/x-ready": ""}
    files = files_of(host, {"name": "run", "mountPath": "/run/nvidia"})
    files.remove("/run/nvidia/v/*-ready")
    assert set(host) == {"/run/nvidia/v/.driver-ctr-ready", "/run/nvidia/v/sub/x-ready"}


def test_var_run_is_run() -> None:
    """The link that every distribution has."""
    files = files_of({"/run/nvidia/x": ""}, {"name": "run", "mountPath": "/var/run/nvidia"})
    assert files.exists("/run/nvidia/x")


@pytest.mark.parametrize(
    ("propagation", "publishes", "sees"),
    [(None, False, False), ("HostToContainer", False, True), ("Bidirectional", True, True)],
)
def test_mounts_propagate_as_declared(propagation: str | None, publishes: bool, sees: bool) -> None:  # noqa: FBT001 - a table
    """Bidirectional publishes; HostToContainer only sees."""
    files = files_of({}, {"name": "run", "mountPath": "/run/nvidia", "mountPropagation": propagation})
    assert (files.publishes("/run/nvidia/driver"), files.propagates("/run/nvidia/driver")) == (publishes, sees)
