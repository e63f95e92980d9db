"""Clusters that commit 362d0c7 provisioned stay upgradable; that version and the present one exclude each other."""

from __future__ import annotations

import re
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from gpu_provision.sandbox.client import load_credentials
from tests.answers import Answer
from tests.scenarios.on_sandbox import SandboxWorld
from tests.scenarios.test_locks import STUCK, assert_apart
from tests.scenarios.world import ADOPTER, OPERANDS, PROGRAM
from tests.upgrades import old, state
from tests.upgrades.record import DATA, DRIVERS, IMAGE, PLUGINS

EXPORTER = "nvidia-dcgm-exporter"
_LAST = "command-line/run-3.yaml"


class Revived(SandboxWorld):
    """A sandbox with the state of one of the earlier version, and the inventory that was applied there."""

    def __init__(self, folder: Path, kept: str, inventory: str) -> None:
        state.load(DATA / kept, folder / "sandboxes" / "fleet")
        nodes = yaml.safe_load((DATA / inventory).with_name("nodes.yaml").read_text())
        super().__init__(folder, nodes=nodes, timings={"speed": 50})
        self.take(inventory)

    def take(self, inventory: str) -> None:
        text = (DATA / inventory).read_text()
        self.inventory.write_text(text.replace("sandbox: default", f"sandbox: {self.fleet}"))

    def on_cluster(self, command: str, *flags: str) -> Answer:
        return self.cli(command, *flags, "--cluster-only", "-i", str(self.inventory), check=True)

    def operator(self, command: str, *flags: str) -> Answer:
        return self.cli("operator", command, *flags, "--yes", "--kubeconfig", str(self.kubeconfig), check=True)

    def runs(self) -> list[tuple[int, str, str, int]]:
        """Return number, ending, source and target of a rollback, of each run on record."""
        told = self.cli("history", "--json", "-i", str(self.inventory), check=True).document["runs"]
        return [(run["number"], run["ending"], run["source"], run["back_to"]) for run in told]

    def ended_runs(self) -> list[tuple[int, str, str, int]]:
        """Return the runs once none is under way: a resource is Ready before the record of its run says so."""
        self.until(lambda: "running" not in {run[1] for run in self.runs()})
        return self.runs()

    def controller(self, side: Side | None = None) -> subprocess.Popen[str]:
        """Start a controller, of the present version unless another one is given."""
        command, access = (side.command, side.kubeconfig) if side else ((PROGRAM,), self.kubeconfig)
        log = self.folder / f"controller-{side.user if side else ''}.log"
        return self.start(*command, "operator", "run", "--port", "0", "--kubeconfig", str(access), log=log)

    def declare(self, **sections: Any) -> None:
        self.api.patch("gpustack", "sandbox", patch={"spec": sections})

    def is_ready(self) -> bool:
        stack = self.json("gpustack", "sandbox")
        status = stack.get("status") or {}
        conditions = {each["type"]: each["status"] for each in status.get("conditions", ())}
        return status.get("observedGeneration") == stack["metadata"]["generation"] and conditions["Ready"] == "True"

    def drivers(self) -> dict[str, str]:
        pods = self.pods("nvidia-driver-daemonset")
        return {pod["spec"].get("nodeName", ""): pod["metadata"]["uid"] for pod in pods}

    def writes_daemonsets(self) -> bool:
        return any("/daemonsets/" in each.path for each in self.writes())

    def writers(self) -> set[str]:
        return {each.user for each in self.writes()}


Revive = Callable[..., Revived]


def _revived(opened: ExitStack, folder: Path, kept: str, inventory: str) -> Revived:
    world = Revived(folder, kept, inventory)
    opened.callback(world.down)
    return world


@pytest.fixture(scope="module")
def provisioned(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Revived]:
    """A cluster after three runs of the earlier version's command line."""
    with ExitStack() as opened:
        yield _revived(opened, tmp_path_factory.mktemp("provisioned"), "command-line", _LAST)


@pytest.fixture
def revive(tmp_path: Path) -> Iterator[Revive]:
    with ExitStack() as opened:
        yield partial(_revived, opened, tmp_path)


@pytest.fixture
def stack(revive: Revive) -> Revived:
    """A cluster with a stack of the earlier version, at rest, whose controller has died."""
    return revive("operator/at-rest", "operator/inventory.yaml")


def test_the_history_of_the_earlier_version_is_read(provisioned: Revived) -> None:
    assert provisioned.runs() == [(number, "succeeded", "", 0) for number in (1, 2, 3)]
    shown = provisioned.cli("history", "show", "2", "--text", "-i", str(provisioned.inventory), check=True).out
    assert shown == (DATA / "command-line" / "run-2.yaml").read_text()


