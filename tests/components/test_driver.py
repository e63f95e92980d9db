"""Driver DaemonSets."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpu_provision.components import problems, render_manifests
from gpu_provision.components.driver import image_of
from gpu_provision.model.cluster import ClusterFacts
from gpu_provision.model.driver_specs import VirtualTopology
from gpu_provision.model.findings import Severity
from gpu_provision.model.inventory import ClusterConfig, Inventory, OperatingSystem
from tests.components import builders, views


def daemon_sets(inventory: Inventory, facts: ClusterFacts | None = None) -> dict[str, dict[str, Any]]:
    manifests = render_manifests(builders.context(inventory, facts)).get("driver", [])
    return {item["metadata"]["name"]: item for item in views.of_kind(manifests, "DaemonSet")}


def pod_of(inventory: Inventory, facts: ClusterFacts | None = None) -> dict[str, Any]:
    first = next(iter(daemon_sets(inventory, facts).values()))
    pod: dict[str, Any] = first["spec"]["template"]["spec"]
    return pod


def env_of(container: dict[str, Any]) -> dict[str, Any]:
    return {entry["name"]: entry.get("value") for entry in container["env"]}


def test_an_upgrade_changes_image_and_digest_and_nothing_else() -> None:
    """The plan of an upgrade must be as short as the edit."""
    old, new = builders.inventory(), builders.with_spec("driver", image=replace(builders.DRIVER.image, version="600.1"))
    before, after = daemon_sets(old), daemon_sets(new)
    assert before.keys() == after.keys()
    for name in before:
        first, second = views.operand(before[name]), views.operand(after[name])
        assert set(views.differences(first, second)) == {
            "containers nvidia-driver-ctr image",
            "containers nvidia-driver-ctr env DRIVER_CONFIG_DIGEST",
            "initContainers k8s-driver-manager env DRIVER_CONFIG_DIGEST",
        }


def test_what_needs_no_new_installation_keeps_the_digest() -> None:
    """Driver and manager then leave the loaded modules alone, and workloads running."""
    digests = [
        env_of(pod_of(chosen)["containers"][0])["DRIVER_CONFIG_DIGEST"]
        for chosen in (
            builders.inventory(),
            builders.with_spec(
                "driver",
                resources={"limits": {"cpu": "2"}},
                image_pull_secrets=("a",),
                labels={"team": "ml"},
                annotations={"note": "x"},
                tolerations=({"key": "own", "operator": "Exists"},),
                priority_class_name="driver",
            ),
            builders.with_spec("driver", env={"HTTP_PROXY": "http://proxy"}),
        )
    ]
    assert digests[0] == digests[1] != digests[2]


def test_a_pinned_digest_takes_no_suffix() -> None:
    """A pinned image has already chosen the system."""
    pinned = builders.with_spec("driver", image=replace(builders.DRIVER.image, version="sha256:abc"))
    assert pod_of(pinned)["containers"][0]["image"] == "nvcr.io/nvidia/driver@sha256:abc"


@pytest.mark.parametrize(
    ("enabled", "pools", "names"),
    [
        (False, {}, []),
        (True, {"t4": {"driver": {"enabled": False}}}, ["nvidia-driver-daemonset-ubuntu24.04"]),
        (False, {"h100": {"driver": {"enabled": True}}}, ["nvidia-driver-daemonset-h100-ubuntu24.04"]),
    ],
)
def test_nodes_without_a_driver_container_get_no_daemonset(enabled: Any, pools: Any, names: list[str]) -> None:
    """Off for all, off for one pool, or on for one pool only."""
    assert list(daemon_sets(builders.inventory_with({"driver": {"enabled": enabled}, "pools": pools}))) == names


def test_a_node_of_unknown_system_gets_no_daemonset() -> None:
    """No image can be chosen for it."""
    pools = {**builders.POOLS, "t4": replace(builders.POOLS["t4"], os=None)}
    facts = ClusterFacts(nodes=(builders.node("t4-1", None), builders.node("t4-2")))
    known = builders.context(builders.inventory(pools=pools), facts)
    (finding,) = problems(known)
    assert (finding.code, finding.severity) == ("GP401", Severity.ERROR)
    assert "t4-1" in finding.what
    assert [image_of(target) for target in known.targets if target.name == "t4-1"] == [""]


def test_offline_an_unknown_system_of_openshift_is_a_warning() -> None:
    """Its pools have no system, as each node reports its own."""
    pools = {name: replace(pool, os=None) for name, pool in builders.POOLS.items()}
    declared = replace(builders.inventory(pools=pools), cluster=ClusterConfig(platform="openshift"))
    found = problems(builders.context(declared))
    assert {(each.code, each.severity, each.evidence) for each in found} == {
        ("GP401", Severity.WARNING, "no cluster was read")
    }
    assert all("rhcos4.18" in each.fix for each in found)


def test_a_system_without_driver_images_is_a_warning() -> None:
    """The user may have built one."""
    pools = {**builders.POOLS, "t4": replace(builders.POOLS["t4"], os=OperatingSystem("debian", "12"))}
    result = problems(builders.context(builders.inventory(pools=pools)))
    assert [(item.code, item.severity) for item in result] == [("GP402", Severity.WARNING)]
    assert result[0].where == "Nodes t4-1, t4-2"
    assert "nvcr.io/nvidia/driver:595.91.07-debian12" in result[0].evidence


def test_an_own_build_gets_the_suffix_of_the_system() -> None:
    """As in the GPU Operator: repository, image, version, and the operating system of the node."""
    own = {"driver": {"repository": "registry.example.com/gpu", "version": "570.86.15-custom"}}
    images = {image_of(target) for target in builders.context(builders.inventory_with(own), builders.fleet()).targets}
    prefix = "registry.example.com/gpu/driver:570.86.15-custom"
    assert images == {f"{prefix}-ubuntu22.04", f"{prefix}-ubuntu24.04"}


DIRECTORIES = {
    OperatingSystem("ubuntu", "22.04"): ("/etc/apt/sources.list.d", "/usr/local/share/ca-certificates"),
    OperatingSystem("rhel", "9.4"): ("/etc/yum.repos.d", "/etc/pki/ca-trust/extracted/pem"),
    OperatingSystem("rocky", "9.4"): ("/etc/yum.repos.d", "/etc/pki/ca-trust/extracted/pem"),
    OperatingSystem("sles", "15.5"): ("/etc/zypp/repos.d", "/etc/pki/trust/anchors"),
}


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("os", DIRECTORIES)
def test_repositories_and_certificates_go_where_the_system_looks(os: OperatingSystem, known: bool) -> None:  # noqa: FBT001 -- a parameter
    """Each key beside what the image has; the whole directory where the keys are not known."""
    pools = {"t4": replace(builders.POOLS["t4"], os=os, driver=with_inputs())}
    chosen = builders.inventory(pools=pools, nodes=builders.NODES[:1])
    keys = {"repos.d": {"b.list": "", "a.list": ""}, "certs": {"ca.crt": ""}} if known else {}
    pod = pod_of(chosen, ClusterFacts(config_maps=keys))
    mounts = {item["mountPath"]: item for item in pod["containers"][0]["volumeMounts"]}
    repos, certs = DIRECTORIES[os]
    wanted = [f"{repos}/a.list", f"{repos}/b.list", f"{certs}/ca.crt"] if known else [repos, certs]
    for path in wanted:
        assert mounts[path]["readOnly"] is True
        assert mounts[path].get("subPath") == (path.rpartition("/")[2] if known else None)
    assert {"name": "repos-d", "configMap": {"name": "repos.d"}} in pod["volumes"]


@pytest.mark.parametrize(
    ("setting", "known"),
    [
        ("kernel_module_config", [{"config_maps": {"mine": {"nvidia.conf": text}}} for text in ("a=1", "a=2")]),
        ("licensing_config", [{"secrets": {"mine": text}} for text in ("a", "b")]),
        ("virtual_topology", [{"config_maps": {"mine": {"nvidia-topologyd.conf": text}}} for text in ("a", "b")]),
    ],
)
def test_editing_an_input_reinstalls_the_driver(setting: str, known: list[dict[str, Any]]) -> None:
    """In the reference, only another name of the ConfigMap does. A Secret is known by a digest."""
    value = VirtualTopology(config="mine") if setting == "virtual_topology" else "mine"
    chosen = builders.with_spec("driver", **{setting: value})
    facts = [ClusterFacts(), ClusterFacts(secrets={"other": "c"}), *(ClusterFacts(**each) for each in known)]
    digests = [env_of(pod_of(chosen, each)["containers"][0])["DRIVER_CONFIG_DIGEST"] for each in facts]
    assert digests[0] == digests[1]
    assert len(set(digests)) == 3


def with_inputs() -> Any:
    """Return driver settings with every optional input."""
    return replace(builders.DRIVER, repo_config="repos.d", cert_config="certs", licensing_config="licence")


@pytest.mark.parametrize(
    ("system", "runtime", "repo", "expected"),
    [
        ("rhel", "containerd", "", 3),
        ("rhel", "cri-o", "", 0),
        ("rhel", "containerd", "own", 0),
        ("sles", "cri-o", "own", 2),
        ("ubuntu", "containerd", "", 0),
    ],
)
def test_a_subscribed_host_lends_its_subscription(system: str, runtime: str, repo: str, expected: int) -> None:
    """Without it, the container cannot download kernel headers on RHEL and SLES."""
    os = OperatingSystem(system, "9.4")
    driver = replace(builders.DRIVER, repo_config=repo)
    pools = {"t4": replace(builders.POOLS["t4"], os=os, driver=driver)}
    facts = ClusterFacts(nodes=(builders.node("t4-1", os, container_runtime=runtime),))
    pod = pod_of(builders.inventory(pools=pools, nodes=builders.NODES[:1]), facts)
    names = [item["name"] for item in pod["volumes"] if item["name"].startswith("subscription-config-")]
    assert len(names) == expected


def test_a_module_beside_the_driver_installs_it_again() -> None:
    """The driver is built for nvidia-peermem, and the driver manager has to unload the modules that use it."""
    specs = builders.SPECS
    chosen = (
        builders.inventory(),
        builders.with_spec("driver", rdma=replace(specs.driver.rdma, enabled=True)),
        *(
            builders.inventory_with({"pools": {name: {key: {"enabled": True}} for name in builders.POOLS}})
            for key in ("gds", "gdrcopy")
        ),
    )
    digests = [env_of(pod_of(each)["containers"][0])["DRIVER_CONFIG_DIGEST"] for each in chosen]
    assert len(set(digests)) == len(chosen)


@pytest.mark.parametrize(
    ("card", "own_nfd", "expected"),
    [("15b3", True, []), ("8086", True, [Severity.ERROR]), ("8086", False, [Severity.WARNING])],
)
def test_rdma_needs_a_network_card(card: str, own_nfd: bool, expected: list[Severity]) -> None:  # noqa: FBT001 -- a parameter
    """Another Node Feature Discovery may say nothing of network cards."""
    rdma = replace(builders.DRIVER.rdma, enabled=True)
    pools = {"t4": replace(builders.POOLS["t4"], driver=replace(builders.DRIVER, rdma=rdma))}
    specs = replace(builders.SPECS, nfd=replace(builders.SPECS.nfd, enabled=own_nfd))
    seen = {f"feature.node.kubernetes.io/pci-{vendor}.present": "true" for vendor in ("10de", card)}
    facts = ClusterFacts(nodes=(builders.node("t4-1", labels=seen),))
    inventory = builders.inventory(pools=pools, nodes=builders.NODES[:1], specs=specs)
    found = problems(builders.context(inventory, facts))
    assert [each.severity for each in found if each.code == "GP421"] == expected


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        (ClusterFacts(), [Severity.WARNING]),
        (ClusterFacts(version="v1.34.1", nodes=(builders.node("t4-1"),)), [Severity.ERROR]),
        (ClusterFacts(version="v1.34.1", nodes=(builders.node("t4-1", kernel="6.8.0-45-generic"),)), []),
        (ClusterFacts(version="v1.34.1"), []),
    ],
    ids=["offline", "unknown", "known", "not joined"],
)
def test_a_precompiled_driver_needs_a_kernel(facts: ClusterFacts, expected: list[Severity]) -> None:
    """A node that has not joined is another finding."""
    driver = replace(builders.DRIVER, use_precompiled=True, image=replace(builders.DRIVER.image, version="595"))
    pools = {"t4": replace(builders.POOLS["t4"], driver=driver)}
    found = problems(builders.context(builders.inventory(pools=pools, nodes=builders.NODES[:1]), facts))
    assert [each.severity for each in found if each.code == "GP420"] == expected


def test_a_precompiled_driver_downloads_no_packages() -> None:
    """On SUSE it reads the modules of the host."""
    os, driver = OperatingSystem("sles", "15.5"), replace(with_inputs(), use_precompiled=True)
    pools = {"t4": replace(builders.POOLS["t4"], os=os, driver=driver)}
    nodes = (builders.node("t4-1", os, kernel="5.14.21-150500.55.7-default"),)
    pod = pod_of(builders.inventory(pools=pools, nodes=builders.NODES[:1]), ClusterFacts(nodes=nodes))
    mounts = {each["mountPath"]: each for each in pod["containers"][0]["volumeMounts"]}
    assert mounts["/run/host/lib/modules"]["readOnly"]
    assert not any("/etc/zypp" in path or "/etc/pki" in path or "SUSEConnect" in path for path in mounts)


@pytest.mark.parametrize(
    ("keys", "nls", "lacking"),
    [
        ({"gridd.conf", "client_configuration_token.tok"}, True, ""),
        ({"gridd.conf"}, True, "the licence has no client_configuration_token.tok"),
        ({"gridd.conf"}, False, ""),
        ({"token"}, True, "the licence has no gridd.conf and no client_configuration_token.tok"),
        (None, True, ""),  # it could not be read
    ],
)
def test_a_licence_has_the_files_that_the_driver_mounts(keys: set[str] | None, lacking: str, *, nls: bool) -> None:
    """The kubelet waits for them, without an end."""
    chosen = builders.with_spec("driver", licensing_config="licence", licensing_nls_enabled=nls)
    facts = replace(builders.fleet(), secret_keys={} if keys is None else {"licence": frozenset(keys)})
    found = [each for each in problems(builders.context(chosen, facts)) if each.code == "GP423"]
    assert [(each.what, each.severity) for each in found] == ([(lacking, Severity.ERROR)] if lacking else [])


def test_pools_that_share_a_licence_are_checked_each() -> None:
    """One pool needs the token of the Secret, and another one does not."""
    own = {name: replace(builders.DRIVER, licensing_config="licence") for name in builders.POOLS}
    own["t4"] = replace(own["t4"], licensing_nls_enabled=False)
    pools = {name: replace(pool, driver=own[name]) for name, pool in builders.POOLS.items()}
    facts = replace(builders.fleet(), secret_keys={"licence": frozenset({"gridd.conf"})})
    found = problems(builders.context(builders.inventory(pools=pools), facts))
    assert [each.code for each in found if each.code == "GP423"] == ["GP423"]
