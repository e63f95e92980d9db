"""Releases, versions of components, and whether driver, GPU and operating system fit together."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from gpu_provision import releases
from gpu_provision.inventory import hardware
from gpu_provision.inventory.checks.subject import Subject
from gpu_provision.inventory.document import Path
from gpu_provision.inventory.nearest import did_you_mean, nearest
from gpu_provision.inventory.problems import Problem
from gpu_provision.model.inventory import NodePool
from gpu_provision.releases import COMPONENTS


def check_versions(subject: Subject) -> Iterator[Problem]:
    """Yield versions that do not exist, or do not go with each other."""
    yield from _release(subject)
    yield from _components(subject)
    yield from _drivers(subject)
    for name, pool in subject.inventory.pools.items():
        if pool.gpu and pool.driver.enabled:
            yield from _driver_for_system(subject, name, pool)
            yield from _kernel_modules(subject, name, pool)
            if _driver_is_known(subject, pool):
                yield from _driver_for_gpu(subject, name, pool)


def _release(subject: Subject) -> Iterator[Problem]:
    name = subject.data.get("release")
    if name is None:
        return
    try:
        releases.release(name)
    except releases.UnknownReleaseError as error:
        if error.too_old:
            what = f"Release {name} is too old: its components predate what this tool drives."
            fix = f"The oldest supported release is {releases.names()[0]}; the newest is {releases.names()[-1]}."
            yield subject.error("GP131", ("release",), what, fix)
            return
        fix = did_you_mean(name, releases.names(), f"Known releases: {', '.join(releases.names()[-6:])}")
        yield subject.error("GP130", ("release",), f"There is no release {name}.", fix)


def _components(subject: Subject) -> Iterator[Problem]:
    """Yield versions that no release carries; an image of the user's own may have any."""
    for key in (key for key in COMPONENTS if key != "driver"):
        section = subject.data.get(key, {})
        version = section.get("version", "")
        if not version or version.startswith("sha256:") or {"image", "repository"} & section.keys():
            continue
        known = releases.versions(key)
        if version not in known:
            what = f"No release carries {key} {version}; the image may not exist."
            fix = did_you_mean(version, reversed(known), f"The newest known one is {known[-1]}.")
            yield subject.warning("GP132", (key, "version"), what, fix)


def _drivers(subject: Subject) -> Iterator[Problem]:
    paths: list[Path] = [("driver", "version")]
    paths += [("pools", name, "driver", "version") for name in subject.pools]
    for path in paths:
        section = _at(subject.data, path[:-1])
        version = section.get("version", "")
        if (
            _branch(version)
            and version not in releases.driver_versions()
            and not {"image", "repository"} & section.keys()
        ):
            what = f"No release recommends driver {version}; its image may not exist for your operating systems."
            fix = f"The nearest known one is {_nearest_driver(version)}."
            yield subject.warning("GP133", path, what, fix)


def _at(data: dict[str, object], path: Path) -> dict[str, str]:
    for step in path:
        data = data.get(step, {})  # type: ignore[assignment,arg-type]
    return data  # type: ignore[return-value]


def _nearest_driver(version: str) -> str:
    known = releases.driver_versions()
    same_branch = [each for each in known if _branch(each) == _branch(version)]
    return same_branch[-1] if same_branch else min(known, key=lambda each: abs(_branch(each) - _branch(version)))


def _branch(version: str) -> int:
    head = version.partition(".")[0]
    return int(head) if head.isdecimal() else 0


def _driver_is_known(subject: Subject, pool: NodePool) -> bool:
    """Return whether it is certain which driver the pool gets: not if a release that does not exist should say."""
    try:
        recommended = releases.release(subject.data.get("release", releases.DEFAULT)).driver.version
    except releases.UnknownReleaseError:
        recommended = ""
    version = pool.driver.image.version
    return bool(_branch(version)) and (version == recommended or _is_declared(subject, pool.name))


