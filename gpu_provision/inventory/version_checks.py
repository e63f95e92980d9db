"""Checks that versions of an inventory exist, and that its GPUs, drivers and systems fit together."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import partial

from gpu_provision import releases
from gpu_provision.inventory.checks import CheckContext
from gpu_provision.inventory.document import KeyPath, Problem, format_path
from gpu_provision.inventory.hardware import (
    PCIE,
    Model,
    find_model,
    hardware_tables,
    has_images,
    has_own_driver,
    images,
    known_tags,
    models,
    normalize_model,
)
from gpu_provision.inventory.schema_errors import suggest_value
from gpu_provision.model.driver_specs import MODULE_SECTIONS
from gpu_provision.model.inventory import NodePool
from gpu_provision.model.operand_specs import ContainerSpec
from gpu_provision.model.text import did_you_mean, find_nearest
from gpu_provision.releases import COMPONENTS, platforms

_OWN_IMAGE = frozenset({"image", "repository"})  # keys of a section with an image of the user
_MODULE_TYPE = "kernel_module_type"


def check_versions(context: CheckContext) -> Iterator[Problem]:
    """Yield versions that do not exist, and GPUs, drivers and systems that do not fit together."""
    yield from _check_gpus(context)
    yield from _check_release(context)
    yield from _check_components(context)
    yield from _check_drivers(context)
    yield from _check_side_cars(context)
    yield from _check_precompiled(context)
    for name, pool in context.inventory.pools.items():
        if pool.gpu and pool.driver.enabled:
            yield from _check_driver_for_system(context, name, pool)
            yield from _check_gds(context, name, pool)
            if model := find_model(pool.gpu.model):
                wanted = pool.driver.kernel_module_type
                if wanted == {"never": "open", "only": "proprietary"}.get(model.family.open_modules):
                    path = context.first_declared(("pools", name, "driver", _MODULE_TYPE), ("driver", _MODULE_TYPE))
                    other = "proprietary" if wanted == "open" else "open"
                    what = f"{model.name} ({model.family.name}) runs with the {other} kernel modules only."
                    yield context.error("GP136", path, what, f"Set pools.{name}.driver.{_MODULE_TYPE}: auto")
                yield from _check_architecture(context, name, pool, model)
                if _is_driver_known(context, pool):
                    yield from _check_driver_for_gpu(context, name, pool, model)


def _check_release(context: CheckContext) -> Iterator[Problem]:
    names = releases.names()
    try:
        releases.release(name := context.data.get("release", releases.DEFAULT))
    except releases.UnknownReleaseError as error:
        if error.too_old:
            what = f"Release {name} is too old: its components are not supported."
            fix = f"The oldest supported release is {names[0]}; the newest is {names[-1]}."
            yield context.error("GP131", ("release",), what, fix)
        else:
            fix = did_you_mean(name, names, f"Known releases: {', '.join(names[-6:])}")
            yield context.error("GP130", ("release",), f"There is no release {name}.", fix)


def _check_components(context: CheckContext) -> Iterator[Problem]:
    """Yield versions that no release carries; an image of the user's own may have any."""
    paths: list[KeyPath] = [(key,) for key in COMPONENTS if key != "driver"]
    paths += [("pools", name, key) for name in context.pools for key in MODULE_SECTIONS]
    for path in paths:
        key, section = str(path[-1]), context.mapping_at(path)
        version, known = section.get("version", ""), releases.versions(key)
        has_own_image = _OWN_IMAGE & {*section, *context.mapping_at((key,))}
        is_any = not version or version.startswith("sha256:") or has_own_image
        if not is_any and version not in known:
            what = f"No release carries {key} {version}; the image may not exist."
            fix = did_you_mean(version, reversed(known), f"The newest known one is {known[-1]}.")
            yield context.warning("GP132", (*path, "version"), what, fix)


def _check_drivers(context: CheckContext) -> Iterator[Problem]:
    known = releases.driver_versions()
    paths: list[KeyPath] = [("driver",), *(("pools", name, "driver") for name in context.pools)]
    for path in paths:
        section = context.mapping_at(path)
        version = section.get("version", "")
        if problem := _check_tag_of_image(context, path, version):
            yield problem
        elif "." in version and _branch(version) and version not in known and not _OWN_IMAGE & section.keys():
            same_branch = [each for each in known if _branch(each) == _branch(version)]
            distances = {each: abs(_branch(each) - _branch(version)) for each in known}
            near = same_branch[-1] if same_branch else min(known, key=distances.__getitem__)
            what = f"No release recommends driver {version}; its image may not exist for your operating systems."
            yield context.warning("GP133", (*path, "version"), what, f"The nearest known one is {near}.")
        elif version and not _branch(version) and not version.startswith("sha256:"):
            what = f"{version} does not begin with the driver's version, so drivers are not checked for the GPUs."
            fix = f"Check that it supports them; or name the image by its version, such as {known[-1]}-{version}."
            yield context.warning("GP133", (*path, "version"), what, fix)


