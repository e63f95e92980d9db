"""The cluster host of a pyinfra run: whether it takes part, and the inventory file that its data names."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from pyinfra import host, logger, state
from pyinfra.api.exceptions import DeployError

from gpu_provision.connectors.cluster import GROUP
from gpu_provision.hosts import codes
from gpu_provision.model.findings import Finding, UsageError

_DECLARATION = 'cluster = [("@cluster/CONTEXT", {"gpu_inventory": "inventories/gpu.yaml"})]'


def is_cluster_host(deploy: str) -> bool:
    """Return whether a deploy has work on the current host; warn once if ``--limit`` leaves every cluster host out.

    Args:
        deploy: Name of the function that the deploy file calls, for messages.

    Raises:
        DeployError: The pyinfra inventory has no cluster host.
    """
    clusters = [other for other in state.inventory if GROUP in other.groups]
    if not clusters:
        raise DeployError(str(_no_cluster_host(deploy)))
    if not any(map(state.is_host_in_limit, clusters)):
        _warn_once(f"{deploy}() does nothing: --limit or --exclude leaves out {', '.join(map(str, clusters))}")
    return GROUP in host.groups


def inventory_path() -> Path:
    """Return the path of the inventory file; raises UsageError if the cluster host's data names none."""
    path = host.data.get("gpu_inventory")
    if path:
        return Path(path)
    raise UsageError(
        Finding(
            code=codes.NO_INVENTORY_FILE,
            what="the data of the cluster host has no gpu_inventory, the path of an inventory file",
            where=host.name,
            fix=f"write in pyinfra's inventory: {_DECLARATION}",
        )
    )


@cache
def _warn_once(message: str) -> None:
    logger.warning(f"--> {message}; to include it, add --limit {GROUP}")


def _no_cluster_host(deploy: str) -> Finding:
    return Finding(
        code=codes.NO_CLUSTER_HOST,
        what=f"{deploy}() needs a cluster host, and pyinfra's inventory has none",
        fix=f"add {_DECLARATION} to it; for hosts alone, call {_ALONE[deploy]} without {deploy}()",
    )


_ALONE = {"gpu_stack": "host_prerequisites()", "gpu_stack_removed": "host_teardown()"}
