"""An account with the rights that ``gpu-provision rbac`` prints can do everything, and needs all of them.

On the sandbox, which makes accounts as they are asked for; on a real control plane all scenarios run with these rights.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
import yaml

from gpu_provision.inventory import load
from gpu_provision.model.cluster import Permission
from gpu_provision.operator.crd import definition
from gpu_provision.rbac import permissions
from gpu_provision.sandbox.apiserver.request_log import LoggedRequest
from tests.answers import Answer
from tests.scenarios.on_sandbox import SandboxWorld
from tests.scenarios.world import OPERANDS, USES_GPU

NAME = "ci-robot"
_ON = {"enabled": True}
EVERYTHING: dict[str, Any] = {"dcgm": _ON, "dcgm_exporter": {"prometheus_rule": _ON, "dashboard": _ON}}
"""What is off by default and has objects of its own."""
_VALIDATOR = {"nvidia-operator-validator"}
_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_QUESTIONS = ("selfsubjectrulesreviews", "selfsubjectaccessreviews", "selfsubjectreviews")


class Robot:
    """An account with a kubeconfig of its own, in the world of another."""

    def __init__(self, world: SandboxWorld, name: str = NAME) -> None:
        self.world, self.name = world, name
        found = world.cli("sandbox", "kubeconfig", "--fleet", str(world.fleet), "--user", name, check=True)
        self.kubeconfig = Path(found.out.strip())

    def does(self, command: str, *arguments: str, check: bool = False) -> Answer:
        return self.world.run(*self.command(command, *arguments), check=check)

    def command(self, name: str, *arguments: str) -> tuple[str, ...]:
        program, *_ = self.world.apply_command
        return program, name, "-i", str(self.world.inventory), "--kubeconfig", str(self.kubeconfig), *arguments

    def applies(self, *arguments: str, check: bool = True) -> Answer:
        return self.does("apply", "--yes", "--cluster-only", *arguments, check=check)

    def is_given_its_rights(self, *options: str) -> None:
        words = ("rbac", "-i", str(self.world.inventory), "--user", self.name, *options)
        self.world.submit(self.world.cli(*words, check=True).out)

    def requests(self) -> list[LoggedRequest]:
        return [request for request in self.world.requests() if request.user == self.name]

    def writes(self) -> list[LoggedRequest]:
        return [request for request in self.requests() if request.is_write]


@pytest.fixture(scope="module")
def robot(sandbox: SandboxWorld) -> Robot:
    """An account with the rights of an inventory in which everything is on, after its first run."""
    sandbox.submit(Path(__file__).with_suffix(".yaml").read_text())  # the definitions of the Prometheus Operator
    sandbox.settings(**EVERYTHING)
    made = Robot(sandbox)
    made.is_given_its_rights()
    made.applies()
    return made


def test_a_second_run_changes_nothing_and_asks_nothing_more(robot: Robot) -> None:
    """Rights are asked for only by a run that writes."""
    before = len(robot.requests())
    robot.applies()
    asked = robot.requests()[before:]
    assert [request for request in asked if request.verb != "GET"] == []
    assert len(asked) < 25


def test_a_look_needs_no_right_to_write(robot: Robot) -> None:
    """Nor does an apply where everything is as declared."""
    reader = Robot(robot.world, "reader")
    reader.is_given_its_rights("--read-only")
    assert "as declared" in reader.does("plan", "--cluster-only", check=True).out
    assert "Test PASSED" in reader.does("status", "-v", check=True).out
    reader.applies()


def test_a_user_without_rights_sees_all_that_a_plan_needs(robot: Robot) -> None:
    """One message, not one per run; exit code 1."""
    novice = Robot(robot.world, "novice")
    run = novice.does("status", "--json")
    (error,) = run.document["errors"]
    assert (run.code, error["code"]) == (1, "GP310")
    assert error["what"].startswith("user novice lacks ")
    assert (
        "list configmaps, namespaces, nodes, pods, serviceaccounts, services in the whole cluster" in error["evidence"]
    )
    assert 'get leases.coordination.k8s.io "sandbox" in namespace gpu-operator-resources' in error["evidence"]
    assert f"gpu-provision rbac -i {robot.world.inventory} --user novice | kubectl apply -f -" in error["fix"]
    assert novice.writes() == []


def test_an_upgrade_restarts_driver_pods_and_drift_is_undone(robot: Robot) -> None:
    """GPU work anywhere is evicted; an edit of a role is undone although only those may who hold what it grants."""
    robot.world.run_pod("notebook", USES_GPU, nodeName="t4-1")
    policy = {"pod_deletion": {"force": True}}
    robot.world.settings(
        driver={"version": "580.126.20", "upgrade_policy": policy},
        device_plugin={"version": "v0.19.3"},
        daemonsets={"labels": {"team": "ml"}},
    )
    robot.world.api.patch("clusterrole", "nvidia-driver", patch={"rules": []})
    robot.applies()
    assert not robot.world.api.exists("pod", "notebook")
    assert "as declared" in robot.does("plan", "--cluster-only", check=True).out


def test_objects_that_lost_their_labels_are_taken_in_again(robot: Robot) -> None:
    """They are there already, so each is read before it is written."""
    part_of = "applyset.kubernetes.io/part-of"
    labeled = robot.world.json(_IN_NAMESPACES, "-A", "-l", part_of)["items"]
    for namespace in {item["metadata"]["namespace"] for item in labeled}:
        robot.world.api.label(_IN_NAMESPACES, "-n", namespace, "-l", part_of, labels={part_of: None})
    robot.world.api.label(_OF_CLUSTER, "-l", part_of, labels={part_of: None})
    robot.applies()
    assert "as declared" in robot.does("plan", "--cluster-only", check=True).out


_IN_NAMESPACES = (
    "configmaps,services,serviceaccounts,daemonsets,deployments,roles,rolebindings,servicemonitors,prometheusrules"
)
_OF_CLUSTER = "namespaces,clusterroles,clusterrolebindings,runtimeclasses,customresourcedefinitions"


def test_a_failure_in_any_namespace_is_explained_from_its_log(robot: Robot) -> None:
    """A signal has ended the containers, so the reason may be in an Event, too."""
    fault = {"fault": "crash-loop", "node": "t4-1", "message": "no PCI bus", "exit_code": 143}
    robot.world.fault({**fault, "image": "node-feature-discovery"}, {**fault, "image": "dcgm-exporter"})
    robot.world.until(lambda: robot.applies("--timeout", "3", check=False).text.count("no PCI bus") > 1)
    robot.world.fault()
    robot.applies()


def test_what_is_switched_off_is_removed(robot: Robot) -> None:
    """Also its namespace, in which the account then has no rights any more."""
    off: dict[str, Any] = {"enabled": False}
    names = ("nfd", "driver", "toolkit", "device_plugin", "gfd", "dcgm", "dcgm_exporter")
    robot.world.settings(**dict.fromkeys(names, off), cdi=off)
    running = robot.world.start(*robot.command("apply", "--yes", "--cluster-only"))
    try:
        robot.world.until(lambda: not robot.world.api.exists("namespace", "node-feature-discovery"))
    finally:
        running.send_signal(signal.SIGINT)  # no controller labels the nodes now, so they would not get ready
        text, _ = running.communicate(timeout=300)
    assert "GP3" not in text
    robot.world.until(
        lambda: {item["metadata"]["name"] for item in robot.world.json("daemonsets", "-A")["items"]} == _VALIDATOR
    )


def test_every_right_was_needed_and_is_in_the_table(robot: Robot, checkout: Path, tmp_path: Path) -> None:
    """Every verb on every resource, and every name, was used in these runs; nothing came from what roles pass on."""
    document = yaml.safe_load((checkout / "inventories/sandbox.yaml").read_text())
    path = tmp_path / "sandbox.yaml"
    path.write_text(yaml.safe_dump({**document, **EVERYTHING}))
    inventory = load(path)
    robot.world.submit(definition())  # a stack's resource is looked for where the server knows such
    robot.does("plan", "--cluster-only")
    used = {permission for request in robot.requests() for permission in _permissions(request)}
    granted = permissions.for_own_requests(inventory)
    anywhere = {one._replace(namespace="") for one in used if one.resource == "pods/eviction"}  # not known beforehand
    assert sorted({one[:4] for one in granted} - {one[:4] for one in used | anywhere}) == []
    named = {one[1:] for one in granted if one.name and one.verb != "delete"}  # other settings and versions made more
    assert sorted(named - {one[1:] for one in used}) == []
    assert sorted(one for one in used if not _alike(one) & granted) == []


def _alike(used: Permission) -> set[Permission]:
    """What allows a request: the right to all names or to this one, in its namespace or everywhere."""
    return {used._replace(namespace=where, name=name) for where in ("", used.namespace) for name in ("", used.name)}


def _permissions(request: LoggedRequest) -> Iterator[Permission]:
    """What a request asked for, as RBAC sees it."""
    parts = request.path.strip("/").split("/")
    if parts[-1] in _QUESTIONS or parts[0] not in {"api", "apis"} or len(parts) < 3:
        return
    group, rest = ("", parts[2:]) if parts[0] == "api" else (parts[1], parts[3:])
    if not rest:
        return
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 2:
        namespace, rest = rest[1], rest[2:]
    name = rest[1] if len(rest) > 1 else ""
    verb = (
        "deletecollection"
        if request.verb == "DELETE" and not name
        else _VERBS.get(request.verb) or ("get" if name else "watch" if "watch" in parse_qs(request.query) else "list")
    )
    yield Permission(verb, group, "/".join((rest[0], *rest[2:])), namespace, name)
    if request.code == 201 and verb == "patch":
        yield Permission("create", group, rest[0], namespace, name)


def test_a_read_only_user_sees_the_rights_that_a_run_needs(robot: Robot) -> None:
    """The plan goes without the server's word; a run ends before the first write, and the lock is free."""
    reader = Robot(robot.world, "reader")
    reader.is_given_its_rights("--read-only")
    robot.world.settings(gfd={"enabled": True})
    robot.world.replace("dcgm_exporter", {"enabled": False})
    planned = reader.does("plan", "--cluster-only", "--json", check=True).document
    assert planned["summary"]["create"] > 0
    assert [warning["code"] for warning in planned["warnings"]] == ["GP311"]
    drifted = reader.does("drift", "--cluster-only", "--json", check=True).document
    assert [warning["code"] for warning in drifted["warnings"]] == ["GP311"]
    assert drifted["differences"]
    run = reader.applies("--json", check=False)
    (error,) = run.document["errors"]
    assert (run.code, error["code"]) == (1, "GP310")
    assert (
        'create, patch daemonsets.apps "gpu-feature-discovery" in namespace gpu-operator-resources' in error["evidence"]
    )
    assert reader.writes() == []
    assert not robot.world.json("lease", "sandbox", "-n", OPERANDS)["spec"].get("holderIdentity")
