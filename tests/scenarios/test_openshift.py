"""OpenShift from the first run to the removal: constraints, Driver Toolkit, updates of the cluster, proxy.

On the sandbox alone: its OpenShift is a simulation, and docs/evidence.md says what is unproven. MachineConfigs have
scenarios of their own (test_machine_config.py).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_provision.sandbox.openshift_releases import RELEASES, OpenShiftRelease
from tests.answers import Answer
from tests.scenarios.on_sandbox import SandboxWorld, sandbox_world
from tests.scenarios.test_operator import Home
from tests.scenarios.test_removal import Dump, dump
from tests.scenarios.world import CHECKOUT, OPERANDS

Make = Callable[..., SandboxWorld]

GPU_NODES = ("gpu-0", "gpu-1")
OLD, NEW, NEXT = RELEASES["4.18.13"], RELEASES["4.18.24"], RELEASES["4.19.15"]
SCC, TOOLKIT = "openshift.io/scc", "openshift-driver-toolkit-ctr"
_CERTIFICATE = "-----BEGIN CERTIFICATE-----\nT1VSUw==\n-----END CERTIFICATE-----\n"


@pytest.fixture
def new_openshift(tmp_path: Path) -> Iterator[Make]:
    """Opens the built-in OpenShift fleet with the inventory that comes for it; words change the fleet's section."""
    fleet = yaml.safe_load((CHECKOUT / "gpu_provision/sandbox/fleets/openshift.yaml").read_text())
    with ExitStack() as opened:

        def open_world(*, timings: dict[str, float] | None = None, **openshift: Any) -> SandboxWorld:
            changes = {"timings": timings} if timings else {}
            settings = {**fleet["openshift"], **openshift}
            world = opened.enter_context(sandbox_world(tmp_path, nodes=fleet["nodes"], openshift=settings, **changes))
            text = (CHECKOUT / "inventories/openshift.yaml").read_text()
            text = text.replace("sandbox: openshift", f"sandbox: {world.fleet}").replace(
                "name: openshift", "name: sandbox"
            )
            world.edit(lambda _: text)
            return world

        yield open_world


def kernels(world: SandboxWorld) -> dict[str, str]:
    nodes = world.json("nodes")["items"]
    return {node["metadata"]["name"]: node["status"]["nodeInfo"]["kernelVersion"] for node in nodes}


def upgrade(world: SandboxWorld, release: OpenShiftRelease) -> None:
    """Install a release, and wait until every GPU node has booted it."""
    begin_upgrade(world, release)
    world.until(lambda: {kernels(world)[name] for name in GPU_NODES} == {release.kernel})
    world.until(lambda: is_updated(world, "gpu"))


def begin_upgrade(world: SandboxWorld, release: OpenShiftRelease) -> None:
    """Install a release, and wait until the control plane runs it."""
    world.cli("sandbox", "upgrade", "--fleet", str(world.fleet), "--to", release.version, check=True)

    def completed() -> bool:
        first = world.json("clusterversion", "version")["status"]["history"][0]
        return bool((first["version"], first["state"]) == (release.version, "Completed"))

    world.until(completed)


def is_updated(world: SandboxWorld, pool: str) -> bool:
    conditions = world.json("machineconfigpool", pool)["status"]["conditions"]
    return any((each["type"], each["status"]) == ("Updated", "True") for each in conditions)


def is_rolling(world: SandboxWorld) -> bool:
    """Whether the Machine Config Operator works on a node."""
    notes = [node["metadata"].get("annotations", {}) for node in world.json("nodes")["items"]]
    return "Working" in {each.get("machineconfiguration.openshift.io/state") for each in notes}


def remove_tag(world: SandboxWorld, release: OpenShiftRelease) -> None:
    """Take the Driver Toolkit of a release from the image stream."""
    words = ("imagestream", "-n", "openshift", "driver-toolkit")
    stream = world.json(*words)
    for part, key in (("spec", "name"), ("status", "tag")):
        tags = [tag for tag in stream[part]["tags"] if tag[key] not in {release.rhcos, "latest"}]
        world.api.patch(*words, patch={part: {"tags": tags}}, part="" if part == "spec" else part)


def finding(answer: Answer, code: str) -> dict[str, Any]:
    """Return the only finding with a code; empty without one."""
    document = answer.document
    found: list[dict[str, Any]] = [
        each for each in (*document["errors"], *document["warnings"]) if each["code"] == code
    ]
    assert len(found) <= 1
    return found[0] if found else {}


def settled(found: Dump) -> Dump:
    """Leave out what the Machine Config Operator keeps: rendered configurations, and its notes on nodes."""
    kept = {key: item for key, item in found.items() if " MachineConfig /rendered-" not in key}
    for item in kept.values():
        notes = item["metadata"].get("annotations", {})
        for name in [name for name in notes if name.startswith("machineconfiguration.openshift.io/")]:
            del notes[name]
    return kept


