"""The conversion of an inventory to a GPUStack and back loses and adds nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpu_provision import render
from gpu_provision.inventory import load
from gpu_provision.model.inventory import ClusterConfig
from gpu_provision.operator.stack import (
    LEASE_ANNOTATION,
    NAMESPACE_ANNOTATION,
    ROLLBACK_ANNOTATION,
    inventory_of,
    lease_of,
    namespace_of,
    rollback_annotation,
    rollback_run,
    spec_of,
)
from gpu_provision.releases import DEFAULT
from tests.operator.conftest import a_stack, data_of, stored_stack
from tests.operator.rule_cases import POOL


@pytest.mark.parametrize(
    ("annotation", "run"),
    [("3 7", 3), *((each, 0) for each in ("3 6", "3", "", "x 7", "-3 7", "\u00b3 7", "9" * 5000 + " 7", "3\n 7"))],
    ids=lambda value: str(value)[:9],
)
def test_rollback_holds_until_the_stack_is_changed(annotation: str, run: int) -> None:
    """The annotation may have any text."""
    assert rollback_run({"metadata": {"generation": 7, "annotations": {ROLLBACK_ANNOTATION: annotation}}}) == run
    assert rollback_run({"metadata": {"generation": 7, "annotations": rollback_annotation(run, 7)}}) == run


@pytest.mark.parametrize("name", ["a\n", "../secrets/x", "a/b", "$(id)", "", "a?watch=1", "A"])
def test_an_annotation_that_is_no_name_becomes_no_path(name: str) -> None:
    """Namespace and lease of a stack become parts of API paths."""
    annotations = {NAMESPACE_ANNOTATION: name, LEASE_ANNOTATION: f"ns/{name}"}
    assert namespace_of({"metadata": {"annotations": annotations}}) == ""
    assert lease_of({"metadata": {"annotations": annotations}}) == lease_of(None)
    assert lease_of({"metadata": {"annotations": {LEASE_ANNOTATION: f"{name}/lease"}}}) == lease_of(None)


def test_stored_stack_means_the_same_as_its_inventory(file: Path) -> None:
    """Defaults of the API server change nothing; otherwise the move to the operator would restart operands."""
    declared, (found, findings) = load(file), inventory_of(stored_stack(file))
    assert findings == ()
    assert found is not None
    assert render(found) == render(declared)
    assert (found.rollout, found.kept_runs) == (declared.rollout, declared.kept_runs)


def test_spec_leaves_out_hosts_and_connections() -> None:
    """The list of omitted keys is complete."""
    _, left = spec_of(data_of(Path(__file__).parents[1] / "inventory/good/complete.yaml"))
    kinds = {path.rsplit(".", 1)[-1] for path in left}
    expected = {"name", "kubeconfig", "context", "address", "ssh", "connect", "helper_pod", "preflight", "metrics"}
    expected |= {"ca_certificates", "dev_char_symlinks", "drain", "hold_packages", "kernel_headers", "proxy", "reboot"}
    assert kinds == expected | {"max_parallel_reboots", "persistence_mode", "reboot_timeout", "runtime_imports"}
    assert {"cluster.kubeconfig", "nodes[0].ssh", "pools.gpu.connect"} & set(left)


def test_machine_configs_of_a_stack_are_those_of_its_inventory(tmp_path: Path) -> None:
    """Otherwise the move to the operator would reboot the nodes of OpenShift."""
    file = tmp_path / "openshift.yaml"
    text = (Path(__file__).parents[2] / "inventories/openshift.yaml").read_text()
    file.write_text(text.replace("  # kernel_arguments: ", "  kernel_arguments: "))
    found, _ = inventory_of(stored_stack(file))
    assert found is not None
    (config,) = render(found)["machine_config"]
    assert "intel_iommu=on" in config["spec"]["kernelArguments"]
    assert [config] == render(load(file))["machine_config"]


@pytest.mark.parametrize(
    "proxy",
    [
        {"https_proxy": "http://me:secret@proxy.example.com:3128"},
        {"https_proxy": "http://proxy.example.com:3128", "credentials_file": "secrets/proxy"},
    ],
)
def test_a_proxy_that_needs_credentials_is_no_part_of_a_stack(proxy: dict[str, str]) -> None:
    """Readers of stacks would see them. The spec names the release, so that a newer controller replaces no drivers."""
    assert spec_of({"name": "prod", "cluster": {}, "proxy": proxy}) == ({"release": DEFAULT}, ("name", "proxy"))


def test_an_amount_with_a_fraction_becomes_a_text() -> None:
    """x-kubernetes-int-or-string allows only whole numbers."""
    stack = a_stack(gfd={"resources": {"limits": {"cpu": 0.5}}})
    assert stack["spec"]["gfd"]["resources"]["limits"] == {"cpu": "0.5"}


@pytest.mark.parametrize(
    ("stack", "where"),
    [
        (a_stack("a.b"), "metadata.name"),
        (a_stack(release="9.9.9"), "spec.release"),
        (a_stack(pools={"x": {**POOL, "gpu": {"model": "T4"}}}), "spec.pools.x.gpu.count"),
        (a_stack(nodes=[{"name": "n", "pool": "nope"}]), "spec.nodes[0].pool"),
        (a_stack(nodes=[{"name": "n", "pool": "gpu"}] * 2), "spec.nodes[1].name"),
        (a_stack(nonsense=1), "spec.nonsense"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_findings_name_the_place_in_the_stack(stack: dict[str, Any], where: str) -> None:
    """Findings name no line of the generated text."""
    inventory, findings = inventory_of(stack)
    assert inventory is None
    assert f"gpustack/{stack['metadata']['name']} {where}" in {finding.where for finding in findings}
    assert "line" not in " ".join(finding.what for finding in findings)


def test_no_stack_has_a_file_of_the_controller_read(tmp_path: Path) -> None:
    """A writer of stacks may not read the controller's files, even if a server accepts the keys."""
    secret = tmp_path / "secret"
    secret.write_text("me:token\n", encoding="utf-8")
    stack = a_stack(cluster={"namespace": "own"})
    stack["spec"] |= {
        "proxy": {"http_proxy": "http://proxy.example.com:3128", "credentials_file": str(secret)},
        "host_prerequisites": {"ca_certificates": [str(secret)]},
        "ssh": {"key": str(secret)},
    }
    stack["spec"]["cluster"]["kubeconfig"] = str(secret)
    inventory, findings = inventory_of(stack)
    assert inventory is not None
    assert (inventory.cluster, inventory.path) == (ClusterConfig(namespace="own"), "")
    assert findings == ()
    assert str(tmp_path) not in inventory.text
    assert "token" not in inventory.text


