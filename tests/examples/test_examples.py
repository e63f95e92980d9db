"""Every example runs, as its page says."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_provision.inventory import load
from gpu_provision.sandbox.fleet_file import load_fleet
from gpu_provision.sandbox.state import sandbox_directory
from tests.documents import CHECKOUT, Reader


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    made = Reader(tmp_path)
    yield made
    made.close()


@pytest.mark.real  # for kubectl
def test_the_job_and_the_notebook_run_on_the_sandbox(reader: Reader) -> None:
    """The Job's log ends in Test PASSED; the notebook is ready, on port 30001, with one GPU."""
    output = reader.follow("examples/README.md")
    assert "Test PASSED" in output
    assert "token=" in output
    limits = "{.items[0].spec.containers[0].resources.limits.nvidia\\.com/gpu}"
    asked = (
        "export KUBECONFIG=$(gpu-provision sandbox kubeconfig)",
        "kubectl get service jupyter -o jsonpath='{.spec.ports[0].nodePort} '",
        "kubectl get deployment jupyter -o jsonpath='{.status.readyReplicas} '",
        f"kubectl get pods -l app.kubernetes.io/name=jupyter -o jsonpath='{limits}'",
    )
    assert reader.run(*asked).split() == ["30001", "1", "1"]


@pytest.fixture
def infra_repo(tmp_path: Path) -> Iterator[Reader]:
    made = Reader(tmp_path, example="infra-repo")
    yield made
    made.run("gpu-provision sandbox down --fleet machines.yaml")


@pytest.mark.real  # for the time it takes
def test_the_infrastructure_repository_works_both_ways(infra_repo: Reader) -> None:
    """Pyinfra plans and makes all of it with the repository's own operations; its program finds nothing to do."""
    output = infra_repo.follow("examples/infra-repo/README.md")
    plan, first, second = output.split("--> Loading config...")[1:]
    for operation in ("Mark GPU machines as prepared", "Host prerequisites . nouveau kept away"):
        assert re.search(rf"{operation} +3 \(@sandbox/h100-1, ", plan)
    assert re.search(r"Mark GPU machines as prepared +3 +3 +- +-", first)
    assert re.search(r"Grand total +(\d+) +- +- +\1", second)
    assert "0 objects written" in second
    assert "h100-1 NVIDIA-H100-80GB-HBM3 ready" in second


def test_the_infrastructure_repository_leaves_the_demo_alone() -> None:
    """A sandbox keeps its state by its name; on the demo's, two stacks would own the same objects."""
    inventory = load(CHECKOUT / "examples" / "infra-repo" / "inventories" / "lab.yaml")
    assert sandbox_directory(load_fleet(inventory.cluster.sandbox).name) != sandbox_directory()


@pytest.mark.real
def test_no_node_takes_a_pod_before_it_is_validated(reader: Reader) -> None:
    """The Job waits for the first node that is; both end without the taint, and say the same of themselves."""
    output = reader.follow("examples/startup-taint/README.md")
    assert output.partition("\nInventory ")[0].count("gpu-provision.io/not-validated") == 2
    assert "job.batch/cuda-vectoradd condition met" in output
    values = {line.split()[-1] for line in output.splitlines() if line.startswith("t4-") and "Ready" in line}
    assert len(values) == 1, output


@pytest.mark.real  # for kubectl
def test_the_operator_keeps_a_stack_on_the_sandbox(reader: Reader) -> None:
    """Installed from files, with the controller beside the sandbox, and removed again."""
    output = reader.follow("examples/operator/README.md")
    assert "gpustack.gpu-provision.io/sandbox condition met" in output
    assert "3/3" in output
    assert "CustomResourceDefinition gpustacks.gpu-provision.io" in output


def test_an_inventory_holds_no_secrets(reader: Reader) -> None:
    """A plan shows neither value, and what is missing is named with its line."""
    output = reader.follow("examples/secrets/README.md")
    rendered, _, after = output.partition("+        - name: GIT_PAT")
    assert "secretKeyRef" in rendered
    assert "value: not-a-real-license" in rendered
    assert "value: (changed)" in after
    assert after.count("GP169") == 2
    assert "not-a-real" not in after