def drivers(world: SandboxWorld) -> dict[str, tuple[str, str]]:
    """Return the images of driver and toolkit on each node."""
    found = {}
    for pod in world.driver_pods():
        images = {each["name"]: each["image"] for each in pod["spec"]["containers"]}
        found[pod["spec"]["nodeName"]] = images["nvidia-driver-ctr"], images[TOOLKIT]
    return found


def test_the_first_run_the_second_and_the_removal(new_openshift: Make) -> None:
    """Each account has a constraint of its own; the second run writes nothing; at the end all is as before."""
    world = new_openshift()
    before = settled(dump(world))
    world.apply(check=True)
    assert {row["state"] for row in world.status()["nodes"]} == {"ready"}
    pods = [*world.json("pods", "-n", OPERANDS)["items"], *world.json("pods", "-n", "node-feature-discovery")["items"]]
    granted = {pod["spec"]["serviceAccountName"]: pod["metadata"]["annotations"][SCC] for pod in pods}
    assert granted.pop("node-feature-discovery") in {"restricted-v2", "node-feature-discovery"}
    assert granted == {name: name for name in granted}
    assert {"nvidia-driver", "nvidia-device-plugin", "nvidia-operator-validator"} <= granted.keys()
    images = drivers(world)
    assert images.keys() == {*GPU_NODES}
    assert {image.partition("-")[2] for image, _ in images.values()} == {"rhcos4.18"}
    assert {toolkit for _, toolkit in images.values()} == {OLD.toolkit_image}
    namespace = world.json("namespace", OPERANDS)["metadata"]
    assert namespace["labels"]["openshift.io/cluster-monitoring"] == "true"
    assert world.api.exists("servicemonitor", "-n", OPERANDS, "nvidia-dcgm-exporter")

    writes = len(world.writes())
    again = world.apply("--json", check=True)
    assert (again.document["changed"], len(world.writes())) == (0, writes)
    assert "everything is as declared" in world.plan().text
    assert world.cli("drift", "--detailed-exitcode", "-i", str(world.inventory)).code == 0

    removed = world.cli("destroy", "--yes", "--crds", "-i", str(world.inventory), check=True)
    assert "Nothing of the stack is left" in removed.text
    world.until(lambda: is_updated(world, "gpu") and settled(dump(world)) == before)


@pytest.mark.real  # for the time it takes
def test_a_run_outlives_the_end_of_the_api_server(new_openshift: Make) -> None:
    """During the roll of a MachineConfig, and once drivers start; the next run has nothing to do."""
    world = new_openshift(timings={"speed": 5})
    run = world.start(*world.apply_command, log=world.folder / "run.log")
    for is_reached in (is_rolling, SandboxWorld.driver_pods):
        world.until(lambda is_reached=is_reached: is_reached(world))
        assert run.poll() is None, "the run was to be in the middle"
        world.kill_server()
        world.start_server()
    assert run.wait() == 0, (world.folder / "run.log").read_text()
    assert is_updated(world, "gpu")
    assert {row["state"] for row in world.status()["nodes"]} == {"ready"}
    assert world.apply("--json", check=True).document["changed"] == 0


def test_an_update_of_the_cluster_is_a_rollout_like_any_other(new_openshift: Make) -> None:
    """The driver of the new kernel is built by its own toolkit; also where CoreOS has another name since."""
    world = new_openshift()
    world.apply(check=True)
    for release, system in ((NEW, "rhcos4.18"), (NEXT, "rhel9")):
        upgrade(world, release)
        planned = world.plan().text
        assert f"+ DaemonSet {OPERANDS}/nvidia-driver-daemonset-{system}-{release.rhcos}" in planned
        assert world.cli("drift", "--detailed-exitcode", "-i", str(world.inventory)).code == 2
        world.apply(check=True)
        assert {row["state"] for row in world.status()["nodes"]} == {"ready"}
        images = drivers(world)
        assert images.keys() == {*GPU_NODES}
        assert {image.partition("-")[2] for image, _ in images.values()} == {system}
        assert {toolkit for _, toolkit in images.values()} == {release.toolkit_image}
        assert world.apply("--json", check=True).document["changed"] == 0


