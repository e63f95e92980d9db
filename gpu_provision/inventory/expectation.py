"""What an inventory expects of each of its nodes."""

from __future__ import annotations

from gpu_provision.model.expectation import Expectation
from gpu_provision.model.inventory import Inventory, Node
from gpu_provision.model.specs import DriverSpec, ToolkitSpec

_CONFIGS = ("CONTAINERD_CONFIG", "CRIO_CONFIG", "DOCKER_CONFIG", "RUNTIME_CONFIG")
_SOCKETS = ("CONTAINERD_SOCKET", "DOCKER_SOCKET", "RUNTIME_SOCKET")
_PROXIES = frozenset({"http_proxy", "https_proxy"})


def expectation(inventory: Inventory, node: Node) -> Expectation:
    """Return what the inventory expects of a node."""
    pool = inventory.pool_of(node)
    driver, toolkit = pool.driver, inventory.specs.toolkit
    prerequisites = inventory.prerequisites_of(node)
    image = f"{driver.image.repository}/{driver.image.image}"
    return Expectation(
        node=node.name,
        pool=pool.name,
        os=f"{pool.os.id}{pool.os.version}" if pool.os else "",
        gpu_model=pool.gpu.model if pool.gpu else "",
        gpu_count=pool.gpu.count if pool.gpu else 0,
        driver_container=driver.enabled,
        driver_auto=driver.prefer_host,
        driver_image=image if driver.enabled else "",
        driver_version=driver.image.version,
        kernel_module_type=driver.kernel_module_type,
        driver_has_proxy=_has_proxy(driver),
        toolkit=toolkit.enabled,
        toolkit_version=toolkit.image.version,
        toolkit_dir=toolkit.install_dir if toolkit.enabled else "",
        toolkit_drop_in=_setting(toolkit, ("RUNTIME_DROP_IN_CONFIG",)),
        toolkit_config=_setting(toolkit, _CONFIGS),
        toolkit_socket=_setting(toolkit, _SOCKETS),
        cdi=inventory.specs.cdi_enabled,
        blacklist_nouveau=prerequisites.blacklist_nouveau,
        hold_packages=prerequisites.hold_packages,
        kernel_modules=prerequisites.kernel_modules,
        # A sandbox pulls nothing: there is no registry behind its images.
        ask_registry=inventory.preflight.registry and not inventory.cluster.sandbox,
        ignore=inventory.preflight.ignore,
    )


def _has_proxy(driver: DriverSpec) -> bool:
    return bool(driver.repo_config) or any(name.lower() in _PROXIES and value for name, value in driver.env.items())


def _setting(toolkit: ToolkitSpec, names: tuple[str, ...]) -> str:
    return next((toolkit.settings[name] for name in names if toolkit.settings.get(name)), "")