def _is_declared(subject: Subject, pool: str) -> bool:
    paths: tuple[Path, ...] = (("pools", pool, "driver", "version"), ("driver", "version"))
    return any("version" in _at(subject.data, path[:-1]) for path in paths)


def _driver_for_gpu(subject: Subject, name: str, pool: NodePool) -> Iterator[Problem]:
    model = hardware.find(pool.gpu.model) if pool.gpu else None
    if model is None:
        return
    version, branch = pool.driver.image.version, _branch(pool.driver.image.version)
    family = model.family
    own = ("pools", name, "driver", "version")
    path = own if subject.document.item(own) else ("pools", name, "gpu", "model")
    if branch < model.first_branch:
        what = f"The driver {version} is too old for {model.name}, which needs branch {model.first_branch} or newer."
        fix = _set_driver(name, [each for each in releases.driver_versions() if _branch(each) >= model.first_branch])
        yield subject.error("GP134", path, what, fix)
    if family.last_branch and branch > family.last_branch:
        last = f"{family.last_branch} is the last branch for {family.name}"
        what = f"The driver {version} no longer supports {model.name}: {last}."
        fix = _set_driver(name, [each for each in releases.driver_versions() if _branch(each) <= family.last_branch])
        yield subject.error("GP135", path, what, fix)


def _set_driver(pool: str, versions: list[str]) -> str:
    return f'Set pools.{pool}.driver.version: "{versions[-1]}"' if versions else "Choose another driver version."


def _kernel_modules(subject: Subject, name: str, pool: NodePool) -> Iterator[Problem]:
    model = hardware.find(pool.gpu.model) if pool.gpu else None
    if model is None:
        return
    wanted = pool.driver.kernel_module_type
    impossible = {hardware.OpenModules.NEVER: "open", hardware.OpenModules.ONLY: "proprietary"}.get(
        model.family.open_modules
    )
    if wanted != impossible:
        return
    path = subject.declared(("pools", name, "driver", "kernel_module_type"), ("driver", "kernel_module_type"))
    other = "proprietary" if wanted == "open" else "open"
    what = f"{model.name} ({model.family.name}) runs with the {other} kernel modules only."
    fix = f"Set pools.{name}.driver.kernel_module_type: auto"
    yield subject.error("GP136", path, what, fix)


def _driver_for_system(subject: Subject, name: str, pool: NodePool) -> Iterator[Problem]:
    section = {**subject.data.get("driver", {}), **subject.pools.get(name, {}).get("driver", {})}
    if pool.os is None or {"image", "repository"} & section.keys():
        return
    path, tag = ("pools", name, "os"), f"{pool.os.id}{pool.os.version}"
    tell = subject.warning if pool.driver.prefer_host else subject.error  # each host may have a driver of its own
    if pool.os.id in hardware.WITHOUT_IMAGES:
        what = f"There is no driver image for {tag}; on {pool.os.id} the driver belongs to the host."
        fix = f"Install the driver on the hosts and set pools.{name}.driver.enabled: false"
        yield tell("GP152", path, what, fix)
    elif pool.os.id not in hardware.IMAGES:
        what = f"There is no driver image for {tag}."
        yield tell("GP152", path, what, partial(_system_meant, name, tag))
    elif not hardware.has_images(pool.os):
        what = f"No driver images are known for {tag}."
        yield subject.warning("GP153", path, what, partial(_system_version_meant, pool.os.id, tag))


def _system_meant(pool: str, tag: str) -> str:
    close = nearest(tag, hardware.known_tags())
    hosts = f"install the driver on the hosts and set pools.{pool}.driver.enabled: false"
    return f"Did you mean {close}? Else {hosts}" if close else f"{hosts[0].upper()}{hosts[1:]}"


def _system_version_meant(system: str, tag: str) -> str:
    known = f"Known: {', '.join(system + version for version in hardware.IMAGES[system])}"
    return did_you_mean(tag, (each for each in hardware.known_tags() if each.startswith(system)), known)
