"""Stacks and the operator as files; scenarios test the commands with a cluster."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from gpu_provision.model.findings import Finding, Severity
from tests.cli.harness import PROD, Run

IMAGE = "registry.example.com/gpu-provision:0.1.0"


def test_a_stack_is_printed_as_kubectl_takes_it(run: Run) -> None:
    """One object, with the inventory's settings of the cluster."""
    ran = run("operator", "stack", "-i", PROD)
    stack = yaml.safe_load(ran.out)
    assert (stack["kind"], stack["metadata"]) == ("GPUStack", {"name": "prod"})
    assert not {"ssh", "name"} & stack["spec"].keys()
    assert (ran.code, ran.err) == (0, "")
    assert "Not in a stack: name" in run("operator", "stack", "-i", PROD, "-v").err
    assert run("operator", "stack", "-i", PROD, "--json").document["manifests"] == [stack]


def test_a_stack_takes_no_value_of_this_machine(run: Run, tmp_path: Path) -> None:
    """Neither a reference, which its controller would resolve, nor the value; the error names the line."""
    inventory = tmp_path / "stack.yaml"
    inventory.write_text("name: x\ncluster: {}\ndriver: {env: {HOME: {env: HOME}}}\n", encoding="utf-8")
    ran = run("operator", "stack", "-i", inventory)
    assert (ran.code, ran.out) == (65, "")
    assert "GP432" in ran.err
    assert "stack.yaml:3 driver.env.HOME.env" in ran.err


def test_the_operator_is_rendered_as_a_folder_for_kustomize(run: Run, tmp_path: Path) -> None:
    """The output names exactly the written files; versions have the format of clusters."""
    folder = tmp_path / "operator"
    for version in ("1.27", "v1.29.3", "1.31.0-eks-abc", "1.33+"):
        assert run("operator", "render", "--image", IMAGE, "--kubernetes", version, "-o", folder, "--json").document
    kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text(encoding="utf-8"))
    written = {path.name for path in folder.iterdir()}
    assert written == {*kustomization["resources"], "kustomization.yaml"}
    assert "controller.yaml" in written
    found = [item for path in folder.glob("*.yaml") for item in yaml.safe_load_all(path.read_text(encoding="utf-8"))]
    assert {"Deployment", "PodDisruptionBudget", "ClusterRole"} <= {item["kind"] for item in found}
    assert "No --image" in run("operator", "render").err


@pytest.mark.parametrize("command", ["install", "uninstall"])
def test_a_cluster_is_not_changed_without_being_asked(run: Run, tmp_path: Path, command: str) -> None:
    """As with apply: a prompt, or --yes."""
    ran = run("operator", command, "--kubeconfig", _kubeconfig(tmp_path))
    assert ran.code == 64
    assert "GP005" in ran.err


def test_a_refused_question_ends_an_installation(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpu_provision.cli.operator._confirm", lambda *_, **__: False)
    assert run("operator", "install", "--kubeconfig", _kubeconfig(tmp_path)).code == 1


@pytest.mark.parametrize("command", ["run", "status", "uninstall"])
def test_a_tilde_in_the_path_of_a_kubeconfig_is_the_users_home(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """No shell expands it in --kubeconfig=~/none."""
    monkeypatch.setenv("HOME", str(tmp_path))
    assert f"{tmp_path}/none" in run("operator", command, "--kubeconfig=~/none").err


def _kubeconfig(folder: Path) -> Path:
    path = folder / "kubeconfig"
    path.write_text(
        "apiVersion: v1\nkind: Config\ncurrent-context: a\ncontexts: [{name: a, context: {cluster: a, user: a}}]\n"
        "clusters: [{name: a, cluster: {server: 'https://127.0.0.1:1'}}]\nusers: [{name: a, user: {token: x}}]\n",
        encoding="utf-8",
    )
    return path


def test_warnings_of_an_installation_are_no_failure(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    finding = Finding(code="GP397", where="the definition", what="installed without rules", severity=Severity.WARNING)
    monkeypatch.setattr("gpu_provision.operator.install.install", lambda *_, **__: ((), (finding,)))
    words = ["operator", "install", "--yes", "--kubeconfig", _kubeconfig(tmp_path)]
    ran = run(*words)
    assert ran.code == 0
    assert "GP397 the definition" in ran.err
    assert [each["code"] for each in run(*words, "--json").document["warnings"]] == ["GP397"]
