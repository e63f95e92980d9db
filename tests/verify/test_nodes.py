"""Which nodes acceptance tests are about."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gpu_provision.inventory import load
from gpu_provision.verify import cluster


def live(name: str, **labels: str) -> dict[str, Any]:
    """Return a Node object."""
    return {"metadata": {"name": name, "labels": labels}, "status": {}}


def test_listed_nodes_have_the_gpus_of_their_pool(inventory_file: Path) -> None:
    """Zero without."""
    found = cluster.listed(load(inventory_file))
    assert [(node.name, node.gpus) for node in found][3:5] == [("away-1", 1), ("cpu-1", 0)]


def test_nodes_have_prerequisites_of_their_own_or_their_pools(inventory_file: Path) -> None:
    """What stands at the node counts."""
    own = "{name: two-1, pool: t4, host_prerequisites: {kernel_modules: [ib_umad]}}"
    inventory_file.write_text(inventory_file.read_text().replace("{name: two-1, pool: t4}", own))
    good, two, *_ = cluster.listed(load(inventory_file))
    assert good.prerequisites.kernel_modules == good.pool.host_prerequisites.kernel_modules
    assert two.prerequisites.kernel_modules == ("ib_umad",)


def test_nodes_that_pools_select_come_from_the_cluster(inventory_file: Path) -> None:
    """They have no SSH settings; those that are listed are not selected again."""
    inventory = load(inventory_file)
    assert not cluster.asks_cluster(inventory)
    text = inventory_file.read_text().replace(
        "  cpu:", "  spare: {gpu: {model: T4, count: 2}, node_selector: {x: y}}\n  cpu:"
    )
    inventory_file.write_text(text)
    inventory = load(inventory_file)
    assert cluster.asks_cluster(inventory)
    found = cluster.selected(inventory, [live("good-1", x="y"), live("new-1", x="y"), live("other-1")])
    assert [(node.name, node.gpus, node.node) for node in found] == [("new-1", 2, None)]
