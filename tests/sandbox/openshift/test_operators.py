"""The operators of OpenShift: pools roll, the cluster is upgraded, CA bundles are injected; also over a restart."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from gpu_provision.sandbox import objects
from gpu_provision.sandbox.api import CONFIG_MAPS, DISRUPTION_BUDGETS, NODES, PODS, Object
from gpu_provision.sandbox.fleet_file import load_fleet
from gpu_provision.sandbox.machine_config import CURRENT, DESIRED, MACHINE_CONFIGS, POOLS, STATE
from gpu_provision.sandbox.openshift.cluster_version_operator import CLUSTER_VERSIONS, IMAGE_STREAMS
from gpu_provision.sandbox.openshift.network_operator import PROXIES, SYSTEM_BUNDLE
from tests.sandbox.lab import Simulate
from tests.sandbox.openshift.conftest import NEW, NEXT, OLD, OpenShiftLab, fleet, machine_config

MINE = "99-worker-mine"
FILES = {"/etc/modules-load.d/mine.conf": "i2c_core", "/etc/modprobe.d/mine.conf": "blacklist nouveau"}


def node_facts(node: Object) -> tuple[str, str, str]:
    info = node["status"]["nodeInfo"]
    return info["osImage"], info["kernelVersion"], info["kubeletVersion"]


async def busy(lab: OpenShiftLab, seconds: list[int]) -> None:
    """Note how many nodes of the workers' pool are away, at every change."""
    nodes, version = await lab.api.list(NODES)
    live = {objects.name(node): node for node in nodes if objects.name(node) != "master-0"}
    async for event in lab.api.watch(NODES, version):
        if objects.name(event.object) in live:
            live[objects.name(event.object)] = event.object
            away = [node for node in live.values() if node["spec"].get("unschedulable")]
            seconds.append(len(away))


def test_nodes_join_their_pools(simulate: Simulate) -> None:
    async def scenario(lab: OpenShiftLab) -> None:
        master, worker = await lab.pool("master"), await lab.pool()
        assert [pool["status"]["machineCount"] for pool in (master, worker)] == [1, 3]
        node = await lab.node()
        assert node_facts(node) == (OLD.os_image, OLD.kernel, OLD.kubelet)
        assert objects.labels(node)["node-role.kubernetes.io/worker"] == ""
        assert objects.annotations_of(node)[CURRENT] == worker["spec"]["configuration"]["name"]
        taints = (await lab.node("master-0"))["spec"]["taints"]
        assert {"key": "node-role.kubernetes.io/master", "effect": "NoSchedule"} in taints

    simulate(scenario)


def test_a_machine_config_rolls_the_pool_node_by_node(simulate: Simulate) -> None:
    """Each node is drained, boots and comes back; deleting the MachineConfig rolls it back. Pods move away in time."""

    async def scenario(lab: OpenShiftLab) -> None:
        away: list[int] = []
        watching = asyncio.create_task(busy(lab, away))
        boots = {name: machine.state.boot_id for name, machine in lab.machines.items()}
        await lab.create(machine_config(MINE, files=FILES))
        await lab.condition("Updating")
        pool = await lab.rolled(MINE)
        watching.cancel()
        assert max(away) == 1
        assert pool["status"]["updatedMachineCount"] == 3
        rebooted = {name for name, machine in lab.machines.items() if machine.state.boot_id != boots[name]}
        assert rebooted == {"gpu-0", "gpu-1", "worker-0"}
        machine, node = lab.machines["gpu-0"], await lab.node()
        assert (machine.nouveau_loaded(), machine.state.modules) == (False, ["i2c_core"])
        assert "unschedulable" not in node["spec"]
        assert objects.annotations_of(node)[STATE] == "Done"
        await lab.delete(MACHINE_CONFIGS, MINE)
        await lab.rolled(MINE, present=False)
        assert machine.nouveau_loaded()

    simulate(scenario)


