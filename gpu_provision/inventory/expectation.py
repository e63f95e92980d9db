"""What an inventory expects of each host, for the checks of the host phase."""

from __future__ import annotations

from gpu_provision.inventory.json_schema import ADDRESSES
from gpu_provision.model.hosts import Expectation
from gpu_provision.model.inventory import Inventory, Node
from gpu_provision.model.specs import ToolkitSpec

_CONFIGS = ("CONTAINERD_CONFIG", "CRIO_CONFIG", "DOCKER_CONFIG", "RUNTIME_CONFIG")
_SOCKETS = ("CONTAINERD_SOCKET", "DOCKER_SOCKET", "RUNTIME_SOCKET")


def expected_of(inventory: Inventory, node: Node) -> Expectation:
    """Return what the inventory expects of a node."""
    pool = inventory.pool_of(node)
    driver, toolkit = pool.driver, inventory.specs.toolkit
    prerequisites = inventory.prerequisites_of(node)
    image = f"{driver.image.repository}/{driver.image.image}"
    has_proxy = any(name.lower() in ADDRESSES and value for name, value in driver.env.items())
    return Expectation(
        node=node.name,
        pool=pool.name,
        os=f"{pool.os.id}{pool.os.version}" if pool.os else "",
        gpu_model=pool.gpu.model if pool.gpu else "",
        gpu_count=pool.gpu.count if pool.gpu else 0,
        any_gpu=pool.takes_any_gpu,
        driver_container=driver.enabled,
        driver_auto=driver.prefer_host,
        driver_image=image if driver.enabled else "",
        driver_version=driver.image.version,
        driver_precompiled=driver.enabled and driver.use_precompiled,
        kernel_module_type=driver.kernel_module_type,
        rdma=driver.enabled and driver.rdma.enabled,
        driver_has_proxy=bool(driver.repo_config) or has_proxy,
        toolkit=toolkit.enabled and not inventory.specs.nri_plugin_enabled,
        toolkit_version=toolkit.image.version,
        toolkit_dir=toolkit.install_dir if toolkit.enabled else "",
        toolkit_drop_in=_first_setting(toolkit, ("RUNTIME_DROP_IN_CONFIG",)),
        toolkit_source=_first_setting(toolkit, ("RUNTIME_CONFIG_SOURCE",)),
        toolkit_config=_first_setting(toolkit, _CONFIGS),
        toolkit_socket=_first_setting(toolkit, _SOCKETS),
        cdi=inventory.specs.cdi_enabled,
        blacklist_nouveau=prerequisites.blacklist_nouveau,
        hold_packages=prerequisites.hold_packages,
        kernel_modules=prerequisites.kernel_modules,
        # A sandbox has no registry.
        ask_registry=inventory.preflight.registry and not inventory.cluster.sandbox,
        ignore=inventory.preflight.ignore,
    )


def _first_setting(toolkit: ToolkitSpec, names: tuple[str, ...]) -> str:
    return next((toolkit.settings[name] for name in names if toolkit.settings.get(name)), "")