@pytest.mark.real  # for the time it takes
def test_a_release_without_its_toolkit_is_found_beforehand(new_openshift: Make) -> None:
    """While the pool is paused, and again once nodes run it; with the image the next run makes them ready."""
    world = new_openshift()
    world.apply(check=True)
    world.api.patch("machineconfigpool", "gpu", patch={"spec": {"paused": True}})
    begin_upgrade(world, NEW)
    assert "GP427" not in world.plan().text, "the toolkit of the new release is there"
    remove_tag(world, NEW)
    warning = world.until(lambda: finding(world.cli("preflight", "--json", "-i", str(world.inventory)), "GP427"))
    assert all(name in warning["what"] for name in GPU_NODES)
    assert NEW.version in warning["what"]
    assert warning["fix"].endswith("keep gpu paused")
    assert "GP427" in world.plan().text
    world.api.patch("machineconfigpool", "gpu", patch={"spec": {"paused": False}})
    world.until(lambda: {kernels(world)[name] for name in GPU_NODES} == {NEW.kernel})
    world.until(lambda: is_updated(world, "gpu"))
    found = world.cli("preflight", "--json", "-i", str(world.inventory))
    error = finding(found, "GP425")
    assert NEW.rhcos in str(error)
    assert all(name in str(error) for name in GPU_NODES)
    assert f"--image-for=driver-toolkit) driver-toolkit:{NEW.rhcos}" in error["fix"]
    world.settings(driver={"timeout": 30})
    failed = world.apply("--json")
    assert failed.code == 1
    [only] = failed.document["errors"]
    assert (only["code"], only["fix"]) == ("GP425", error["fix"])
    assert "RHEL entitlement may be improperly deployed" in only["evidence"]
    world.api.delete("imagestream", "-n", "openshift", "driver-toolkit")
    world.until(lambda: world.api.exists("imagestream", "-n", "openshift", "driver-toolkit"))
    world.apply(check=True)
    assert {toolkit for _, toolkit in drivers(world).values()} == {NEW.toolkit_image}


@pytest.mark.real  # for the time it takes
def test_drivers_that_run_stay_if_their_toolkit_goes(new_openshift: Make) -> None:
    """Such as after an edit of the ImageStream; else a run would replace a driver that works by one that fails."""
    world = new_openshift()
    world.apply(check=True)
    before = {pod["metadata"]["uid"] for pod in world.driver_pods()}
    remove_tag(world, OLD)
    assert "skipped: gpu-0, gpu-1: there is no Driver Toolkit image" in world.plan().text
    failed = world.apply("--json")
    assert (failed.code, [each["code"] for each in failed.document["errors"]]) == (1, ["GP425"])
    assert {pod["metadata"]["uid"] for pod in world.driver_pods()} == before
    assert {row["state"] for row in world.status()["nodes"]} == {"ready"}


@pytest.mark.real  # for the time it takes
def test_narrowed_constraints_are_restored(new_openshift: Make) -> None:
    """The cluster refuses the driver's pods with its own words; drift names who did it, and the next run repairs it."""
    world = new_openshift()
    world.apply(check=True)
    edit = {"allowPrivilegedContainer": False}
    world.api.patch("securitycontextconstraints", "nvidia-driver", patch=edit, manager="kubectl-edit")
    world.api.delete("pods", "-n", OPERANDS, "-l", "app=nvidia-driver-daemonset")

    def refusal() -> str:
        events = world.json("events", "-n", OPERANDS, "--field-selector", "reason=FailedCreate")["items"]
        return str(next((each["message"] for each in events), ""))

    message = world.until(refusal)
    assert "is forbidden: unable to validate against any security context constraint: [" in message
    assert "provider nvidia-driver: .containers[0].privileged: Invalid value: true" in message
    drift = world.cli("drift", "-i", str(world.inventory)).text
    assert "allowPrivilegedContainer: false instead of true  by kubectl-edit" in drift
    world.apply(check=True)
    assert {row["state"] for row in world.status()["nodes"]} == {"ready"}


@pytest.mark.real  # for the time it takes
def test_pods_that_no_constraint_allows_are_named(new_openshift: Make) -> None:
    """With the cluster's own words, by the run and by status. What the removal leaves is said for CoreOS."""
    world = new_openshift()
    world.settings(driver={"timeout": 30}, openshift={"machine_config": False})
    # Without labels of the node there is no driver pod before the edit.
    world.fault({"fault": "image-pull-fails", "image": "node-feature-discovery"})
    run = world.start(*world.apply_command, "--json", log=world.folder / "run.log")
    world.until(lambda: world.api.exists("securitycontextconstraints", "nvidia-driver"))
    edit = {"allowPrivilegedContainer": False}
    world.api.patch("securitycontextconstraints", "nvidia-driver", patch=edit, manager="kubectl-edit")
    world.fault()
    assert run.wait() == 1
    told = (world.folder / "run.log").read_text()
    assert "no SecurityContextConstraints allow its pods" in told
    assert "provider nvidia-driver: .containers[0].privileged: Invalid value: true" in told
    assert "unable to validate against any security context constraint" in str(world.status()["components"])
    removal = world.cli("destroy", "--dry-run", "-i", str(world.inventory)).text
    assert "oc debug node/NODE" in removal
    assert "--hosts-only" not in removal