def test_the_operator_waits_for_further_machine_configs(simulate: Simulate) -> None:
    """Nodes reboot once for those that belong together; so a pool is still Updated right after a change."""
    found = fleet()
    slow = replace(found, timings=replace(found.timings, render_delay=500))  # ten seconds

    async def scenario(lab: OpenShiftLab) -> None:
        before = (await lab.pool())["spec"]["configuration"]
        await lab.create(machine_config(MINE, kernelArguments=["a"]))
        await lab.api.patch(POOLS, "worker", {"spec": {"maxUnavailable": 2}})

        async def seen() -> bool:
            pool = await lab.pool()
            return bool(pool["status"]["observedGeneration"] == pool["metadata"]["generation"])

        await lab.until(seen, "the operator has looked at the pool")
        pool = await lab.pool()
        assert pool["spec"]["configuration"] == before
        assert objects.has_condition(pool, "Updated")
        await lab.create(machine_config(f"{MINE}-too", kernelArguments=["b"]))
        await lab.rolled(MINE)
        assert (await lab.rendered())["spec"]["kernelArguments"] == ["a", "b"]
        rendered = [each for each in (await lab.api.list(MACHINE_CONFIGS))[0] if objects.controller_of(each)]
        assert sum(objects.name(each).startswith("rendered-worker") for each in rendered) == 2

    simulate(scenario, slow)


def test_max_unavailable_lets_nodes_go_together(simulate: Simulate) -> None:
    async def scenario(lab: OpenShiftLab) -> None:
        away: list[int] = []
        watching = asyncio.create_task(busy(lab, away))
        await lab.api.patch(POOLS, "worker", {"spec": {"maxUnavailable": "70%"}})
        await lab.create(machine_config(MINE, files=FILES))
        await lab.rolled(MINE)
        watching.cancel()
        assert max(away) == 2

    simulate(scenario)


def test_a_paused_pool_waits(simulate: Simulate) -> None:
    async def scenario(lab: OpenShiftLab) -> None:
        await lab.api.patch(POOLS, "worker", {"spec": {"paused": True}})
        before = objects.annotations_of(await lab.node())
        await lab.create(machine_config(MINE, files=FILES))

        async def rendered() -> bool:
            names = [each["name"] for each in (await lab.pool())["spec"]["configuration"]["source"]]
            condition = objects.condition(await lab.pool(), "Updating") or {}
            return MINE in names and condition["message"].startswith("Pool is paused; will not update to ")

        await lab.until(rendered, "rendered")
        assert objects.annotations_of(await lab.node()) == before
        await lab.api.patch(POOLS, "worker", {"spec": {"paused": False}})
        await lab.rolled(MINE)

    simulate(scenario)


def test_a_budget_holds_the_drain_back(simulate: Simulate) -> None:
    """The operator tries again until the pod may go; pods of DaemonSets stay."""

    async def scenario(lab: OpenShiftLab) -> None:
        labels = {"app": "held"}
        spec = {"nodeName": "gpu-0", "containers": [{"name": "main", "image": "a:1"}]}
        await lab.api.create(PODS, {"metadata": {"name": "held", "labels": labels}, "spec": spec}, "default")
        budget = {"minAvailable": 1, "selector": {"matchLabels": labels}}
        await lab.api.create(DISRUPTION_BUDGETS, {"metadata": {"name": "held"}, "spec": budget}, "default")

        async def is_guarded() -> bool:
            found = await lab.api.get(DISRUPTION_BUDGETS, "held", "default")
            return bool(found["status"].get("currentHealthy") == 1 and found["status"].get("observedGeneration"))

        await lab.until(is_guarded, "the budget counts the pod")
        await lab.create(machine_config(MINE, files=FILES))

        async def is_cordoned() -> bool:
            return bool((await lab.node())["spec"].get("unschedulable"))

        await lab.until(is_cordoned, "gpu-0 is cordoned")
        assert not objects.is_deleting(await lab.api.get(PODS, "held", "default"))
        boot = lab.machines["gpu-0"].state.boot_id
        await lab.api.delete(DISRUPTION_BUDGETS, "held", "default")
        await lab.rolled(MINE)
        assert lab.machines["gpu-0"].state.boot_id != boot
        assert not await lab.pods("held")

    simulate(scenario)


