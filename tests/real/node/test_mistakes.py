"""Mistakes in manifests that only a real kubelet notices: each is a failure with a finding that says what it is."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from tests.real.node.settings import NODE
from tests.real.node.user import NodeUser

pytestmark = pytest.mark.real

PATH = f"gfd failed on {NODE}: a path of the node is missing, or has another type than the pod mounts"
ROOT = f"gfd failed on {NODE}: the pod requires a non-root user, but the image runs as root"
PROBE = f"dcgm_exporter failed on {NODE}: the container runs, but its probe fails"
_POD_SECONDS = 90  # for a pod to end, which takes kubelet 1.20 up to a minute, and for the next one to start


def errors(document: str) -> list[dict[str, Any]]:
    """What a run with --json found out, in order of the components' names."""
    return sorted(json.loads(document)["errors"], key=lambda error: str(error["what"]))


@pytest.mark.usefixtures("first_run")
def test_a_pod_that_cannot_start_and_one_whose_probe_fails(user: NodeUser) -> None:
    """Two components, each with a mistake of its own; nothing else fails."""
    user.settings(gfd={"timeout": _POD_SECONDS}, dcgm_exporter={"timeout": _POD_SECONDS + 90})  # its probe begins late
    run = user.run(*user.apply_with("host-path-type,probe-path"))
    assert run.code == 1, run.text
    probe, start = errors(run.out)
    assert (start["code"], start["what"]) == ("GP500", PATH)
    assert "hostPath type check failed: /run/nvidia is not a file" in start["evidence"]
    assert start["where"].startswith(f"node {NODE}, pod gpu-feature-discovery-")
    assert (probe["code"], probe["what"]) == ("GP500", PROBE)
    assert "statuscode: 404" in probe["evidence"]


@pytest.mark.usefixtures("first_run")
def test_a_pod_that_demands_an_unknown_user(user: NodeUser) -> None:
    """The kubelet refuses to start it. The exporter is left alone: it would need a minute to get ready again."""
    user.settings(gfd={"timeout": _POD_SECONDS})
    run = user.run(*user.apply_with("security-context"), "--target", "gfd")
    assert run.code == 1, run.text
    (start,) = errors(run.out)
    assert (start["code"], start["what"]) == ("GP500", ROOT)
    assert "breaks non-root policy" in start["evidence"]


@pytest.mark.usefixtures("first_run")
def test_mounts_that_stay_the_driver_containers_own(run_on_other_node: subprocess.Popen[str]) -> None:
    """The driver says that it is ready, and no other pod can use it."""
    out, _ = run_on_other_node.communicate(timeout=300)
    assert run_on_other_node.returncode == 1, out
    (finding,) = errors(out)
    assert finding["code"] == "GP501"
    assert finding["what"] == f"toolkit failed on {NODE}: other pods cannot use the running driver"
    assert "failed to validate the driver" in finding["evidence"]
    assert "findmnt" in finding["fix"]
    assert finding["where"].startswith(f"node {NODE}, pod nvidia-container-toolkit-daemonset-")