def test_a_cluster_of_the_earlier_version_lacks_its_validations(provisioned: Revived) -> None:
    """The validator runs the first vectorAdd itself by now: both run once more, and no driver restarts.

    Access objects that are needed no more go, and so do the pods of validations.
    """
    drivers = provisioned.drivers()
    assert "0 to create, 5 to update, 6 to delete, 6 to validate" in provisioned.on_cluster("plan").out
    provisioned.on_cluster("apply", "--yes")
    assert provisioned.drivers() == drivers
    written = {each.path.partition("/namespaces/")[2] for each in provisioned.writes()}
    assert {path for path in written if not _OWN.search(path)} <= {""}, "what is in no namespace"
    apps = {pod["metadata"]["labels"].get("app", "") for pod in provisioned.json("pods", "-n", OPERANDS)["items"]}
    assert not {app for app in apps if "validat" in app} - {"nvidia-operator-validator"}
    assert "as declared" in provisioned.on_cluster("plan", "--detailed-exitcode").out
    assert "No changes" in provisioned.on_cluster("apply", "--yes").out
    assert "No drift" in provisioned.on_cluster("drift", "--detailed-exitcode").out


_OWN = re.compile(
    r"/pods(/nvidia-[a-z-]+-validation-[^/]+)?$|/leases|/configmaps(/sandbox-(validations|history))?$"
    r"|/(roles|daemonsets)/nvidia-operator-validator$|/daemonsets/nvidia-driver-daemonset-[^/]+$"
)
"""The validator, driver DaemonSets whose pods stay, validation pods, and what a run writes for itself."""


def test_a_rollback_goes_to_a_run_of_the_earlier_version(provisioned: Revived) -> None:
    provisioned.cli("rollback", "1", "--yes", "--cluster-only", "-i", str(provisioned.inventory), check=True)
    assert provisioned.runs()[-1][1:] == ("succeeded", "", 1)
    provisioned.take("command-line/run-1.yaml")
    assert "as declared" in provisioned.on_cluster("plan", "--detailed-exitcode").out


def test_all_that_the_earlier_version_has_made_is_removed(provisioned: Revived) -> None:
    """The data tell what that is, not the present version."""
    before = {
        _name(each): _written(each) for each in state.objects(DATA / "command-line") if _written(each) is not None
    }
    provisioned.on_cluster("destroy", "--yes", "--crds")
    left = {_name(each): _marks(each["metadata"]) for each in provisioned.api.everything() if _name(each) in before}
    assert {kind for _, kind, _, _ in left} == {"Node"}
    assert {name: before[name] & marks for name, marks in left.items() if before[name] & marks} == {}


def _name(found: dict[str, Any]) -> tuple[str, str, str, str]:
    metadata = found["metadata"]
    return found["apiVersion"], found["kind"], metadata.get("namespace", ""), metadata["name"]


def _written(found: dict[str, Any]) -> set[str] | None:
    """Return the labels and annotations that the tool has written; None if it has written nothing."""
    managed = [
        each for each in found["metadata"].get("managedFields", ()) if each["manager"].startswith("gpu-provision")
    ]
    fields = [each["fieldsV1"].get("f:metadata", {}) for each in managed]
    return {key.removeprefix("f:") for each in fields for key in _marks(each, "f:")} if managed else None


def _marks(metadata: dict[str, Any], prefix: str = "") -> set[str]:
    return {*metadata.get(f"{prefix}labels", ()), *metadata.get(f"{prefix}annotations", ())}


def test_a_stack_of_the_earlier_version_lacks_its_validations(stack: Revived) -> None:
    """With its resource, and without it: it can be released although no controller works."""
    lacks = "0 to create, 4 to update, 6 to delete, 4 to validate"
    plan = stack.on_cluster("plan").out
    assert "is already up to date" in plan
    assert lacks in plan
    stack.operator("release", "sandbox")
    assert not stack.api.exists("gpustack", "sandbox")
    assert lacks in stack.on_cluster("plan").out
    assert stack.runs() == [(1, "succeeded", "resource", 0)]


@pytest.mark.real  # for the time it takes
def test_an_operator_of_the_earlier_version_is_replaced(stack: Revived) -> None:
    """The controller validates again, and writes no object of the stack but one that was edited meanwhile."""
    stack.operator("install", "--image", IMAGE)
    begun = len(stack.writes())
    stack.controller()
    stack.api.set_image("daemonset", EXPORTER, "-n", OPERANDS, image="busybox:1")
    stack.until(lambda: "busybox:1" not in str(stack.json("daemonset", EXPORTER, "-n", OPERANDS)["spec"]))
    stack.until(stack.is_ready)
    ended = stack.ended_runs()
    written = {each.path for each in stack.writes()[begun:] if f"/namespaces/{OPERANDS}/" in each.path}
    rest = {path for path in written if not _OWN.search(path)}
    assert {path.rpartition("/")[2] for path in rest} == {EXPORTER}
    assert {run[1:3] for run in ended} == {("succeeded", "resource")}


@pytest.mark.real
def test_a_rollout_of_the_earlier_version_is_finished(revive: Revive) -> None:
    """Its controller died in the middle and held its lease and the lock. The driver that it has replaced stays."""
    world = revive("operator/mid-rollout", "operator/inventory.yaml")
    before = world.drivers()
    world.controller()
    world.until(world.is_ready)
    after = world.drivers()
    assert {node for node in before if after[node] != before[node]} == {"t4-2"}
    assert [run[:2] for run in world.ended_runs()] == [(1, "succeeded"), (2, "interrupted"), (3, "succeeded")]