@pytest.mark.real  # for the time it takes
def test_validations_repeat_and_earlier_versions_come_back(new_openshift: Make) -> None:
    """Without a reboot of a node."""
    world = new_openshift()
    world.apply(check=True)
    boots = {name: world.boot(name) for name in GPU_NODES}
    repeated = world.cli("validate", "--gpus", "--json", "-i", str(world.inventory), check=True)
    assert {each["node"] for each in repeated.document["evidence"] if each["passed"]} == {*GPU_NODES}
    world.settings(driver={"version": "580.126.20"})
    world.apply(check=True)
    assert {image.rpartition(":")[2] for image, _ in drivers(world).values()} == {"580.126.20-rhcos4.18"}
    world.cli("rollback", "1", "--yes", "-i", str(world.inventory), check=True)
    assert {image.rpartition(":")[2] for image, _ in drivers(world).values()} == {"595.91.07-rhcos4.18"}
    world.settings(driver={"version": "595.91.07"})
    assert "everything is as declared" in world.plan().text
    assert {row["state"] for row in world.status()["nodes"]} == {"ready"}
    assert {name: world.boot(name) for name in GPU_NODES} == boots


def test_proxy_and_certificates_reach_the_driver(new_openshift: Make) -> None:
    """Of the cluster, without a setting; what the network operator injects is no drift."""
    world = new_openshift(proxy={"https": "http://proxy.example:3128"}, trusted_ca=_CERTIFICATE)
    world.apply(check=True)
    [container] = [each for each in world.driver_pods()[0]["spec"]["containers"] if each["name"] == "nvidia-driver-ctr"]
    variables = {each["name"]: each.get("value") for each in container["env"]}
    assert variables["HTTPS_PROXY"] == variables["https_proxy"] == "http://proxy.example:3128"
    assert ".cluster.local" in str(variables["NO_PROXY"])
    bundle = world.json("configmap", "-n", OPERANDS, "gpu-operator-trusted-ca")["data"]["ca-bundle.crt"]
    assert bundle.startswith(_CERTIFICATE)
    assert world.apply("--json", check=True).document["changed"] == 0
    assert world.cli("drift", "--detailed-exitcode", "-i", str(world.inventory)).code == 0


def test_an_administrators_rights_are_not_needed(new_openshift: Make) -> None:
    """What ``gpu-provision rbac`` prints is enough, for the removal as well."""
    world = new_openshift()
    world.give_rights("--destroy")
    rights = world.give_rights()
    world.apply(*rights, check=True)
    assert world.apply("--json", *rights, check=True).document["changed"] == 0
    world.cli("destroy", "--yes", "-i", str(world.inventory), *rights, check=True)


def test_the_notebook_of_the_guide_gets_a_gpu(new_openshift: Make) -> None:
    """With the constraint that every account may use, and with a user that it does not choose."""
    world = new_openshift()
    world.apply(check=True)
    blocks = re.findall(r"```yaml\n(.*?)```", (CHECKOUT / "docs/openshift.md").read_text(), re.DOTALL)
    [notebook] = [text for text in blocks if "kind: Deployment" in text]
    world.submit(notebook)

    def serves() -> dict[str, Any]:
        pods = world.json("pods", "-l", "app=notebook")["items"]
        return next((pod for pod in pods if "Jupyter Server is running" in logs(world, pod)), {})

    pod = world.until(serves)
    assert pod["metadata"]["annotations"][SCC] == "restricted-v2"
    assert pod["spec"]["nodeName"] in GPU_NODES


def logs(world: SandboxWorld, pod: dict[str, Any]) -> str:
    is_up = any(each.get("started") for each in pod.get("status", {}).get("containerStatuses", ()))
    return world.api.logs(pod["metadata"]["name"], "default") if is_up else ""


@pytest.mark.real  # for the time it takes
def test_the_operator_keeps_a_stack_over_an_update(new_openshift: Make) -> None:
    """The controller makes the driver of the new kernel by itself."""
    world = new_openshift()
    home = Home(world)
    home.controller()
    home.declare()
    home.until("Ready")
    upgrade(world, NEW)
    world.until(lambda: {toolkit for _, toolkit in drivers(world).values()} == {NEW.toolkit_image}, seconds=150)
    home.until("Ready")
    world.api.delete("gpustack", "main")
    assert not world.driver_pods()
    assert not world.api.exists("machineconfig", "99-gpu-gpu-provision")
