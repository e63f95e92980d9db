"""The inventory as pyinfra sees it."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from gpu_provision.inventory import groups, hosts_of, load
from gpu_provision.model.hosts import HelperPod, HostPrerequisites

HERE = Path(__file__).parent
INVENTORY = """
name: stack
cluster: {context: prod}
ssh: {user: ubuntu, key: ./key, known_hosts_file: known_hosts}
pools:
  t4: {gpu: {model: T4, count: 2}}
  cpu: {}
  managed: {gpu: {model: T4, count: 1}, host_prerequisites: {enabled: false}}
nodes:
  - {name: t4-1, pool: t4, address: 10.0.0.1}
  - {name: t4-2, pool: t4, ssh: {port: 2222, user: root}}
  - {name: cpu-1, pool: cpu, ssh: {sudo: false}}
  - {name: managed-1, pool: managed}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "stack.yaml"
    path.write_text(INVENTORY, encoding="utf-8")
    (tmp_path / "key").touch()
    return path


def hosts(result: dict[str, Any], group: str) -> list[str]:
    return [name for name, _ in result[group][0]]


def test_groups_are_nodes_gpus_pools_and_the_cluster(file: Path) -> None:
    """Nodes whose host phase is off are in none: pyinfra does not connect to them."""
    result = groups(file)
    assert hosts_of(str(file.with_suffix(".py"))) == result, "a script names the YAML beside it"
    assert {name: hosts(result, name) for name in result} == {
        "nodes": ["t4-1", "t4-2", "cpu-1"],
        "gpu": ["t4-1", "t4-2"],
        "pool_t4": ["t4-1", "t4-2"],
        "pool_cpu": ["cpu-1"],
        "pool_managed": [],
        "cluster": ["@cluster/prod"],
    }


def test_host_data_holds_what_deploys_and_the_ssh_connector_read(file: Path) -> None:
    """Paths are absolute; what is not set is absent, so that the user's own SSH configuration counts."""
    (_, first), (_, second), (_, third) = groups(file)["nodes"][0]
    base = file.parent
    assert first == {
        "gpu_inventory": str(file),
        "gpu_node": "t4-1",
        "gpu_expected": first["gpu_expected"],  # see test_expectation.py
        "host_prerequisites": {
            **asdict(HostPrerequisites()),
            "kernel_modules": ["i2c_core", "ipmi_msghandler"],
            "ca_certificates": [],
            "kernel_arguments": [],
        },
        "ssh_hostname": "10.0.0.1",
        "ssh_user": "ubuntu",
        "ssh_key": str(base / "key"),
        "ssh_known_hosts_file": str(base / "known_hosts"),
        "ssh_connect_retries": 1,
        "gpu_ssh_patience": 60,
        "_sudo": True,
    }
    assert (second["ssh_hostname"], second["ssh_port"], second["ssh_user"]) == ("t4-2", 2222, "root")
    assert "_sudo" not in second
    assert "_sudo" not in third
    assert (
        third["host_prerequisites"] | {"kernel_modules": [], "blacklist_nouveau": False} == third["host_prerequisites"]
    )


@pytest.mark.parametrize(
    ("cluster", "context"),
    [
        ("{}", "current"),
        ("{context: prod}", "prod"),
        ("{sandbox: default}", "sandbox"),
        ("{sandbox: eight}", "sandbox-eight"),
        ("{sandbox: fleets/eight.yaml}", "sandbox-eight"),
    ],
)
def test_the_cluster_is_named_by_its_context(file: Path, cluster: str, context: str) -> None:
    """Sandboxes have contexts of their own."""
    file.write_text(INVENTORY.replace("{context: prod}", cluster), encoding="utf-8")
    assert hosts(groups(file), "cluster") == [f"@cluster/{context}"]


def test_hosts_of_a_sandbox_are_simulated(file: Path) -> None:
    """They are reached by our connector, without SSH, sudo and helper pods, and know their fleet."""
    text = INVENTORY.replace("{context: prod}", "{sandbox: eight}") + "connect: kubernetes\n"
    file.write_text(text, encoding="utf-8")
    result = groups(file)
    assert load(file).hosts_without_ssh == ()
    assert hosts(result, "nodes") == ["@sandbox/t4-1", "@sandbox/t4-2", "@sandbox/cpu-1"]
    data = result["nodes"][0][0][1]
    assert data["sandbox_fleet"] == "eight"
    assert not [key for key in data if key.startswith(("ssh_", "_", "k8s_"))]


def test_hosts_without_ssh_are_reached_through_their_cluster(file: Path) -> None:
    """The node's word counts before the pool's, and that before the inventory's; sudo is not needed."""
    text = INVENTORY.replace("cpu: {}", "cpu: {connect: ssh}")
    text = text.replace("address: 10.0.0.1}", "address: 10.0.0.1, connect: ssh}")
    tail = "connect: kubernetes\nregistry: mirror.example.com/own\nimage_pull_secrets: [mirror]\n"
    file.write_text(text + tail, encoding="utf-8")
    result = groups(file)
    assert hosts(result, "nodes") == ["t4-1", "@k8s-node/t4-2", "cpu-1"]
    data = result["nodes"][0][1][1]
    assert {key: value for key, value in data.items() if key.startswith(("k8s_", "ssh_", "_"))} == {
        "k8s_kubeconfig": "",
        "k8s_context": "prod",
        "k8s_namespace": "kube-system",
        "k8s_image": HelperPod().image.replace("docker.io/", "mirror.example.com/own/"),
        "k8s_image_pull_secrets": ["mirror"],
    }


def test_a_script_ends_with_the_findings_and_no_traceback(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The process ends with exit code 65; pyinfra would show a traceback for any exception."""
    (tmp_path / "stack.yaml").write_text("name: Stack\n", encoding="utf-8")
    with pytest.raises(SystemExit) as raised:
        hosts_of(str(tmp_path / "stack.py"))
    assert raised.value.code == 65
    written = capsys.readouterr().err
    assert "error: GP121" in written
    assert "error: GP124" in written
    assert "Traceback" not in written


def test_groups_load_the_schema_library_alone() -> None:
    """Every pyinfra inventory pays for its imports; clients of clusters and hosts are not among them."""
    heavy = ("jsonschema", "pyinfra", "kubernetes", "gevent", "aiohttp", "click")
    sandbox = HERE.parents[1] / "inventories" / "sandbox.yaml"
    script = f"import sys\nfrom gpu_provision.inventory import groups\ngroups({str(sandbox)!r})\n"
    script += f"print(*(name for name in {heavy!r} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout.split() == ["jsonschema"]