class Side(NamedTuple):
    command: tuple[str, ...]
    kubeconfig: Path
    inventory: Path  # a file like the world's, for that user
    machine: str  # where the version says that it runs
    user: str

    def words(self, *words: str) -> tuple[str, ...]:
        return (*self.command, *words, "-i", str(self.inventory))


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return old.unpack(tmp_path_factory.mktemp("earlier"))


@pytest.fixture(params=["old first", "new first"])
def sides(request: pytest.FixtureRequest, earlier: Path) -> Callable[[Revived], list[Side]]:
    """Gives both versions access to a world, and returns them in the order in which they come."""

    def made(world: Revived) -> list[Side]:
        world.submit(_BINDING)
        theirs = _side(world, old.command(earlier), world.kubeconfig, old.MACHINE, "sandbox-admin")
        ours = _side(world, (PROGRAM,), world.kubeconfig_of(ADOPTER), socket.gethostname(), ADOPTER)
        return [theirs, ours] if request.param == "old first" else [ours, theirs]

    return made


_BINDING = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "ClusterRoleBinding",
    "metadata": {"name": ADOPTER},
    "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
    "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": ADOPTER}],
}


def _side(world: Revived, command: tuple[str, ...], kubeconfig: Path, machine: str, user: str) -> Side:
    access = {"kubeconfig": str(kubeconfig), "context": load_credentials(kubeconfig).context}
    inventory = world.folder / f"{user}.yaml"
    inventory.write_text(yaml.safe_dump(yaml.safe_load(world.inventory.read_text()) | {"cluster": access}))
    return Side(command, kubeconfig, inventory, machine, user)


Sides = Callable[[Revived], list[Side]]
APPLY = "apply", "--yes", "--cluster-only"


@pytest.mark.real
def test_runs_of_both_versions_exclude_each_other(revive: Revive, sides: Sides) -> None:
    """The second one ends with 75, names the first one, and has written nothing. Each wants validations of its own."""
    world = revive("command-line", _LAST)
    world.settings(device_plugin={"version": PLUGINS[0]})
    first, second = sides(world)
    world.fault(STUCK)
    run = world.start(*first.words(*APPLY))
    world.until(world.writes_daemonsets)
    refused = world.run(*second.words(*APPLY, "--timeout", "30"))
    assert (refused.code, first.machine in refused.text) == (75, True), refused.text
    world.fault()
    text, _ = run.communicate(timeout=300)
    assert run.returncode == 0, text
    assert world.writers() == {first.user}
    plan = world.run(*second.words("plan", "--cluster-only")).out
    assert "Plan: " in plan
    assert "to replace" not in plan, "the validator and access objects differ, no driver"


@pytest.mark.real
def test_a_controller_excludes_commands_of_the_other_version(stack: Revived, sides: Sides) -> None:
    """While its run writes, no other run begins, its lock is not taken away, and an apply waits for it.

    The present version says in the end what it would still do: a controller of the earlier one validates otherwise.
    """
    stack.settings(device_plugin={"version": PLUGINS[0]})
    first, second = sides(stack)
    stack.controller(first)
    stack.fault(STUCK)
    stack.declare(device_plugin={"version": PLUGINS[0]})
    stack.until(stack.writes_daemonsets)
    refused = stack.run(*second.words("unlock", "--force", "--yes"))
    assert refused.code == 75, refused.text
    refused = stack.run(*second.words("validate", "--gpus"))
    assert (refused.code, "GP010" in refused.text) == (1, True), "to the other version the stack is not as declared"
    apply = stack.start(*second.words(*APPLY))
    stack.fault()
    text, _ = apply.communicate(timeout=300)
    assert apply.returncode == 0 or "this version of gpu-provision would still change it" in text, text
    stack.until(stack.is_ready)
    assert stack.writers() == {first.user}, [each for each in stack.writes() if each.user != first.user]


@pytest.mark.real
def test_controllers_of_both_versions_take_turns(stack: Revived, sides: Sides) -> None:
    """One dies in the middle of a rollout. The other one finishes it, and replaces each driver once."""
    first, second = sides(stack)
    before = stack.drivers()
    leader = stack.controller(first)
    stack.until(stack.writes)
    stack.controller(second)
    stack.fault({"fault": "image-pull-fails", "node": "t4-2", "image": "nvidia/driver"})
    stack.declare(driver={"version": DRIVERS[1]})
    middle = stack.until(lambda: _all_others(stack.drivers(), before))
    leader.kill()
    stack.fault()
    stack.until(stack.is_ready)
    assert stack.drivers() == middle
    assert_apart(stack.writes())
    assert stack.writers() == {first.user, second.user}


def _all_others(now: dict[str, str], before: dict[str, str]) -> dict[str, str]:
    """Return the pods of now once every node has another one than before."""
    is_so = now.keys() == before.keys() and not {*now.values()} & {*before.values()}
    return now if is_so else {}
