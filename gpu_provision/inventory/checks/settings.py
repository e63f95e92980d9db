"""Settings that need, exclude or betray something."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path as FilePath

from gpu_provision.inventory.checks.subject import Subject
from gpu_provision.inventory.document import Path
from gpu_provision.inventory.nearest import one_of
from gpu_provision.inventory.problems import Problem
from gpu_provision.inventory.redaction import has_password, is_shown_variable, looks_secret
from gpu_provision.inventory.resolve import SPECS
from gpu_provision.inventory.schema_check import schema
from gpu_provision.inventory.source import absolute

_NEED_TOOLKIT = ("device_plugin", "gfd", "dcgm", "dcgm_exporter")


def check_settings(subject: Subject) -> Iterator[Problem]:
    """Yield settings that contradict each other or the world around the file."""
    yield from _needs_toolkit(subject)
    yield from _without_effect(subject)
    yield from _cluster(subject)
    yield from _ssh_keys(subject)
    yield from _secrets(subject)
    yield from _drop_in(subject)


def _needs_toolkit(subject: Subject) -> Iterator[Problem]:
    """Yield the toolkit being off while drivers come as containers: a host's own toolkit does not find those."""
    specs = subject.inventory.specs
    containerized = any(pool.gpu and pool.driver.enabled for pool in subject.inventory.pools.values())
    if specs.toolkit.enabled or not containerized:
        return
    needing = [key for key in _NEED_TOOLKIT if getattr(specs, key).enabled] or ["validator"]
    verb = "need" if len(needing) > 1 else "needs"
    who = one_of(needing).replace(" or ", " and ")
    what = f"{who} {verb} toolkit, which is off while the driver comes as a container."
    fix = "Set toolkit.enabled: true, or driver.enabled: false if the hosts have both driver and toolkit."
    yield subject.error("GP160", ("toolkit", "enabled"), what, fix)


def _without_effect(subject: Subject) -> Iterator[Problem]:
    plugin = subject.data.get("device_plugin", {})
    if plugin.get("config_default") and not plugin.get("config_name") and subject.complete:
        what = "config_default has no effect without config_name."
        fix = "Set device_plugin.config_name to the ConfigMap that has this key."
        yield subject.warning("GP145", ("device_plugin", "config_default"), what, fix)


def _cluster(subject: Subject) -> Iterator[Problem]:
    cluster = subject.data.get("cluster", {})
    both = [key for key in ("kubeconfig", "context") if key in cluster]
    if "sandbox" in cluster and both:
        what = f"cluster.sandbox and cluster.{both[0]} exclude each other."
        fix = f"Remove sandbox for a real cluster, or {' and '.join(both)} for the sandbox."
        yield subject.error("GP161", ("cluster", "sandbox"), what, fix)


def _ssh_keys(subject: Subject) -> Iterator[Problem]:
    base = FilePath(subject.inventory.path).parent
    paths: list[Path] = [("ssh", "key")]
    paths += [("nodes", position, "ssh", "key") for position in range(len(subject.nodes))]
    sections = [subject.data.get("ssh", {}), *(node.get("ssh", {}) for node in subject.nodes)]
    told: set[str] = set()
    for path, section in zip(paths, sections, strict=True):
        key = section.get("key", "")
        if not key or key in told or FilePath(absolute(key, base)).exists():
            continue
        told.add(key)
        what = "The private key does not exist on this machine."
        fix = f"Make it, correct the path ({absolute(key, base)}), or remove the line to use your agent."
        yield subject.warning("GP162", path, what, fix)


def _drop_in(subject: Subject) -> Iterator[Problem]:
    """Yield a drop-in of the toolkit that the configuration of a host's containerd could not name as a path."""
    rule = schema()["$defs"]["host_path"]
    name = "RUNTIME_DROP_IN_CONFIG"
    path = subject.data.get("toolkit", {}).get("env", {}).get(name)
    if isinstance(path, str) and path and not re.fullmatch(rule["pattern"], path):
        what = f"{rule['patternErrorMessage']}."
        yield subject.error("GP124", ("toolkit", "env", name), what, "Correct it, or remove the line.")


def _secrets(subject: Subject) -> Iterator[Problem]:
    """Yield variables whose value stands in the file and looks like a secret, and Secrets that would hide a setting."""
    paths: list[Path] = [(key, "env") for key in SPECS]
    paths += [("pools", name, "driver", "env") for name in subject.pools]
    for path in paths:
        section = subject.data
        for step in path:
            section = section.get(step, {})  # type: ignore[arg-type]
        for variable, value in section.items():
            here = (*path, variable)
            if not isinstance(value, str):
                yield from _unknown_setting(subject, here)
            elif value and subject.is_written(here) and (looks_secret(variable) or has_password(value)):
                what = f"{variable} looks like a secret; this file, and everyone who may read pods, would show it."
                fix = f"Keep it in a Secret of the cluster: {variable}: {{secret: {{name: ..., key: ...}}}}"
                yield subject.warning("GP163", here, what, fix)


def _unknown_setting(subject: Subject, path: Path) -> Iterator[Problem]:
    variable = str(path[-1])
    if is_shown_variable(variable) and not variable.lower().endswith("_proxy"):
        what = f"{variable} cannot come from a Secret: it is a setting of the component, which the tool has to know."
        yield subject.error("GP169", path, what, f"Write the value: {variable}: ...")
