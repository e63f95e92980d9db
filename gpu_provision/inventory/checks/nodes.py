"""Checks nodes, pools, and whether driver, GPU and operating system fit together."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import partial
from typing import Any

from gpu_provision import releases
from gpu_provision.inventory import hardware
from gpu_provision.inventory.checks.context import CheckContext
from gpu_provision.inventory.document import KeyPath, Problem
from gpu_provision.inventory.suggestions import did_you_mean, find_nearest
from gpu_provision.model.inventory import Node, NodePool
from gpu_provision.releases import COMPONENTS

_OURS = "gpu-provision.io/"


def check_nodes(context: CheckContext) -> Iterator[Problem]:
    """Yield what is wrong with nodes and pools."""
    yield from _duplicate_names(context)
    yield from _shared_addresses(context)
    yield from _unknown_pools(context)
    yield from _empty_pools(context)
    yield from _gpus(context)
    yield from _reserved_labels(context)


def _duplicate_names(context: CheckContext) -> Iterator[Problem]:
    first: dict[str, int] = {}
    for position, node in enumerate(context.nodes):
        name = node.get("name")
        if name is None:
            continue
        if name in first:
            line = context.document.line(("nodes", first[name], "name"))
            what = f"The node {name} is listed twice, first in line {line}."
            yield context.error("GP140", ("nodes", position, "name"), what, "Remove or rename one of them.")
        first.setdefault(name, position)


def _shared_addresses(context: CheckContext) -> Iterator[Problem]:
    """Yield nodes that would be reached at the same place; sandbox hosts have no addresses."""
    if context.inventory.cluster.sandbox:
        return
    first: dict[tuple[str, int, str], str] = {}
    positions = [position for position, node in enumerate(context.nodes) if "name" in node]
    for position, node in zip(positions, context.inventory.nodes, strict=True):
        place = _place(node)
        other = first.setdefault(place, node.name)
        if other != node.name:
            what = f"{node.name} and {other} have the same address and port."
            path = context.declared(("nodes", position, "address"), ("nodes", position, "name"))
            fix = f"Correct the address of one of them, or its ssh.port (now {place[1]})."
            yield context.error("GP141", path, what, fix)


def _place(node: Node) -> tuple[str, int, str]:
    return (node.address or node.name, node.ssh.port or 22, node.ssh.bastion)


def _unknown_pools(context: CheckContext) -> Iterator[Problem]:
    written = context.document.data.get("pools")
    known = written if isinstance(written, dict) else {}
    for position, node in enumerate(context.nodes):
        pool = node.get("pool")
        if pool is None or pool in known:
            continue
        fix = partial(_pool_meant, pool, known)
        yield context.error("GP142", ("nodes", position, "pool"), f"There is no pool {pool}.", fix)


def _pool_meant(pool: str, known: Collection[str]) -> str:
    otherwise = f"Known pools: {', '.join(known)}" if known else f"Declare it: pools: {{{pool}: {{}}}}"
    return did_you_mean(pool, known, otherwise)


def _empty_pools(context: CheckContext) -> Iterator[Problem]:
    if not context.complete:
        return
    used = {node.get("pool") for node in context.nodes}
    for name, pool in context.pools.items():
        if name not in used and not pool.get("node_selector"):
            what = f"No node belongs to the pool {name}."
            fix = "Give it nodes under `nodes`, or a node_selector, or remove it."
            yield context.warning("GP143", ("pools", name), what, fix)
    with_gpu = {name for name, pool in context.pools.items() if "gpu" in pool}
    if not with_gpu & (used | {name for name, pool in context.pools.items() if pool.get("node_selector")}):
        what = "No node has a GPU, so there is nothing to provision."
        fix = "Declare a pool with gpu: {model: T4, count: 1}, and nodes that belong to it."
        yield context.warning("GP144", context.declared(("pools",), ("nodes",), ()), what, fix)


def _gpus(context: CheckContext) -> Iterator[Problem]:
    for name, pool in context.pools.items():
        gpu, path = pool.get("gpu", {}), ("pools", name, "gpu")
        if "gpu" not in pool and "driver" in pool and context.complete:
            what = f"The pool {name} has no gpu, so its driver settings have no effect."
            yield context.warning("GP145", ("pools", name, "driver"), what, "Declare its gpu, or remove driver.")
        model = hardware.find_model(gpu["model"]) if "model" in gpu else None
        if "model" in gpu and model is None:
            what = f"The GPU model {gpu['model']} is not known, so nothing about it can be checked."
            yield context.warning("GP150", (*path, "model"), what, partial(_model_meant, gpu["model"]))
        if "count" in gpu:
            yield from _count(context, (*path, "count"), gpu["count"], model)


def _model_meant(name: str) -> str:
    close = hardware.nearest_model(name)
    return f"Did you mean {close}?" if close else "Write it as `nvidia-smi -L` does."


def _count(context: CheckContext, path: tuple[str, ...], count: int, model: hardware.Model | None) -> Iterator[Problem]:
    board = model.board if model else hardware.Board.PCIE
    plausible = hardware.COUNTS[board]
    if count in plausible:
        return
    near = min(plausible, key=lambda each: (abs(each - count), -each))
    what = f"{count} GPUs in one node are implausible{f' for {model.name} ({board})' if model else ''}."
    fix = f"Write how many GPUs `nvidia-smi -L` lists on one node, such as {near}."
    yield context.warning("GP151", path, what, fix)


def _reserved_labels(context: CheckContext) -> Iterator[Problem]:
    holders: list[tuple[KeyPath, dict[str, Any]]] = [(("pools", name), pool) for name, pool in context.pools.items()]
    holders += [(("nodes", position), node) for position, node in enumerate(context.nodes)]
    for path, holder in holders:
        for key in holder.get("labels", {}):
            if key.startswith(_OURS):
                what = f"The label {key} is set by this tool; a value here is overwritten."
                yield context.warning("GP164", (*path, "labels", key), what, "Remove it.")


def check_versions(context: CheckContext) -> Iterator[Problem]:
    """Yield versions that do not exist, or do not go with each other."""
    yield from _release(context)
    yield from _components(context)
    yield from _drivers(context)
    for name, pool in context.inventory.pools.items():
        if pool.gpu and pool.driver.enabled:
            yield from _driver_for_system(context, name, pool)
            yield from _kernel_modules(context, name, pool)
            if _driver_is_known(context, pool):
                yield from _driver_for_gpu(context, name, pool)


def _release(context: CheckContext) -> Iterator[Problem]:
    name = context.data.get("release")
    if name is None:
        return
    try:
        releases.release(name)
    except releases.UnknownReleaseError as error:
        if error.too_old:
            what = f"Release {name} is too old: its components predate what this tool drives."
            fix = f"The oldest supported release is {releases.names()[0]}; the newest is {releases.names()[-1]}."
            yield context.error("GP131", ("release",), what, fix)
            return
        fix = did_you_mean(name, releases.names(), f"Known releases: {', '.join(releases.names()[-6:])}")
        yield context.error("GP130", ("release",), f"There is no release {name}.", fix)


def _components(context: CheckContext) -> Iterator[Problem]:
    """Yield versions that no release carries; an image of the user's own may have any."""
    for key in (key for key in COMPONENTS if key != "driver"):
        section = context.data.get(key, {})
        version = section.get("version", "")
        if not version or version.startswith("sha256:") or {"image", "repository"} & section.keys():
            continue
        known = releases.versions(key)
        if version not in known:
            what = f"No release carries {key} {version}; the image may not exist."
            fix = did_you_mean(version, reversed(known), f"The newest known one is {known[-1]}.")
            yield context.warning("GP132", (key, "version"), what, fix)