def _has_own_image(context: CheckContext, path: KeyPath) -> bool:
    """Return whether a driver section, or that of the inventory, names an image of the user."""
    return not _OWN_IMAGE.isdisjoint([*context.mapping_at(("driver",)), *context.mapping_at(path)])


_VERSION = re.compile(r"([0-9]{3})(\.[0-9]{1,3}){0,2}")
_SUFFIXES_OF_NVIDIA = frozenset({"", "grid"})  # of vGPU guests


def _check_tag_of_image(context: CheckContext, path: KeyPath, version: str) -> Problem | None:
    """Return the problem of a version that NVIDIA's images do not have; images of the user have any.

    As in the GPU Operator, the operating system's suffix follows it.
    """
    number, _, suffix = version.partition("-")
    word, place = version.rpartition("-")[2], (*path, "version")
    system = re.match(r"[a-z-]+(?=\d)", word)
    if system and system[0] in images():
        what = f"{version} ends in an operating system, which is added for each node."
        return context.error("GP124", place, what, f"Write {version.removesuffix(f'-{word}')}.")
    if not version or version.startswith("sha256:") or _has_own_image(context, path):
        return None
    own = "or set repository or image of the driver to images of your own."
    if not _VERSION.fullmatch(number):
        meant = suggest_value(version, _VERSION.pattern) or releases.driver_versions()[-1]
        what = "NVIDIA's driver images have a version of two or three numbers with dots between them, or a branch."
        return context.error("GP124", place, what, f"Write, for example, {meant}; {own}")
    if suffix in _SUFFIXES_OF_NVIDIA:
        return None
    what = f"NVIDIA has no driver images whose versions end in {suffix}."
    return context.error("GP124", place, what, f"Write {number}, {own}")


def _check_side_cars(context: CheckContext) -> Iterator[Problem]:
    """Yield modules beside the driver that no release has, or that no node would get."""
    pools = context.inventory.pools
    for key in MODULE_SECTIONS:
        yield from _check_builder(context, (key,), getattr(context.inventory.specs, key), pools.values())
        for name, pool in pools.items():
            yield from _check_builder(context, ("pools", name, key), getattr(pool, key), [pool])
    yield from _check_rdma(context)


def _check_builder(
    context: CheckContext, path: KeyPath, spec: ContainerSpec, pools: Iterable[NodePool]
) -> Iterator[Problem]:
    """Yield that a section that is on has no image, or that none of its pools has a driver container."""
    if context.mapping_at(path).get("enabled") is not True:
        return
    key, name = str(path[-1]), format_path(path)
    if not (spec.image.repository and spec.image.image and spec.image.version):
        first = next(each for each in releases.names() if releases.release(each).image(key).version)
        what = f"Release {context.inventory.release} has no {key}."
        fix = f"Choose release {first} or newer, or set {name}.repository, {name}.image and {name}.version."
        yield context.error("GP191", (*path, "enabled"), what, fix)
    elif context.is_complete and not any(pool.has_driver_container for pool in pools):
        what = f"{name} has no effect: no node gets a driver container, which its module is built beside."
        yield context.warning("GP145", (*path, "enabled"), what, "Install it on the hosts, and remove the line.")


def _check_rdma(context: CheckContext) -> Iterator[Problem]:
    """Yield settings of nvidia-peermem without effect."""
    specs = context.inventory.specs
    for path in (("driver", "rdma"), *(("pools", name, "driver", "rdma") for name in context.pools)):
        rdma = context.mapping_at(path)
        driver = context.inventory.pools[path[1]].driver if path[0] == "pools" else specs.driver
        if rdma.get("use_host_mofed") and not driver.rdma.enabled and context.is_complete:
            what = "use_host_mofed has no effect without rdma.enabled."
            yield context.warning("GP145", (*path, "use_host_mofed"), what, "Set rdma.enabled: true, or remove it.")
        elif rdma.get("enabled") and not driver.enabled and context.is_complete:
            what = "rdma has no effect: the driver is that of the hosts."
            yield context.warning("GP145", (*path, "enabled"), what, "Load nvidia-peermem on the hosts, and remove it.")