def test_a_node_that_fails_degrades_its_pool(simulate: Simulate) -> None:
    """No further node begins; the pool goes on once the fault is over."""

    async def scenario(lab: OpenShiftLab) -> None:
        await lab.faults({"fault": "machine-config-fails", "node": "gpu-0", "message": "disk full"})
        await lab.create(machine_config(MINE, files=FILES))
        pool = await lab.condition("Degraded")
        assert (objects.condition(pool, "NodeDegraded") or {})["message"] == 'Node gpu-0 is reporting: "disk full"'
        assert pool["status"]["degradedMachineCount"] == 1
        desired = [objects.annotations_of(node)[DESIRED] for node in (await lab.api.list(NODES))[0]]
        assert desired.count(pool["spec"]["configuration"]["name"]) == 1
        await lab.faults()
        assert not objects.has_condition(await lab.rolled(MINE), "Degraded")

    simulate(scenario)


def test_a_failed_node_can_be_sent_back(simulate: Simulate) -> None:
    """Without the MachineConfig, the pool returns to what it had."""

    async def scenario(lab: OpenShiftLab) -> None:
        await lab.faults({"fault": "machine-config-fails", "node": "gpu-0"})
        await lab.create(machine_config(MINE, files=FILES))
        await lab.condition("Degraded")
        await lab.delete(MACHINE_CONFIGS, MINE)
        await lab.faults()
        pool = await lab.rolled(MINE, present=False)
        assert "unschedulable" not in (await lab.node())["spec"]
        assert pool["status"]["degradedMachineCount"] == 0

    simulate(scenario)


def test_a_configuration_that_cannot_be_rendered(simulate: Simulate) -> None:
    async def scenario(lab: OpenShiftLab) -> None:
        broken = machine_config(MINE)
        broken["spec"]["config"] = {"ignition": {"version": "1.0.0"}}
        await lab.create(broken)
        pool = await lab.condition("RenderDegraded")
        message = (objects.condition(pool, "RenderDegraded") or {})["message"]
        assert message.startswith("Failed to render configuration for pool worker: parsing Ignition config failed")
        await lab.condition("Degraded")
        await lab.delete(MACHINE_CONFIGS, MINE)

        async def is_well() -> bool:
            return not objects.has_condition(await lab.pool(), "Degraded")

        await lab.until(is_well, "the pool is not degraded")

    simulate(scenario)


def test_the_built_in_fleet_has_a_pool_of_gpu_nodes(simulate: Simulate) -> None:
    async def scenario(lab: OpenShiftLab) -> None:
        counts = {name: (await lab.pool(name))["status"]["machineCount"] for name in ("master", "worker", "gpu")}
        assert counts == {"master": 1, "worker": 1, "gpu": 2}
        source = [each["name"] for each in (await lab.pool("gpu"))["spec"]["configuration"]["source"]]
        assert "00-worker" in source

    simulate(scenario, replace(load_fleet("openshift"), timings=fleet().timings))


def test_a_custom_pool_takes_its_nodes(simulate: Simulate) -> None:
    """A node with another role moves to that pool; MachineConfigs of the role reach it alone."""

    async def scenario(lab: OpenShiftLab) -> None:
        role, values = "machineconfiguration.openshift.io/role", ["worker", "gpu"]
        selector = {"matchExpressions": [{"key": role, "operator": "In", "values": values}]}
        nodes = {"matchLabels": {"node-role.kubernetes.io/gpu": ""}}
        spec = {"machineConfigSelector": selector, "nodeSelector": nodes}
        kind = {"apiVersion": "machineconfiguration.openshift.io/v1", "kind": "MachineConfigPool"}
        await lab.create({**kind, "metadata": {"name": "gpu"}, "spec": spec})
        await lab.api.patch(NODES, "gpu-0", {"metadata": {"labels": {"node-role.kubernetes.io/gpu": ""}}})
        await lab.create(machine_config("99-gpu-mine", role="gpu", files=FILES))
        pool = await lab.rolled("99-gpu-mine", "gpu")
        assert pool["status"]["machineCount"] == 1
        assert not lab.machines["gpu-0"].nouveau_loaded()
        assert lab.machines["gpu-1"].nouveau_loaded()
        assert (await lab.pool())["status"]["machineCount"] == 2

    simulate(scenario)


