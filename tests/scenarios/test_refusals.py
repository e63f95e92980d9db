"""Runs that stop before their first write: one clear message, a documented exit code, and the next run goes on.

All tests of this module share a cluster, in their order.
"""

from __future__ import annotations

import yaml

from tests.answers import Answer
from tests.scenarios.world import OPERANDS, World


def test_an_api_server_that_is_down_is_one_message(world: World) -> None:
    run = _with_another_kubeconfig(world, server="https://127.0.0.1:1")
    assert run.code == 69, run.text
    assert "GP301" in run.text
    assert "Traceback" not in run.text
    assert len(run.text.strip().splitlines()) < 8


def test_a_wrong_token_is_one_message_without_the_token(world: World) -> None:
    run = _with_another_kubeconfig(world, token="wrong-token")  # noqa: S106 - it is of no account
    assert run.code == 1
    assert "GP302" in run.text
    assert "wrong-token" not in run.text


def test_a_field_of_another_manager_is_a_conflict(world: World) -> None:
    theirs = {
        "apiVersion": "node.k8s.io/v1",
        "kind": "RuntimeClass",
        "metadata": {"name": "nvidia"},
        "handler": "another-handler",
    }
    world.submit(theirs, manager="helm")
    run = world.apply("--cluster-only")
    assert run.code == 1
    assert "GP304" in run.text
    assert "helm" in run.text
    assert "handler" in run.text
    assert world.writes() == []
    assert world.json("runtimeclass", "nvidia")["handler"] == "another-handler"
    world.api.delete("runtimeclass", "nvidia")


def test_a_revoked_right_is_named_and_granted_again_works(world: World) -> None:
    """Found before the first write, and before the lock is taken."""
    limited = world.give_rights()
    world.apply("--cluster-only", *limited, check=True)
    world.settings(device_plugin={"version": "v0.19.3"})
    role = f"gpu-provision-{world.name}"
    rules = world.json("role", role, "-n", OPERANDS)["rules"]
    fewer = [rule for rule in rules if "daemonsets" not in rule["resources"]]
    assert fewer != rules
    world.api.patch("role", role, "-n", OPERANDS, patch={"rules": fewer})
    before = len(world.writes())
    run = world.apply("--cluster-only", "--json", *limited)
    (error,) = run.document["errors"]
    assert (run.code, error["code"]) == (1, "GP310"), run.text
    assert "gpu-provision lacks" in error["what"]
    assert "patch daemonsets.apps " in error["evidence"]
    assert f"in namespace {OPERANDS}" in error["evidence"]
    assert "rbac" in error["fix"]
    assert len(world.writes()) == before
    world.give_rights()
    assert world.apply("--cluster-only", *limited).code == 0
    assert len(world.writes()) > before


def test_a_second_stack_over_the_same_objects_is_refused(world: World) -> None:
    """Two inventories that apply the same objects would undo each other for ever."""
    before = len(world.writes())
    name = f"name: {world.name}\n"
    world.edit(lambda text: text.replace(name, "name: other\n"))
    run = world.apply("--cluster-only", "--json")
    (error,) = run.document["errors"]
    assert (run.code, error["code"]) == (1, "GP309"), run.text
    assert error["where"] == f"stack {world.name} in namespace {OPERANDS}"
    assert "gpu-provision destroy" in error["fix"]
    assert len(world.writes()) == before
    world.edit(lambda text: text.replace("name: other\n", name))


def test_a_missing_config_map_is_found_before_any_write(world: World) -> None:
    """Two components refer to it. A version that no release has is a warning of the plan as well."""
    before, text = len(world.writes()), world.inventory.read_text()
    world.settings(device_plugin={"config_name": "sharing", "version": "v0.99.1"})
    run = world.apply("--cluster-only", "--json")
    (error,) = run.document["errors"]
    assert (run.code, error["code"]) == (1, "GP210"), run.text
    assert error["where"] == f"ConfigMap {OPERANDS}/sharing"
    assert "device_plugin, gfd" in error["what"]
    assert len(world.writes()) == before
    assert "warning: GP132 " in world.plan().text
    world.edit(lambda _: text)


def _with_another_kubeconfig(world: World, *, server: str = "", token: str = "") -> Answer:
    config = yaml.safe_load(world.account().read_text())
    config["clusters"][0]["cluster"]["server"] = server or config["clusters"][0]["cluster"]["server"]
    config["users"][0]["user"]["token"] = token or config["users"][0]["user"]["token"]
    path = world.folder / "another"
    path.write_text(yaml.safe_dump(config))
    document = yaml.safe_load(world.inventory.read_text())
    document["cluster"] = {"kubeconfig": str(path), "context": config["current-context"]}
    before = world.inventory.read_text()
    try:
        world.edit(lambda _: yaml.safe_dump(document, sort_keys=False))
        return world.apply("--cluster-only")
    finally:
        world.edit(lambda _: before)
