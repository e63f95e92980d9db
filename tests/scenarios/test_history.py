"""Runs on record, and back to them; each test goes on where the last one ended."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from gpu_provision.history.store import decode, encode
from tests.inventory.planted import VALID
from tests.scenarios.world import OPERANDS, World

SECRETS = {
    "NGC_API_KEY": "nvapi-0123456789",
    "HTTPS_PROXY": "http://me:pass0rd@proxy.example.com:3128",
    "GIT_PAT": "ghp-0123456789",
    "LICENSE": "lic-0123456789",
    "FROM_FILE": {"file": "license"},
    "FROM_CALLER": {"env": "CALLERS_LICENSE"},
}
VALUES = ("nvapi-0123456789", "pass0rd", "ghp-0123456789", "lic-0123456789", "filed-0123456789", "env-0123456789")
_KINDS = "daemonsets,deployments,configmaps,services,roles,rolebindings,serviceaccounts"


@pytest.fixture(scope="module")
def stack(world: World) -> World:
    """Three runs, the first with secrets in its inventory."""
    (world.inventory.parent / "license").write_text("filed-0123456789\n")
    world.environment["CALLERS_LICENSE"] = "env-0123456789"
    world.settings(driver={"env": SECRETS}, history={"keep": 3})
    world.edit(lambda text: f"# the proxy's password is pass0rd\n{text}")
    world.apply("--cluster-only", check=True)
    world.first = wanted(world)  # type: ignore[attr-defined]
    world.settings(device_plugin={"version": "v0.19.3"})
    world.apply("--cluster-only", check=True)
    world.settings(gfd={"version": "v0.19.3"})
    world.apply("--cluster-only", check=True)
    return world


def wanted(world: World) -> dict[str, Any]:
    """Return what is declared of every object of the stack, by the server's word, and the labels of nodes."""
    found = {}
    for item in world.json(_KINDS, "-A", "-l", "gpu-provision.io/component")["items"]:
        metadata = item["metadata"]
        rest = {key: value for key, value in item.items() if key not in {"metadata", "status", "secrets"}}
        found[f"{item['kind']} {metadata['namespace']}/{metadata['name']}"] = (metadata["labels"], rest)
    nodes = world.json("nodes")["items"]
    return found | {node["metadata"]["name"]: _ours(node["metadata"]["labels"]) for node in nodes}


def _ours(labels: dict[str, str]) -> dict[str, str]:
    return {key: value for key, value in labels.items() if key.startswith(("nvidia.com/gpu.deploy", "gpu-provision"))}


def command(world: World, *words: str) -> Any:
    return world.cli(*words, "--json", "-i", str(world.inventory)).document


def runs(world: World) -> list[tuple[int, str, int]]:
    """Return number, ending, and the run that was gone back to, of every run on record."""
    return [(run["number"], run["ending"], run["back_to"]) for run in command(world, "history")["runs"]]


def test_every_run_that_wrote_is_on_record_and_others_are_not(stack: World) -> None:
    before = len(stack.requests())
    assert stack.apply("--cluster-only").code == 0
    assert not [one for one in stack.requests()[before:] if "-history" in one.path], "no request for it without changes"
    found = command(stack, "history")["runs"]
    assert [(run["number"], run["ending"]) for run in found] == [(number, "succeeded") for number in (1, 2, 3)]
    assert all(run["changed"] and run["ended"] and run["tool"] and "@" in run["who"] for run in found)
    assert "v0.19.3" in stack.cli("history", "show", "2", "-i", str(stack.inventory)).out


def test_secrets_are_in_no_record_and_no_local_file(stack: World) -> None:
    name = f"{stack.name}-history"
    texts = [json.dumps(stack.json("configmap", name, "-n", OPERANDS))]
    local = sorted((stack.folder / "state").rglob("*.json"))
    assert len(local) == 3
    texts += [path.read_text() for path in local]
    for number in ("1", "2", "3"):
        texts.append(json.dumps(command(stack, "history", "show", number)))
    texts.append(json.dumps(command(stack, "diff", "1", "3")))
    assert [secret for secret in VALUES for text in texts if secret in text] == []
    assert '\\"(not shown)\\"' in texts[4], "where they were, in the text of run 1"
    assert "file: license" in texts[4]