def test_findings_do_not_tell_secrets() -> None:
    """Findings appear in the status and in Events."""
    stack = a_stack(driver={"env": {"TOKEN": "hunter2"}}, proxy={"http_proxy": "htp://me:hunter2@proxy"})
    stack["spec"]["proxy"] = {"http_proxy": "htp://me:hunter2@proxy"}
    _, findings = inventory_of(stack)
    assert findings
    assert "hunter2" not in " ".join(map(str, findings))


def test_a_text_that_looks_like_something_else_stays_a_text() -> None:
    """The loader reads YAML: a label value of digits stays a string."""
    labels = {"a": "022", "b": "yes", "c": "1e3", "d": "0x10", "e": "2026-01-01", "f": "", "g": "null"}
    inventory, findings = inventory_of(a_stack(pools={"gpu": {**POOL, "labels": labels}}))
    assert findings == ()
    assert inventory is not None
    assert inventory.pools["gpu"].labels == labels


def test_warnings_of_the_loader_are_reported_once() -> None:
    """The controller reports a stack's warnings, a plan those of a file."""
    inventory, findings = inventory_of(a_stack(driver={"version": "595.91.99"}))
    assert [finding.code for finding in findings] == ["GP133"]
    assert inventory is not None
    assert inventory.warnings == ()