def test_a_roll_survives_a_restart(simulate: Simulate) -> None:
    """What a node has, and where its update stands, is kept; a finished one boots no second time."""

    async def begin(lab: OpenShiftLab) -> None:
        await lab.create(machine_config(MINE, files=FILES))

        async def first_is_done() -> bool:
            return (await lab.pool())["status"]["updatedMachineCount"] == 1 and bool(
                lab.machines["gpu-0"].state.blocked
            )

        await lab.until(first_is_done, "one node is done")
        boots["gpu-0"] = lab.machines["gpu-0"].state.boot_id

    async def finish(lab: OpenShiftLab) -> None:
        await lab.rolled(MINE)
        assert lab.machines["gpu-0"].state.boot_id == boots["gpu-0"]
        assert not any(machine.nouveau_loaded() for machine in lab.machines.values())

    boots: dict[str, str] = {}
    simulate(begin)
    simulate(finish)


def test_an_update_that_was_interrupted_after_its_boot(simulate: Simulate) -> None:
    """It is finished; the node boots no second time."""

    async def scenario(lab: OpenShiftLab) -> None:
        boot = lab.machines["gpu-0"].state.boot_id
        before = objects.annotations_of(await lab.node())[CURRENT]
        interrupted = {CURRENT: "rendered-worker-before", STATE: "Working"}
        await lab.api.patch(NODES, "gpu-0", {"metadata": {"annotations": interrupted}, "spec": {"unschedulable": True}})

        async def done() -> bool:
            node = await lab.node()
            found = objects.annotations_of(node)
            return found[STATE] == "Done" and found[CURRENT] == before and "unschedulable" not in node["spec"]

        await lab.until(done, "the node is done")
        assert lab.machines["gpu-0"].state.boot_id == boot

    simulate(scenario)


def test_an_upgrade_brings_kernels_and_toolkits(simulate: Simulate) -> None:
    """ClusterVersion first, then the tag, the control plane, the workers; a restart keeps the release of machines."""

    async def scenario(lab: OpenShiftLab) -> None:
        await lab.api.patch(POOLS, "worker", {"spec": {"paused": True}})
        await lab.api.patch(CLUSTER_VERSIONS, "version", {"spec": {"desiredUpdate": {"version": NEW.version}}})

        async def completed() -> Object | None:
            found = await lab.api.get(CLUSTER_VERSIONS, "version")
            return found if found["status"]["history"][0]["state"] == "Completed" else None

        async def begun() -> bool:
            status = (await lab.api.get(CLUSTER_VERSIONS, "version"))["status"]
            return bool(status["desired"]["version"] == NEW.version)

        await lab.until(begun, "the update has begun")
        version = await lab.until(completed, "the update is completed")
        assert [each["version"] for each in version["status"]["history"]] == [NEW.version, OLD.version]
        assert node_facts(await lab.node("master-0"))[1] == NEW.kernel
        assert node_facts(await lab.node())[1] == OLD.kernel
        stream = await lab.api.get(IMAGE_STREAMS, "driver-toolkit", "openshift")
        images = {tag["name"]: tag["from"]["name"] for tag in stream["spec"]["tags"]}
        assert images == {OLD.rhcos: OLD.toolkit_image, NEW.rhcos: NEW.toolkit_image, "latest": NEW.toolkit_image}
        assert {tag["tag"] for tag in stream["status"]["tags"]} == set(images)
        await lab.api.patch(POOLS, "worker", {"spec": {"paused": False}})

        async def everywhere() -> bool:
            return all(machine.spec.release == NEW for machine in lab.machines.values())

        await lab.until(everywhere, "all nodes run the release")
        await lab.rolled("00-worker")
        assert node_facts(await lab.node()) == (NEW.os_image, NEW.kernel, NEW.kubelet)

    async def again(lab: OpenShiftLab) -> None:
        assert node_facts(await lab.node()) == (NEW.os_image, NEW.kernel, NEW.kubelet)

    simulate(scenario)
    simulate(again)