def test_no_secret_is_in_a_plan_nor_on_a_page(stack: World) -> None:
    """That one changes is seen, and of which variable; the objects themselves have the values."""
    objects = json.dumps(stack.json("daemonsets", "-n", OPERANDS))
    assert [secret for secret in VALUES if secret not in objects] == []
    before = stack.inventory.read_text()
    stack.edit(lambda text: text.replace("ghp-0123456789", "ghp-new").replace("lic-0123456789", "lic-new"))
    (stack.inventory.parent / "license").write_text("filed-new")
    page, plan = stack.folder / "page.html", stack.folder / "plan.json"
    names = ("-i", str(stack.inventory))
    shown = [stack.cli("plan", *names, "--cluster-only", *words).text for words in ((), ("--diff",), ("--json",))]
    assert [secret for secret in (*VALUES, "ghp-new", "lic-new", "filed-new") for text in shown if secret in text] == []
    assert "env[GIT_PAT].value: (changed)" in shown[0]
    assert stack.cli("plan", *names, "--cluster-only", "--out", str(plan)).code == 0
    assert stack.cli("report", *names, "--out", str(page)).code == 0
    for path in (page, plan):
        assert path.stat().st_mode & 0o777 == 0o600
        assert [secret for secret in (*VALUES, "ghp-new", "lic-new") if secret in path.read_text()] == []
    (stack.inventory.parent / "license").write_text("filed-other")
    refused = stack.cli("apply", str(plan))
    assert (refused.code, "GP355" in refused.err) == (1, True), refused.text
    stack.inventory.write_text(before)
    (stack.inventory.parent / "license").write_text("filed-0123456789\n")


def test_a_diff_shows_the_inventories_and_what_they_mean(stack: World) -> None:
    found = command(stack, "diff", "1", "3")
    assert {line for line in found["diff"] if line.startswith("+  version")} == {"+  version: v0.19.3"}
    changed = [change["object"]["name"] for change in found["changes"] if change["action"] == "update"]
    assert set(changed) == {"nvidia-device-plugin-daemonset", "gpu-feature-discovery"}
    assert command(stack, "diff", "3")["diff"] == []


def test_a_rollback_is_shown_first(stack: World) -> None:
    before = len(stack.writes())
    shown = stack.cli("rollback", "1", "--dry-run", "--cluster-only", "-i", str(stack.inventory))
    assert "v0.19.3 -> nvcr.io/nvidia/k8s-device-plugin:v0.20.0" in shown.out, shown.text
    assert len(stack.writes()) == before


def test_a_rollback_restores_the_cluster_with_current_secrets(stack: World) -> None:
    back = stack.cli("rollback", "1", "--yes", "--cluster-only", "-i", str(stack.inventory))
    assert back.code == 0, back.text
    assert "gpu-provision diff 1" in back.out, "the file still says otherwise"
    assert wanted(stack) == stack.first  # type: ignore[attr-defined]
    assert runs(stack)[-1] == (4, "succeeded", 1)
    before = len(stack.writes())
    assert stack.cli("rollback", "4", "--yes", "--cluster-only", "-i", str(stack.inventory)).code == 0
    assert len(stack.writes()) == before, "the second time nothing is left to do"


def test_a_killed_run_is_listed_as_interrupted(stack: World) -> None:
    """By `history`, and by the next run, which resumes."""
    stack.settings(device_plugin={"version": "v0.19.2"})
    stack.fault({"fault": "image-pull-fails", "node": "t4-1", "image": "k8s-device-plugin"})  # it does not end before
    before = len(stack.writes())
    run = stack.start(*stack.apply_command, "--cluster-only")
    stack.until(lambda: any("-history" in one.path for one in stack.writes()[before:]))
    run.kill()
    run.communicate(timeout=300)
    stack.fault()
    assert runs(stack)[-1] == (5, "interrupted", 0)
    after = stack.apply("--cluster-only")
    assert after.code == 0, after.text
    assert "resuming after run 5 (" in after.err
    assert "which was interrupted" in after.err
    assert runs(stack)[-2:] == [(5, "interrupted", 0), (6, "succeeded", 0)]


def test_a_damaged_record_is_reported_and_blocks_nothing(stack: World) -> None:
    patch = {"data": {"20200101T000000.000000Z-000000": "{"}}
    record = ("configmap", f"{stack.name}-history", "-n", OPERANDS)
    stack.api.patch(*record, patch=patch)
    document = command(stack, "history")
    assert [finding["code"] for finding in document["warnings"]] == ["GP334"]
    assert len(document["runs"]) == 3
    back = stack.cli("rollback", "--yes", "--cluster-only", "-i", str(stack.inventory))
    assert back.code == 0, back.text
    assert command(stack, "history")["warnings"] == [], "it went with the oldest"


def plant(world: World, number: int, text: str) -> dict[str, str]:
    """Edit the inventory of a run on record; return what undoes that."""
    kept = world.json(*_record(world))["data"]
    for key, line in kept.items():
        record = decode(key, line)
        if record and record.number in {0, number}:
            world.api.patch(*_record(world), patch={"data": {key: encode(replace(record, text=text))}})
            return {key: line}
    raise KeyError(number)


def _record(world: World) -> tuple[str, ...]:
    return "configmap", f"{world.name}-history", "-n", OPERANDS