def _drivers(context: CheckContext) -> Iterator[Problem]:
    paths: list[KeyPath] = [("driver", "version")]
    paths += [("pools", name, "driver", "version") for name in context.pools]
    for path in paths:
        section = context.at(path[:-1])
        version = section.get("version", "")
        if (
            _branch(version)
            and version not in releases.driver_versions()
            and not {"image", "repository"} & section.keys()
        ):
            what = f"No release recommends driver {version}; its image may not exist for your operating systems."
            fix = f"The nearest known one is {_nearest_driver(version)}."
            yield context.warning("GP133", path, what, fix)


def _nearest_driver(version: str) -> str:
    known = releases.driver_versions()
    same_branch = [each for each in known if _branch(each) == _branch(version)]
    return same_branch[-1] if same_branch else min(known, key=lambda each: abs(_branch(each) - _branch(version)))


def _branch(version: str) -> int:
    head = version.partition(".")[0]
    return int(head) if head.isdecimal() else 0


def _driver_is_known(context: CheckContext, pool: NodePool) -> bool:
    """Return whether it is certain which driver the pool gets: not if a release that does not exist should say."""
    try:
        recommended = releases.release(context.data.get("release", releases.DEFAULT)).driver.version
    except releases.UnknownReleaseError:
        recommended = ""
    version = pool.driver.image.version
    return bool(_branch(version)) and (version == recommended or _is_declared(context, pool.name))