def test_a_deleted_image_stream_returns(simulate: Simulate) -> None:
    """With the tags of the release that the cluster runs; a tag that is deleted alone stays away."""

    async def scenario(lab: OpenShiftLab) -> None:
        gone = (await lab.api.get(IMAGE_STREAMS, "driver-toolkit", "openshift"))["metadata"]["uid"]
        await lab.api.patch(IMAGE_STREAMS, "driver-toolkit", {"spec": {"tags": []}}, "openshift")
        assert not (await lab.api.get(IMAGE_STREAMS, "driver-toolkit", "openshift"))["spec"]["tags"]
        await lab.api.delete(IMAGE_STREAMS, "driver-toolkit", "openshift")

        async def returned() -> Object | None:
            found, _ = await lab.api.list(IMAGE_STREAMS, "openshift")
            return found[0] if found and found[0]["metadata"]["uid"] != gone else None

        stream = await lab.until(returned, "the image stream")
        assert [tag["name"] for tag in stream["spec"]["tags"]] == [OLD.rhcos, "latest"]

    simulate(scenario)


def test_an_unknown_release_is_refused(simulate: Simulate) -> None:
    async def scenario(lab: OpenShiftLab) -> None:
        await lab.api.patch(CLUSTER_VERSIONS, "version", {"spec": {"desiredUpdate": {"version": "4.99.0"}}})

        async def refused() -> Object | None:
            found = await lab.api.get(CLUSTER_VERSIONS, "version")
            return found if objects.has_condition(found, "Invalid") else None

        found = await lab.until(refused, "the update is refused")
        assert found["status"]["desired"]["version"] == OLD.version
        assert [each["version"] for each in found["status"]["availableUpdates"]] == [NEW.version, NEXT.version]

    simulate(scenario)


def test_bundles_have_the_trusted_certificates(simulate: Simulate) -> None:
    """In labelled ConfigMaps alone, and again after an edit of them or of the certificates."""
    label = {"config.openshift.io/inject-trusted-cabundle": "true"}

    async def scenario(lab: OpenShiftLab) -> None:
        await lab.api.create(CONFIG_MAPS, {"metadata": {"name": "ca", "labels": label}}, "default")
        await lab.api.create(CONFIG_MAPS, {"metadata": {"name": "plain"}}, "default")

        async def bundle(text: str) -> bool:
            found = await lab.api.get(CONFIG_MAPS, "ca", "default")
            return bool((found.get("data") or {}).get("ca-bundle.crt") == text + SYSTEM_BUNDLE)

        await lab.until(lambda: bundle("OURS\n"), "the certificates are there")
        await lab.api.patch(CONFIG_MAPS, "ca", {"data": {"ca-bundle.crt": "x"}}, "default")
        await lab.until(lambda: bundle("OURS\n"), "they are there again")
        await lab.api.patch(CONFIG_MAPS, "user-ca-bundle", {"data": {"ca-bundle.crt": "NEW\n"}}, "openshift-config")
        await lab.until(lambda: bundle("NEW\n"), "the new ones are there")
        assert "data" not in await lab.api.get(CONFIG_MAPS, "plain", "default")

    simulate(scenario, fleet(trusted_ca="OURS\n"))


def test_a_proxy_shows_what_is_in_effect(simulate: Simulate) -> None:
    proxy: dict[str, Any] = {"https": "http://proxy.example:3128", "no_proxy": "example.org"}

    async def scenario(lab: OpenShiftLab) -> None:
        status = (await lab.api.get(PROXIES, "cluster"))["status"]
        assert status["httpsProxy"] == "http://proxy.example:3128"
        assert {"example.org", ".svc", ".cluster.local"} <= set(status["noProxy"].split(","))
        await lab.api.patch(PROXIES, "cluster", {"spec": {"httpsProxy": None}})

        async def gone() -> bool:
            return not (await lab.api.get(PROXIES, "cluster")).get("status")

        await lab.until(gone, "no proxy")

    simulate(scenario, fleet(proxy=proxy))
