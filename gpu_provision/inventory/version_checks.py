"""Checks versions: whether they exist, and whether driver, GPU and operating system fit together."""

from __future__ import annotations

from collections.abc import Iterator

from gpu_provision import releases
from gpu_provision.inventory import hardware
from gpu_provision.inventory.checks import CheckContext
from gpu_provision.inventory.document import KeyPath, Problem
from gpu_provision.model.inventory import NodePool
from gpu_provision.model.text import did_you_mean, find_nearest
from gpu_provision.releases import COMPONENTS

_OWN_IMAGE = frozenset({"image", "repository"})  # keys of a section whose image is none of a release


def check_versions(context: CheckContext) -> Iterator[Problem]:
    """Yield versions that do not exist, or do not go with each other."""
    yield from _release(context)
    yield from _components(context)
    yield from _drivers(context)
    for name, pool in context.inventory.pools.items():
        if pool.gpu and pool.driver.enabled:
            yield from _driver_for_system(context, name, pool)
            if model := hardware.find_model(pool.gpu.model):
                yield from _kernel_modules(context, name, pool, model)
                if _driver_is_known(context, pool):
                    yield from _driver_for_gpu(context, name, pool, model)


def _release(context: CheckContext) -> Iterator[Problem]:
    name, names = context.data.get("release"), releases.names()
    if name is None:
        return
    try:
        releases.release(name)
    except releases.UnknownReleaseError as error:
        if error.too_old:
            what = f"Release {name} is too old: its components predate what this tool drives."
            fix = f"The oldest supported release is {names[0]}; the newest is {names[-1]}."
            yield context.error("GP131", ("release",), what, fix)
        else:
            fix = did_you_mean(name, names, f"Known releases: {', '.join(names[-6:])}")
            yield context.error("GP130", ("release",), f"There is no release {name}.", fix)


def _components(context: CheckContext) -> Iterator[Problem]:
    """Yield versions that no release carries; an image of the user's own may have any."""
    for key in (key for key in COMPONENTS if key != "driver"):
        section = context.data.get(key, {})
        version, known = section.get("version", ""), releases.versions(key)
        is_any = not version or version.startswith("sha256:") or _OWN_IMAGE & section.keys()
        if not is_any and version not in known:
            what = f"No release carries {key} {version}; the image may not exist."
            fix = did_you_mean(version, reversed(known), f"The newest known one is {known[-1]}.")
            yield context.warning("GP132", (key, "version"), what, fix)


def _drivers(context: CheckContext) -> Iterator[Problem]:
    known = releases.driver_versions()
    paths: list[KeyPath] = [("driver",), *(("pools", name, "driver") for name in context.pools)]
    for path in paths:
        section = context.at(path)
        version = section.get("version", "")
        if _branch(version) and version not in known and not _OWN_IMAGE & section.keys():
            same_branch = [each for each in known if _branch(each) == _branch(version)]
            distances = {each: abs(_branch(each) - _branch(version)) for each in known}
            near = same_branch[-1] if same_branch else min(known, key=distances.__getitem__)
            what = f"No release recommends driver {version}; its image may not exist for your operating systems."
            yield context.warning("GP133", (*path, "version"), what, f"The nearest known one is {near}.")


def _branch(version: str) -> int:
    head = version.partition(".")[0]
    return int(head) if head.isdecimal() else 0


def _driver_is_known(context: CheckContext, pool: NodePool) -> bool:
    """Return whether it is certain which driver the pool gets: not if a release that does not exist should say."""
    try:
        recommended = releases.release(context.data.get("release", releases.DEFAULT)).driver.version
    except releases.UnknownReleaseError:
        recommended = ""
    version, sections = pool.driver.image.version, (context.at(("pools", pool.name, "driver")), context.at(("driver",)))
    return bool(_branch(version)) and (version == recommended or any("version" in section for section in sections))


def _driver_for_gpu(context: CheckContext, name: str, pool: NodePool, model: hardware.Model) -> Iterator[Problem]:
    version, branch, family = pool.driver.image.version, _branch(pool.driver.image.version), model.family
    path = context.declared(("pools", name, "driver", "version"), ("pools", name, "gpu", "model"))
    is_old, is_new = branch < model.first_branch, bool(family.last_branch) and branch > family.last_branch
    fitting = [
        each
        for each in releases.driver_versions()
        if (_branch(each) >= model.first_branch if is_old else _branch(each) <= family.last_branch)
    ]
    fix = f'Set pools.{name}.driver.version: "{fitting[-1]}"' if fitting else "Choose another driver version."
    if is_old:
        what = f"The driver {version} is too old for {model.name}, which needs branch {model.first_branch} or newer."
        yield context.error("GP134", path, what, fix)
    elif is_new:
        last = f"{family.last_branch} is the last branch for {family.name}"
        yield context.error("GP135", path, f"The driver {version} no longer supports {model.name}: {last}.", fix)


def _kernel_modules(context: CheckContext, name: str, pool: NodePool, model: hardware.Model) -> Iterator[Problem]:
    wanted, support = pool.driver.kernel_module_type, model.family.open_modules
    impossible = {hardware.OpenModuleSupport.NEVER: "open", hardware.OpenModuleSupport.ONLY: "proprietary"}
    if wanted == impossible.get(support):
        path = context.declared(("pools", name, "driver", "kernel_module_type"), ("driver", "kernel_module_type"))
        other = "proprietary" if wanted == "open" else "open"
        what = f"{model.name} ({model.family.name}) runs with the {other} kernel modules only."
        yield context.error("GP136", path, what, f"Set pools.{name}.driver.kernel_module_type: auto")


def _driver_for_system(context: CheckContext, name: str, pool: NodePool) -> Iterator[Problem]:
    section = {**context.data.get("driver", {}), **context.pools.get(name, {}).get("driver", {})}
    if pool.os is None or _OWN_IMAGE & section.keys():
        return
    path, system, tag = ("pools", name, "os"), pool.os.id, f"{pool.os.id}{pool.os.version}"
    tell = context.warning if pool.driver.prefer_host else context.error  # each host may have a driver of its own
    hosts = f"the driver on the hosts and set pools.{name}.driver.enabled: false"
    if hardware.has_own_driver(system):
        what = f"There is no driver image for {tag}; on {system} the driver belongs to the host."
        yield tell("GP152", path, what, f"Install {hosts}")
    elif system not in hardware.images():
        close = find_nearest(tag, hardware.known_tags())
        fix = f"Did you mean {close}? Else install {hosts}" if close else f"Install {hosts}"
        yield tell("GP152", path, f"There is no driver image for {tag}.", fix)
    elif not hardware.has_images(pool.os):
        known = [each for each in hardware.known_tags() if each.startswith(system)]
        fix = did_you_mean(tag, known, f"Known: {', '.join(system + each for each in hardware.images()[system])}")
        yield context.warning("GP153", path, f"No driver images are known for {tag}.", fix)