def _check_precompiled(context: CheckContext) -> Iterator[Problem]:
    """Yield versions that no image has, and what precompiled drivers do not go with; pools that share a value once."""
    served = [pool for pool in context.inventory.pools.values() if pool.has_driver_container]
    by_path = {_declared_by(context, pool, "version", "use_precompiled"): pool for pool in reversed(served)}
    for path, pool in by_path.items():
        yield from _check_tag(context, path, pool)
    precompiled = [pool for pool in served if pool.driver.use_precompiled]
    beside: dict[KeyPath, dict[str, str]] = {}
    for pool in precompiled:
        found = {_section_of(context, pool, key): key for key in pool.module_builders}
        if found:
            beside.setdefault(_declared_by(context, pool, "use_precompiled"), {}).update(found)
    for path, sections in beside.items():
        what = f"{' and '.join(dict.fromkeys(sections.values()))} cannot be built beside precompiled drivers."
        fix = f"Set use_precompiled: false, or {' and '.join(f'{section}.enabled: false' for section in sections)}"
        yield context.error("GP190", path, what, fix)
    ignored = {_declared_by(context, pool, key): key for pool in precompiled for key in ("repo_config", "cert_config")}
    for path, key in ignored.items():
        if context.document.item(path) and all(pool.driver.use_precompiled for pool in served):
            what = f"{key} has no effect on precompiled drivers, which download no packages."
            yield context.warning("GP145", path, what, "Remove the line.")


def _check_tag(context: CheckContext, path: KeyPath, pool: NodePool) -> Iterator[Problem]:
    version, is_own = pool.driver.image.version, _has_own_image(context, ("pools", pool.name, "driver"))
    if not pool.driver.use_precompiled:
        if version.isdecimal() and not is_own:
            what = f"{version} is a branch, and only precompiled images have such a tag."
            fix = f"Set use_precompiled: true, or write a whole version such as {releases.driver_versions()[-1]}."
            yield context.error("GP193", path, what, fix)
    elif version.startswith("sha256:"):
        what = "A digest names the image of one kernel, and each kernel has an image of its own."
        yield context.error("GP193", path, what, 'Write the branch, such as version: "595".')
    elif not version.isdecimal() and not is_own and not _check_tag_of_image(context, path[:-1], version):
        what = f"There are precompiled images of branches, and {version} is a whole version."
        yield context.error("GP193", path, what, f'Set driver.version: "{_branch(version)}"')


def _declared_by(context: CheckContext, pool: NodePool, *keys: str) -> KeyPath:
    """Return the path of the first key that the driver section of a pool has, or that of the inventory."""
    places: tuple[KeyPath, ...] = (("pools", pool.name, "driver"), ("driver",))
    return context.first_declared(*((*place, key) for key in keys for place in places))


def _section_of(context: CheckContext, pool: NodePool, key: str) -> str:
    """Return the section that turns a module of a pool on: the pool's own, or the inventory's."""
    own = ("pools", pool.name, key)
    return format_path(own) if "enabled" in context.mapping_at(own) else key


_FIRST_OPEN_GDS = (2, 17, 5)  # NVIDIA's GPUDirect Storage release notes, 1.7.2


def _check_gds(context: CheckContext, name: str, pool: NodePool) -> Iterator[Problem]:
    """Yield a pool whose kernel modules nvidia-fs does not support."""
    gds, model = pool.gds, find_model(pool.gpu.model) if pool.gpu else None
    numbers = tuple(int(each) for each in gds.image.version.split(".") if each.isdecimal())
    if not gds.enabled or numbers < _FIRST_OPEN_GDS:
        return
    if pool.driver.kernel_module_type == "proprietary":
        path = context.first_declared(("pools", name, "driver", _MODULE_TYPE), ("driver", _MODULE_TYPE))
        what = f"nvidia-fs {gds.image.version} needs the open kernel modules, and pool {name} has the proprietary ones."
        own = f"pools.{name}"
        fix = f"Set {own}.driver.{_MODULE_TYPE}: open, or {own}.gds.enabled: false"
        yield context.error("GP192", path, what, fix)
    elif model and model.family.open_modules == "never":
        what = f"nvidia-fs {gds.image.version} needs the open kernel modules, which do not drive {model.name}."
        path = context.first_declared(("pools", name, "gds", "enabled"), ("gds", "enabled"))
        yield context.error("GP192", path, what, f"Set pools.{name}.gds.enabled: false")


def _branch(version: str) -> int:
    """Return the branch of a driver; 0 for a tag that does not tell it."""
    match = _VERSION.fullmatch(version.partition("-")[0])
    return int(match[1]) if match else 0


def _is_driver_known(context: CheckContext, pool: NodePool) -> bool:
    """Return whether the driver version of the pool is certain: not if it follows an unknown release."""
    try:
        recommended = releases.release(context.data.get("release", releases.DEFAULT)).image("driver").version
    except releases.UnknownReleaseError:
        recommended = ""
    version, places = pool.driver.image.version, (("pools", pool.name, "driver"), ("driver",))
    is_declared = any("version" in context.mapping_at(place) for place in places)
    return bool(_branch(version)) and (is_declared or version == recommended)


