"""Whether a host's containerd has to import the toolkit's drop-in, from records alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpu_provision.hosts.facts.host import HostRecord
from gpu_provision.hosts.facts.runtime import CRIO, ContainerRuntime, Kubernetes
from gpu_provision.hosts.operations.runtime import runtime_to_change, unsupported_reason, wanted_pattern
from gpu_provision.model.findings import Severity
from gpu_provision.model.hosts import Expectation

PATTERN = "/etc/containerd/conf.d/*.toml"
CONTAINERD = ContainerRuntime(
    kind="containerd",
    running=True,
    binary="/usr/bin/containerd",
    version="1.7.27",
    config="/etc/containerd/config.toml",
    has_config=True,
    schema=2,
    socket="/run/containerd/containerd.sock",
)
NODE = HostRecord(runtimes=(CONTAINERD,), kubernetes=Kubernetes(distribution="kubeadm", running=True))
EXPECTED = Expectation(node="gpu-1", pool="t4", gpu_model="T4", gpu_count=1, toolkit_version="v1.20.0")


def node(**fields: object) -> HostRecord:
    """Return the node with another containerd."""
    return replace(NODE, runtimes=(replace(CONTAINERD, **fields),))  # type: ignore[arg-type]  # any of its fields


K3S = replace(
    node(config="/var/lib/rancher/k3s/agent/etc/containerd/config.toml", socket="/run/k3s/containerd/containerd.sock"),
    kubernetes=Kubernetes(distribution="k3s", running=True),
)


@pytest.mark.parametrize(
    ("wish", "expected", "pattern"),
    [
        ("auto", EXPECTED, PATTERN),
        ("auto", replace(EXPECTED, toolkit_version="v1.18.0"), PATTERN),
        ("auto", replace(EXPECTED, toolkit_version="sha256:0a"), PATTERN),
        ("auto", replace(EXPECTED, toolkit_version="v1.17.8-ubuntu20.04"), ""),
        ("auto", replace(EXPECTED, toolkit=False), ""),
        ("auto", replace(EXPECTED, gpu_count=0), ""),
        ("auto", replace(EXPECTED, toolkit_drop_in="/etc/site.d/nvidia.toml"), "/etc/site.d/*.toml"),
        ("auto", None, ""),
        (True, None, PATTERN),
        (True, replace(EXPECTED, toolkit=False), PATTERN),
        (False, EXPECTED, ""),
    ],
)
def test_auto_imports_where_the_toolkit_writes_a_drop_in(
    *, wish: bool | str, expected: Expectation | None, pattern: str
) -> None:
    """Older toolkits write into the root configuration itself."""
    assert wanted_pattern(wish, expected) == pattern


@pytest.mark.parametrize(
    "record",
    [
        node(),
        node(imports=("/etc/containerd/config.d/*.toml",)),
        node(imports=("conf.d/99-site.toml",)),
        node(has_config=False, schema=0),
        node(version="2.1.4", schema=3),
        replace(node(), kubernetes=Kubernetes(distribution="other", running=True)),
    ],
)
def test_the_import_is_missing(record: HostRecord) -> None:
    """Of a directory beside it, of one file in it, or of everything."""
    assert runtime_to_change(record, PATTERN) is record.runtimes[0]
    assert unsupported_reason(record, "gpu-1", PATTERN) is None


@pytest.mark.parametrize(
    "imports", [(PATTERN,), ("conf.d/*.toml",), ("/etc/containerd/conf.d/*",), ("x", "./conf.d/*")]
)
def test_an_import_that_is_there_is_no_change(imports: tuple[str, ...]) -> None:
    """Relative patterns begin at the configuration's directory."""
    record = node(imports=imports)
    assert (runtime_to_change(record, PATTERN), unsupported_reason(record, "gpu-1", PATTERN)) == (None, None)


@pytest.mark.parametrize(
    "record",
    [HostRecord(), replace(NODE, kubernetes=Kubernetes()), node(kind=CRIO), node(running=False), K3S],
    ids=["nothing there", "no kubelet", "CRI-O", "not running", "k3s"],
)
def test_other_runtimes_are_left_alone(record: HostRecord) -> None:
    """CRI-O reads its drop-ins by itself, and a distribution writes its configuration at each start."""
    assert runtime_to_change(record, PATTERN) is None


@pytest.mark.parametrize(
    ("record", "evidence", "fix"),
    [
        (K3S, "written by k3s at each start", "/var/lib/rancher/k3s/agent/etc/containerd/config.toml.tmpl"),
        (node(schema=1), "is of schema 1", "containerd config migrate"),
    ],
)
def test_what_cannot_be_changed_is_a_warning_with_what_to_do(record: HostRecord, evidence: str, fix: str) -> None:
    """For who insists on it."""
    finding = unsupported_reason(record, "gpu-1", PATTERN)
    assert finding
    assert (finding.code, finding.where, finding.severity) == ("GP670", "gpu-1", Severity.WARNING)
    assert evidence in finding.evidence
    assert fix in finding.fix
    assert runtime_to_change(record, PATTERN) is None