def test_a_planted_record_gives_nothing_but_versions(stack: World) -> None:
    """What differs is named without its values; a version that nothing of now names is refused, and nothing written."""
    number = runs(stack)[-1][0]
    words = ("rollback", str(number), "--dry-run", "--cluster-only", "-i", str(stack.inventory))
    before = len(stack.writes())
    kept = plant(stack, number, f'name: {stack.name}\ngfd: {{version: "v0.19.2"}}\n{VALID}')
    shown = stack.cli(*words)
    assert "gpu-feature-discovery" in shown.out, shown.text
    assert "v0.19.2" in shown.out
    assert "GP335" in shown.err
    assert "evil" not in shown.text
    plant(stack, number, f'name: {stack.name}\ngfd: {{version: "v0.19.9"}}\n{VALID}')
    refused = stack.cli(*words)
    assert (refused.code, "GP338 run" in refused.err, "v0.19.9" in refused.err) == (1, True, True), refused.text
    stack.api.patch(*_record(stack), patch={"data": kept})
    assert not [one for one in stack.writes()[before:] if not one.path.endswith("-history")]


@pytest.mark.real  # for the time it takes
def test_a_failed_rollout_rolls_back_if_the_policy_says_so(stack: World) -> None:
    """The run that failed, and the one that went back, are both on record; no driver is left that was not there.

    The record that it goes back to was planted: it gives versions alone.
    """
    policy = {"auto_upgrade": True, "max_unavailable": "100%"}
    stack.settings(rollout={"on_failure": "rollback"}, driver={"upgrade_policy": policy})
    stack.apply("--cluster-only", check=True)
    images = driver_images(stack)
    number = runs(stack)[-1][0]
    plant(stack, number, f"name: {stack.name}\n{VALID}")
    stack.fault({"fault": "image-pull-fails", "node": "t4-1", "image": "driver:580.126.20", "message": "no such tag"})
    stack.settings(driver={"version": "580.126.20", "timeout": 30})
    failed = stack.apply("--cluster-only")
    stack.fault()
    assert failed.code == 1, failed.text
    assert "GP337" in failed.err
    assert "no such tag" in failed.err, "the reason is reported, although it is over"
    assert runs(stack)[-2:] == [(number + 1, "failed", 0), (number + 2, "succeeded", number)]
    assert command(stack, "history")["runs"][-2]["reason"].endswith(f"goes back to run {number}")
    assert driver_images(stack) == images
    assert not [node for node in stack.json("nodes")["items"] if node["spec"].get("unschedulable")]


@pytest.mark.real  # for the time it takes
def test_a_failed_rollout_pauses_if_the_version_is_unknown(stack: World) -> None:
    number = runs(stack)[-1][0]
    plant(stack, number, f'name: {stack.name}\ndriver: {{version: "570.99.01"}}\npools: {{}}\n')
    stack.fault({"fault": "image-pull-fails", "node": "t4-1", "image": "driver:580.126.20", "message": "no such tag"})
    failed = stack.apply("--cluster-only")
    stack.fault()
    assert failed.code == 1, failed.text
    assert "GP337" not in failed.err
    assert "GP338" in failed.err
    assert runs(stack)[-1] == (number + 1, "failed", 0)
    assert not [image for image in driver_images(stack) if "570.99.01" in image]


def driver_images(world: World) -> set[str]:
    return {pod["spec"]["containers"][0]["image"] for pod in world.pods("nvidia-driver-daemonset")}


@pytest.mark.real  # for the time it takes
def test_a_rollback_leaves_hosts_as_they_are_declared_now(sandbox: World) -> None:
    """A run that changed nothing but hosts is on record, and is no way back."""
    sandbox.apply(check=True)
    assert runs(sandbox) == [(1, "succeeded", 0)]
    sandbox.settings(host_prerequisites={"sysctls": {"vm.max_map_count": 262144}})
    sandbox.apply(check=True)
    last = command(sandbox, "history")["runs"][-1]
    assert (last["number"], last["changed"], last["reason"]) == (2, 0, "changed 3 hosts, and nothing else")
    sandbox.apply(check=True)
    assert len(runs(sandbox)) == 2, "a run without changes leaves no record"
    assert sandbox.cli("rollback", "--json", "-i", str(sandbox.inventory)).code == 64
    back = sandbox.cli("rollback", "1", "--yes", "-i", str(sandbox.inventory))
    assert back.code == 0, back.text
    assert "host_prerequisites.sysctls" in back.err
    assert len(runs(sandbox)) == 2, "hosts stay as they are"
    sandbox.settings(host_prerequisites={"sysctls": {}})
    sandbox.pyinfra("-y", check=True)
    last = command(sandbox, "history")["runs"][-1]
    assert (last["number"], last["changed"], last["reason"]) == (3, 0, "changed 3 hosts, and nothing else")