def _is_declared(context: CheckContext, pool: str) -> bool:
    paths: tuple[KeyPath, ...] = (("pools", pool, "driver", "version"), ("driver", "version"))
    return any("version" in context.at(path[:-1]) for path in paths)


def _driver_for_gpu(context: CheckContext, name: str, pool: NodePool) -> Iterator[Problem]:
    model = hardware.find_model(pool.gpu.model) if pool.gpu else None
    if model is None:
        return
    version, branch = pool.driver.image.version, _branch(pool.driver.image.version)
    family = model.family
    own = ("pools", name, "driver", "version")
    path = own if context.document.item(own) else ("pools", name, "gpu", "model")
    if branch < model.first_branch:
        what = f"The driver {version} is too old for {model.name}, which needs branch {model.first_branch} or newer."
        fix = _set_driver(name, [each for each in releases.driver_versions() if _branch(each) >= model.first_branch])
        yield context.error("GP134", path, what, fix)
    if family.last_branch and branch > family.last_branch:
        last = f"{family.last_branch} is the last branch for {family.name}"
        what = f"The driver {version} no longer supports {model.name}: {last}."
        fix = _set_driver(name, [each for each in releases.driver_versions() if _branch(each) <= family.last_branch])
        yield context.error("GP135", path, what, fix)


def _set_driver(pool: str, versions: list[str]) -> str:
    return f'Set pools.{pool}.driver.version: "{versions[-1]}"' if versions else "Choose another driver version."


def _kernel_modules(context: CheckContext, name: str, pool: NodePool) -> Iterator[Problem]:
    model = hardware.find_model(pool.gpu.model) if pool.gpu else None
    if model is None:
        return
    wanted = pool.driver.kernel_module_type
    impossible = {hardware.OpenModuleSupport.NEVER: "open", hardware.OpenModuleSupport.ONLY: "proprietary"}.get(
        model.family.open_modules
    )
    if wanted != impossible:
        return
    path = context.declared(("pools", name, "driver", "kernel_module_type"), ("driver", "kernel_module_type"))
    other = "proprietary" if wanted == "open" else "open"
    what = f"{model.name} ({model.family.name}) runs with the {other} kernel modules only."
    fix = f"Set pools.{name}.driver.kernel_module_type: auto"
    yield context.error("GP136", path, what, fix)


def _driver_for_system(context: CheckContext, name: str, pool: NodePool) -> Iterator[Problem]:
    section = {**context.data.get("driver", {}), **context.pools.get(name, {}).get("driver", {})}
    if pool.os is None or {"image", "repository"} & section.keys():
        return
    path, tag = ("pools", name, "os"), f"{pool.os.id}{pool.os.version}"
    tell = context.warning if pool.driver.prefer_host else context.error  # each host may have a driver of its own
    if pool.os.id in hardware.WITHOUT_IMAGES:
        what = f"There is no driver image for {tag}; on {pool.os.id} the driver belongs to the host."
        fix = f"Install the driver on the hosts and set pools.{name}.driver.enabled: false"
        yield tell("GP152", path, what, fix)
    elif pool.os.id not in hardware.IMAGES:
        what = f"There is no driver image for {tag}."
        yield tell("GP152", path, what, partial(_system_meant, name, tag))
    elif not hardware.has_images(pool.os):
        what = f"No driver images are known for {tag}."
        yield context.warning("GP153", path, what, partial(_system_version_meant, pool.os.id, tag))


def _system_meant(pool: str, tag: str) -> str:
    close = find_nearest(tag, hardware.known_tags())
    hosts = f"install the driver on the hosts and set pools.{pool}.driver.enabled: false"
    return f"Did you mean {close}? Else {hosts}" if close else f"{hosts[0].upper()}{hosts[1:]}"


def _system_version_meant(system: str, tag: str) -> str:
    known = f"Known: {', '.join(system + version for version in hardware.IMAGES[system])}"
    return did_you_mean(tag, (each for each in hardware.known_tags() if each.startswith(system)), known)
