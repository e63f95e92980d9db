"""The pytest plugin: fixtures for acceptance tests of what an inventory declares.

``gpu_inventory``, ``gpu_cluster``; and, once for every node with a GPU, ``gpu_node`` and ``gpu_host``; or for every
node, ``inventory_node`` and ``inventory_host``. See docs/verify.md. pytest loads it wherever gpu-provision is
installed, so it imports little before a test asks for it.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from gpu_provision.model.findings import ProvisionError, UnreachableError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from gpu_provision.model.inventory import Inventory
    from gpu_provision.verify.cluster import DeclaredNode, GpuCluster

_VARIABLE = "GPU_PROVISION_INVENTORY"
_BY_NODE = {"gpu_node", "inventory_node"}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options that name an inventory."""
    group = parser.getgroup("gpu-provision", "acceptance tests of GPU nodes")
    group.addoption("--gpu-inventory", metavar="FILE", help=f"the inventory; default: ${_VARIABLE}")
    group.addoption("--gpu-limit", metavar="NODE[,NODE...]", help="only these nodes")
    group.addoption("--gpu-kubeconfig", metavar="FILE", help="another kubeconfig than the inventory names")
    group.addoption("--gpu-context", metavar="NAME", help="another context than the inventory names")
    group.addoption(
        "--gpu-results", type=int, metavar="DESCRIPTOR", help="file descriptor for results, a JSON object a line"
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that asks for a node once for each."""
    for name in sorted(_BY_NODE.intersection(metafunc.fixturenames)):
        nodes = _nodes(metafunc.config, in_cluster="gpu_cluster" in metafunc.fixturenames)
        chosen = [node for node in nodes if node.pool.gpu or name == "inventory_node"]
        metafunc.parametrize(name, chosen, ids=[node.name for node in chosen], indirect=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave tests of the cluster as a whole out where only some nodes are asked for."""
    if not config.getoption("--gpu-limit"):
        return
    names = {item: set(getattr(item, "fixturenames", ())) for item in items}
    whole = [item for item in items if "gpu_cluster" in names[item] and not names[item] & _BY_NODE]
    items[:] = [item for item in items if item not in whole]
    config.hook.pytest_deselected(items=whole)


@pytest.fixture(scope="session")
def gpu_inventory(pytestconfig: pytest.Config) -> Inventory:
    """The inventory, validated and resolved."""
    return _inventory(pytestconfig)


@pytest.fixture(scope="session")
def gpu_cluster(gpu_inventory: Inventory) -> GpuCluster:
    """The inventory's cluster: ``get("/api/v1/...")``, ``nodes()``, ``pods(...)``, and ``api`` for kubernetes' own."""
    from gpu_provision.verify.cluster import open_cluster

    try:
        return open_cluster(gpu_inventory)
    except UnreachableError as error:
        raise error.with_traceback(None) from None  # once per test, without the client library's frames


@pytest.fixture
def gpu_node(request: pytest.FixtureRequest) -> DeclaredNode:
    """A node with a GPU: its ``name``, ``pool``, declared ``gpus``."""
    return _record_node(request)


@pytest.fixture
def inventory_node(request: pytest.FixtureRequest) -> DeclaredNode:
    """A node of the inventory, with or without a GPU."""
    return _record_node(request)


@pytest.fixture
def gpu_host(gpu_node: DeclaredNode, _open_host: Callable[[DeclaredNode], Any]) -> Any:
    """The testinfra host of a node with a GPU."""
    return _open_host(gpu_node)


@pytest.fixture
def inventory_host(inventory_node: DeclaredNode, _open_host: Callable[[DeclaredNode], Any]) -> Any:
    """The testinfra host of a node, with or without a GPU."""
    return _open_host(inventory_node)


@pytest.fixture(scope="session")
def _open_host(gpu_inventory: Inventory) -> Iterator[Callable[[DeclaredNode], Any]]:
    """Open each host once, and remember also that one does not answer."""
    opened: dict[str, Any] = {}

    def open_host(node: DeclaredNode) -> Any:
        from gpu_provision.verify.hosts import SkippedHostError, host_of

        if node.name not in opened:
            try:
                opened[node.name] = host_of(gpu_inventory, node.name)
            except (SkippedHostError, UnreachableError) as error:
                opened[node.name] = error
        found = opened[node.name]
        if isinstance(found, SkippedHostError):
            pytest.skip(str(found))
        if isinstance(found, Exception):
            raise found
        return found

    yield open_host
    for host in opened.values():  # what was made to look at one goes
        if close := getattr(getattr(host, "backend", None), "close", None):
            close()


_LOADED = pytest.StashKey["Inventory"]()


def _inventory(config: pytest.Config) -> Inventory:
    """Load the inventory once. Raises pytest.UsageError for none, or a bad one."""
    from gpu_provision.inventory import load
    from gpu_provision.inventory.loader import with_cluster

    if _LOADED in config.stash:
        return config.stash[_LOADED]
    path = config.getoption("--gpu-inventory") or os.environ.get(_VARIABLE)
    if not path:
        message = f"these tests need an inventory: --gpu-inventory FILE, or {_VARIABLE}"
        raise pytest.UsageError(message)
    kubeconfig, context = config.getoption("--gpu-kubeconfig"), config.getoption("--gpu-context")
    try:
        config.stash[_LOADED] = with_cluster(load(path), kubeconfig=kubeconfig, context=context)
    except ProvisionError as error:
        raise pytest.UsageError(str(error)) from error
    return config.stash[_LOADED]


def _nodes(config: pytest.Config, *, in_cluster: bool) -> list[DeclaredNode]:
    """Return the nodes; those that only the cluster knows are left out if it does not answer, which tests then say."""
    from gpu_provision.verify.cluster import listed_nodes, needs_cluster, open_cluster, selected_nodes

    inventory = _inventory(config)
    nodes = [*listed_nodes(inventory)]
    if in_cluster and needs_cluster(inventory):
        with suppress(ProvisionError):
            nodes += selected_nodes(inventory, open_cluster(inventory).nodes())
    limit = config.getoption("--gpu-limit")
    return [node for node in nodes if not limit or node.name in limit.split(",")]


_FOR_VMS = pytest.StashKey[frozenset[str]]()


def _nodes_for_vms(config: pytest.Config) -> frozenset[str]:
    """Return the nodes whose GPUs are for virtual machines, read once; none if the cluster does not answer."""
    from gpu_provision.nodes.workloads import read_nodes_for_vms

    if _FOR_VMS not in config.stash:
        config.stash[_FOR_VMS] = read_nodes_for_vms(_inventory(config)) or frozenset()
    return config.stash[_FOR_VMS]


def _record_node(request: pytest.FixtureRequest) -> DeclaredNode:
    """Return the test's node, and note its name: JUnit XML has it as a property.

    Skip the test if the node's GPUs are for virtual machines: it has no stack, and its host is not prepared.
    """
    node: DeclaredNode = request.param
    request.node.user_properties.append(("node", node.name))
    if node.pool.gpu and node.name in _nodes_for_vms(request.config):
        pytest.skip("its GPUs are for virtual machines")
    return node


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Write the outcome for `gpu-provision verify`: after the call, or when the setup gave the test up."""
    report = yield
    if item.config.getoption("--gpu-results") is None:
        return report
    decided = report.when == "call" or (report.when == "setup" and not report.passed)
    if decided or (report.when == "teardown" and report.failed):
        result = _result(item, report, call.excinfo.value if call.excinfo else None)
        os.write(item.config.getoption("--gpu-results"), f"{json.dumps(result)}\n".encode())
    return report


def _result(item: pytest.Item, report: pytest.TestReport, error: BaseException | None) -> dict[str, Any]:
    """Return the fields of a `gpu_provision.verify.run.Check`; a test's name is the sentence that it is."""
    name: str = getattr(item, "originalname", None) or item.name
    return {
        "sentence": name.removeprefix("test_").replace("_", " "),
        "node": str(dict(report.user_properties).get("node", "")),
        "outcome": "unreachable" if isinstance(error, UnreachableError) else report.outcome,
        "reason": reason(error) if error else "",
        "seconds": round(report.duration, 3),
        "test": item.nodeid,
    }


def reason(error: BaseException) -> str:
    """Return why a test did not pass, in the words of its author, on one line."""
    if isinstance(error, ProvisionError):
        return "; ".join(f"{each.what} ({each.evidence})" if each.evidence else each.what for each in error.findings)
    said = str(getattr(error, "msg", None) or error)
    words = said.partition("\nassert ")[0].strip()
    known = isinstance(error, AssertionError | pytest.fail.Exception | pytest.skip.Exception)
    return " ".join((words if known else f"{type(error).__name__}: {words}").split())
