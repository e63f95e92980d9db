"""What a container runtime is started with, from records alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpu_provision.hosts.background_script import ScriptOutcome, ScriptResult, script_problem
from gpu_provision.hosts.facts.host import HostFacts
from gpu_provision.hosts.facts.runtime import DEBIAN, RHEL, ContainerRuntime, Environment, Kubernetes
from gpu_provision.hosts.operations.runtime import HostFile, Proxy, environment_change, proxy_unsupported, redact

CONTAINERD = ContainerRuntime(
    kind="containerd",
    running=True,
    binary="/usr/bin/containerd",
    config="/etc/containerd/config.toml",
    socket="/run/containerd/containerd.sock",
    unit="containerd.service",
)
NODE = HostFacts(
    runtimes=(CONTAINERD,),
    kubernetes=Kubernetes(distribution="kubeadm", running=True),
    environment=Environment(trust=DEBIAN),
)
PROXY = Proxy(https_proxy='http://me:s3"cr$et@proxy:3128', no_proxy="10.0.0.0/8,.example.com")
ENV = "/etc/gpu-provision/runtime-proxy.env"
DROP_IN = "/etc/systemd/system/containerd.service.d/90-gpu-provision-proxy.conf"
CERTIFICATE = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"


def after(record: HostFacts, proxy: Proxy, *certificates: str) -> HostFacts:
    files = dict(record.environment.files)
    for path, file in environment_change(record, proxy, certificates).files.items():
        files.pop(path, None)
        if file:
            files[path] = file.digest
    return replace(record, environment=replace(record.environment, files=files))


def test_the_proxy_is_in_a_file_for_root_alone() -> None:
    """Every user who may ask systemd reads a unit's Environment=, but not the file that it names."""
    change = environment_change(NODE, PROXY, ())
    env, drop_in = change.files[ENV], change.files[DROP_IN]
    assert env
    assert drop_in
    assert (env.mode, drop_in.mode) == ("600", "644")
    assert env.text == 'HTTPS_PROXY="http://me:s3\\"cr\\$et@proxy:3128"\nNO_PROXY="10.0.0.0/8,.example.com"\n'
    assert f"EnvironmentFile={ENV}\n" in drop_in.text
    assert (change.runtime, change.trust, change.units) == (CONTAINERD, None, True)


def test_nothing_for_people_shows_credentials() -> None:
    """Neither the change in words, nor the difference, nor what pyinfra prints of the operation."""
    change = environment_change(NODE, PROXY, ())
    lines = [line for path, file in change.files.items() for line in redact(path, file)]
    text = "\n".join([*change.description, *lines, repr(PROXY), str(PROXY)])
    assert "http://proxy:3128" in text
    assert "cr$et" not in text.replace("\\", "")
    assert change.description == (
        "images pulled through a proxy: https_proxy=http://proxy:3128, no_proxy=10.0.0.0/8,.example.com",
        "containerd restarted",
    )


def test_second_run_changes_nothing_and_undeclared_is_undone() -> None:
    """By what the files hold; certificates have a name that says what they hold."""
    prepared = after(NODE, PROXY, CERTIFICATE)
    assert not environment_change(prepared, PROXY, (CERTIFICATE,)).files
    gone = environment_change(prepared, Proxy(), ())
    assert set(gone.files.values()) == {None}
    assert len(gone.files) == 3
    assert gone.trust == DEBIAN
    assert gone.description == (
        "images no longer pulled through our proxy",
        "certificates trusted besides the system's own: 0",
        "containerd restarted",
    )
    assert not after(prepared, Proxy()).environment.files


def test_another_password_is_a_change() -> None:
    change = environment_change(after(NODE, PROXY), replace(PROXY, https_proxy="http://me:new@proxy:3128"), ())
    assert set(change.files) == {ENV}
    assert not change.units


@pytest.mark.parametrize(("store", "suffix"), [(DEBIAN, ".crt"), (RHEL, ".pem")])
def test_certificates_go_where_the_system_looks(store: object, suffix: str) -> None:
    """Also on a host without a container runtime, where nothing is restarted then."""
    bare = HostFacts(environment=Environment(trust=store))  # type: ignore[arg-type]  # a store
    change = environment_change(bare, Proxy(), (CERTIFICATE,))
    ((path, file),) = change.files.items()
    assert path.startswith(f"{change.trust and change.trust.anchors}/gpu-provision-")
    assert path.endswith(suffix)
    assert file == HostFile(text=CERTIFICATE)
    assert (change.runtime, change.trust) == (None, store)
    assert change.description == ("certificates trusted besides the system's own: 1",)


@pytest.mark.parametrize(
    ("distribution", "unit", "line"),
    [
        ("k3s", "k3s-agent.service", "CONTAINERD_HTTPS_PROXY="),
        ("rke2", "rke2-server.service", "CONTAINERD_HTTPS_PROXY="),
        ("k0s", "k0sworker.service", "CONTAINERD_HTTPS_PROXY="),
        ("kubeadm", "", "HTTPS_PROXY="),
    ],
)
def test_units_with_a_kubelet_hand_the_proxy_to_containerd_alone(distribution: str, unit: str, line: str) -> None:
    """A kubelet that is sent through a proxy does not find its API server."""
    kubernetes = Kubernetes(distribution=distribution, running=True, runtime_endpoint=CONTAINERD.socket)
    record = replace(NODE, runtimes=(replace(CONTAINERD, unit=unit),), kubernetes=kubernetes)
    change = environment_change(record, PROXY, ())
    env = change.files[ENV]
    assert env
    assert env.text.startswith(line)
    folder = unit or "containerd.service"
    assert f"/etc/systemd/system/{folder}.d/90-gpu-provision-proxy.conf" in change.files


MICROK8S = replace(NODE, runtimes=(replace(CONTAINERD, unit="snap.microk8s.daemon-containerd.service"),))


@pytest.mark.parametrize("record", [MICROK8S, HostFacts()], ids=["snap", "no runtime"])
def test_a_runtime_that_cannot_be_told_is_a_warning(record: HostFacts) -> None:
    found = proxy_unsupported(record, "gpu-1", PROXY)
    assert found
    assert found.code == "GP674"
    assert not environment_change(record, PROXY, ()).files
    assert proxy_unsupported(record, "gpu-1", Proxy()) is None
    assert proxy_unsupported(NODE, "gpu-1", PROXY) is None


def test_a_runtime_that_is_down_keeps_the_proxy_that_it_has() -> None:
    prepared = after(NODE, PROXY, CERTIFICATE)
    down = replace(prepared, runtimes=(replace(CONTAINERD, running=False),))
    assert not environment_change(down, PROXY, (CERTIFICATE,)).files
    assert len(environment_change(down, PROXY, ()).files) == 1


@pytest.mark.parametrize("outcome", [*ScriptOutcome, None])
def test_what_went_wrong_is_a_finding(outcome: ScriptOutcome | None) -> None:
    result = ScriptResult(outcome=outcome, evidence="why") if outcome else None
    found = script_problem("gpu-1", result, kind="containerd", change="a proxy", remedy="correct it")
    rejected = ("no-tool", "rejected-old", "rejected-new", "not-kept")
    codes = {"changed": None, "restored": "GP672", **dict.fromkeys(rejected, "GP671")}
    assert (found and found.code) == codes.get(outcome or "", "GP673")
    assert found is None or found.evidence == ("why" if outcome else "")
    assert "{" not in str(found)