def _check_driver_for_gpu(context: CheckContext, name: str, pool: NodePool, model: Model) -> Iterator[Problem]:
    version, branch, family = pool.driver.image.version, _branch(pool.driver.image.version), model.family
    path = context.first_declared(("pools", name, "driver", "version"), ("pools", name, "gpu", "model"))
    is_old, is_new = branch < model.first_branch, bool(family.last_branch) and branch > family.last_branch
    fitting = [
        each
        for each in releases.driver_versions()
        if (_branch(each) >= model.first_branch if is_old else _branch(each) <= family.last_branch)
    ]
    right = (str(_branch(fitting[-1])) if pool.driver.use_precompiled else fitting[-1]) if fitting else ""
    fix = f'Set pools.{name}.driver.version: "{right}"' if fitting else "Choose another driver version."
    if is_old:
        what = f"The driver {version} is too old for {model.name}, which needs branch {model.first_branch} or newer."
        yield context.error("GP134", path, what, fix)
    elif is_new:
        last = f"{family.last_branch} is the last branch for {family.name}"
        yield context.error("GP135", path, f"The driver {version} no longer supports {model.name}: {last}.", fix)


def _check_driver_for_system(context: CheckContext, name: str, pool: NodePool) -> Iterator[Problem]:
    if pool.os is None or _has_own_image(context, ("pools", name, "driver")):
        return
    path, system, tag = ("pools", name, "os"), pool.os.id, f"{pool.os.id}{pool.os.version}"
    problem = context.warning if pool.driver.prefer_host else context.error  # each host may have a driver of its own
    hosts = f"the driver on the hosts and set pools.{name}.driver.enabled: false"
    if has_own_driver(system):
        what = f"There is no driver image for {tag}; on {system} the driver belongs to the host."
        yield problem("GP152", path, what, f"Install {hosts}")
    elif system not in images():
        close = find_nearest(tag, known_tags())
        fix = f"Did you mean {close}? Else install {hosts}" if close else f"Install {hosts}"
        yield problem("GP152", path, f"There is no driver image for {tag}.", fix)
    elif not has_images(pool.os):
        known = [each for each in known_tags() if each.startswith(system)]
        fix = did_you_mean(tag, known, f"Known: {', '.join(system + each for each in images()[system])}")
        yield context.warning("GP153", path, f"No driver images are known for {tag}.", fix)


def _check_architecture(context: CheckContext, name: str, pool: NodePool, model: Model) -> Iterator[Problem]:
    """Yield a pool whose machines have no driver image of NVIDIA for their operating system."""
    driver = pool.driver
    if pool.os is None or not platforms.is_of_nvidia(driver.image.reference):
        return
    kernel = "kernel" if driver.use_precompiled else ""  # any
    image = driver.image.reference_with_tag("-".join(filter(None, (driver.image.version, kernel, pool.os.tag))))
    if platforms.why_absent(image, model.architecture):
        kind = "precompiled driver" if driver.use_precompiled else "driver image"
        what = f"{model.name} is in {model.architecture} machines, and NVIDIA has no {kind} for {pool.os.tag} there."
        built = f"Set pools.{name}.driver.use_precompiled: false, with a whole version"
        own = f"Install the driver on the hosts, and set pools.{name}.driver.enabled: false"
        problem = context.warning if driver.prefer_host else context.error  # each host may have a driver of its own
        yield problem("GP194", ("pools", name, "os"), what, built if driver.use_precompiled else own)


def _check_gpus(context: CheckContext) -> Iterator[Problem]:
    for name, pool in context.pools.items():
        gpu, path = pool.get("gpu", {}), ("pools", name, "gpu")
        if "gpu" not in pool and "driver" in pool and context.is_complete:
            what = f"The pool {name} has no gpu, so its driver settings have no effect."
            yield context.warning("GP145", ("pools", name, "driver"), what, "Declare its gpu, or remove driver.")
        model = find_model(gpu["model"]) if "model" in gpu else None
        if "model" in gpu and model is None:
            what = f"The GPU model {gpu['model']} is unknown, so drivers are not checked for it."
            known, otherwise = [each.name for each in models()], "Write it as `nvidia-smi -L` does."
            meant = partial(did_you_mean, normalize_model(gpu["model"]), known, otherwise)
            yield context.warning("GP150", (*path, "model"), what, meant)
        plausible = hardware_tables()["counts"][model.board if model else PCIE]
        if (count := gpu.get("count")) is not None and count not in plausible:
            near = -min((abs(each - count), -each) for each in plausible)[1]
            kind = f" for {model.name} ({model.board})" if model else ""
            what = f"{count} GPUs in one node are implausible{kind}."
            fix = f"Write how many GPUs `nvidia-smi -L` lists on one node, such as {near}."
            yield context.warning("GP151", (*path, "count"), what, fix)
