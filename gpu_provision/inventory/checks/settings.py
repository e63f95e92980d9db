"""Checks settings that need, exclude or betray something, rollout policies, and files that have to exist."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path as FilePath
from typing import Any
from zoneinfo import ZoneInfoNotFoundError

from gpu_provision.inventory.checks.context import CheckContext
from gpu_provision.inventory.document import KeyPath, Problem, absolute
from gpu_provision.inventory.json_schema import ADDRESSES, schema
from gpu_provision.inventory.redaction import has_password, is_shown_variable, looks_secret
from gpu_provision.inventory.resolve import SPECS, needs_credentials
from gpu_provision.inventory.suggestions import one_of
from gpu_provision.inventory.values import find_certificate_errors
from gpu_provision.model.rollout_policy import zone_of
from gpu_provision.model.selectors import SelectorError, parse_selector


def check_files(context: CheckContext) -> Iterator[Problem]:
    """Yield what is wrong with proxies and with files of certificates."""
    base = FilePath(context.inventory.path).parent
    sections = list(_prerequisites(context))
    yield from _certificates(context, sections, base)
    proxies = [("proxy",), *((*path, "proxy") for path in sections)]
    for path in proxies:
        yield from _proxy(context, path, base)
    shared = context.data.get("proxy", {})
    if needs_credentials(shared) and context.inventory.specs.driver.enabled:
        what = "The driver container does not get this proxy: everyone who may read pods would see its credentials."
        fix = "Set driver.env with a proxy that needs none, or driver.repo_config; or nothing, if it gets no packages."
        yield context.warning("GP676", ("proxy",), what, fix)


def _prerequisites(context: CheckContext) -> Iterator[KeyPath]:
    key = "host_prerequisites"
    yield (key,)
    yield from (("pools", name, key) for name in context.pools)
    yield from (("nodes", position, key) for position, node in enumerate(context.nodes) if key in node)


def _certificates(context: CheckContext, sections: list[KeyPath], base: FilePath) -> Iterator[Problem]:
    told: set[str] = set()
    for path in sections:
        files = context.at(path).get("ca_certificates", ())
        for position, name in enumerate(files):
            if name and name not in told:
                told.add(name)
                place = (*path, "ca_certificates", position)
                for finding in find_certificate_errors(absolute(name, base), name):
                    yield context.document.problem(place, finding)


def _proxy(context: CheckContext, path: KeyPath, base: FilePath) -> Iterator[Problem]:
    section = context.at(path)
    for key in ADDRESSES:
        if has_password(str(section.get(key, ""))) and context.is_written((*path, key)):
            what = "This file holds the password of the proxy in plain text."
            fix = "Name a file that holds user:password in credentials_file, and keep that out of version control."
            yield context.warning("GP163", (*path, key), what, fix)
    file = str(section.get("credentials_file", ""))
    if file and not FilePath(absolute(file, base)).is_file():
        what = "The file with the proxy's credentials does not exist on this machine."
        fix = f"Make it, with one line user:password, or correct the path ({absolute(file, base)})."
        yield context.error("GP162", (*path, "credentials_file"), what, fix)


def check_rollouts(context: CheckContext) -> Iterator[Problem]:
    """Yield policies that no rollout can follow, and settings in them that do nothing."""
    for path, policy in _policies(context):
        yield from _selectors(context, path, policy)
        yield from _idle_settings(context, path, policy)
        yield from _more_than_allowed(context, path, policy)
    rollout = context.data.get("rollout", {})
    yield from _more_than_allowed(context, ("rollout",), rollout)
    yield from _canary(context, rollout.get("canary", {}))
    yield from _time_zone(context, rollout.get("maintenance_window", {}))


def _policies(context: CheckContext) -> Iterator[tuple[KeyPath, Mapping[str, Any]]]:
    """Yield the upgrade policies as they stand in the file, with their places."""
    yield ("driver", "upgrade_policy"), context.data.get("driver", {}).get("upgrade_policy", {})
    for name, pool in context.pools.items():
        yield ("pools", name, "driver", "upgrade_policy"), pool.get("driver", {}).get("upgrade_policy", {})


def _selectors(context: CheckContext, path: KeyPath, policy: Mapping[str, Any]) -> Iterator[Problem]:
    for key in ("wait_for_completion", "drain"):
        text = policy.get(key, {}).get("pod_selector", "")
        try:
            parse_selector(text)
        except SelectorError as error:
            fix = "Write it as for kubectl get pods --selector, such as app=training or tier in (a,b)."
            yield context.error("GP166", (*path, key, "pod_selector"), f"This is no label selector: {error}.", fix)


def _idle_settings(context: CheckContext, path: KeyPath, policy: Mapping[str, Any]) -> Iterator[Problem]:
    if not context.complete:
        return
    wait, drain = policy.get("wait_for_completion", {}), policy.get("drain", {})
    in_a_pool = len(path) > len(("driver", "upgrade_policy"))  # where the rest may come of the inventory's policy
    if "timeout_seconds" in wait and not wait.get("pod_selector") and not in_a_pool:
        what = "timeout_seconds has no effect without a pod_selector: the node waits for no pod."
        fix = "Set pod_selector to the pods whose end the node waits for, or remove the line."
        yield context.warning("GP145", (*path, "wait_for_completion", "timeout_seconds"), what, fix)
    if drain and "enable" not in drain and not in_a_pool:
        what = "These settings have no effect: drain.enable is off."
        yield context.warning("GP145", (*path, "drain"), what, "Set drain.enable: true, or remove them.")


def _more_than_allowed(context: CheckContext, path: KeyPath, policy: Mapping[str, Any]) -> Iterator[Problem]:
    parallel, away = policy.get("max_parallel_upgrades"), policy.get("max_unavailable")
    if isinstance(parallel, int) and isinstance(away, int) and parallel > away:
        what = f"{parallel} nodes at a time cannot be: max_unavailable allows {away}."
        fix = f"Set max_parallel_upgrades: {away}, or raise max_unavailable."
        yield context.warning("GP145", (*path, "max_parallel_upgrades"), what, fix)


def _canary(context: CheckContext, canary: Mapping[str, Any]) -> Iterator[Problem]:
    nodes, selector = canary.get("nodes", 1), canary.get("node_selector")
    if nodes == 0 and not selector:
        what = "A canary of 0 nodes without a node_selector is none, so no node may ever follow it."
        yield context.error("GP168", ("rollout", "canary", "nodes"), what, "Set nodes, or remove canary.")
    count = sum("gpu" in context.pools.get(node.get("pool", ""), {}) for node in context.nodes)
    dynamic = any(pool.get("node_selector") for pool in context.pools.values())
    if context.complete and 0 < count < nodes and not dynamic:
        what = f"{nodes} canaries are more than the {count} GPU nodes: all of them would go first."
        fix = "Set fewer, so that a failure leaves nodes as they are."
        yield context.warning("GP168", ("rollout", "canary", "nodes"), what, fix)


def _time_zone(context: CheckContext, window: Mapping[str, Any]) -> Iterator[Problem]:
    name = window.get("timezone", "UTC")
    try:
        zone_of(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        what = f"This machine knows no time zone {name}."
        fix = "Write an IANA name such as Europe/Berlin, or UTC; on a small image, pip install tzdata."
        yield context.error("GP167", ("rollout", "maintenance_window", "timezone"), what, fix)


_NEED_TOOLKIT = ("device_plugin", "gfd", "dcgm", "dcgm_exporter")


def check_settings(context: CheckContext) -> Iterator[Problem]:
    """Yield settings that contradict each other or the world around the file."""
    yield from _needs_toolkit(context)
    yield from _without_effect(context)
    yield from _cluster(context)
    yield from _ssh_keys(context)
    yield from _secrets(context)
    yield from _drop_in(context)


def _needs_toolkit(context: CheckContext) -> Iterator[Problem]:
    """Yield the toolkit being off while drivers come as containers: a host's own toolkit does not find those."""
    specs = context.inventory.specs
    containerized = any(pool.gpu and pool.driver.enabled for pool in context.inventory.pools.values())
    if specs.toolkit.enabled or not containerized:
        return
    needing = [key for key in _NEED_TOOLKIT if getattr(specs, key).enabled] or ["validator"]
    verb = "need" if len(needing) > 1 else "needs"
    who = one_of(needing).replace(" or ", " and ")
    what = f"{who} {verb} toolkit, which is off while the driver comes as a container."
    fix = "Set toolkit.enabled: true, or driver.enabled: false if the hosts have both driver and toolkit."
    yield context.error("GP160", ("toolkit", "enabled"), what, fix)


def _without_effect(context: CheckContext) -> Iterator[Problem]:
    plugin = context.data.get("device_plugin", {})
    if plugin.get("config_default") and not plugin.get("config_name") and context.complete:
        what = "config_default has no effect without config_name."
        fix = "Set device_plugin.config_name to the ConfigMap that has this key."
        yield context.warning("GP145", ("device_plugin", "config_default"), what, fix)


def _cluster(context: CheckContext) -> Iterator[Problem]:
    cluster = context.data.get("cluster", {})
    both = [key for key in ("kubeconfig", "context") if key in cluster]
    if "sandbox" in cluster and both:
        what = f"cluster.sandbox and cluster.{both[0]} exclude each other."
        fix = f"Remove sandbox for a real cluster, or {' and '.join(both)} for the sandbox."
        yield context.error("GP161", ("cluster", "sandbox"), what, fix)


def _ssh_keys(context: CheckContext) -> Iterator[Problem]:
    base = FilePath(context.inventory.path).parent
    paths: list[KeyPath] = [("ssh", "key")]
    paths += [("nodes", position, "ssh", "key") for position in range(len(context.nodes))]
    sections = [context.data.get("ssh", {}), *(node.get("ssh", {}) for node in context.nodes)]
    told: set[str] = set()
    for path, section in zip(paths, sections, strict=True):
        key = section.get("key", "")
        if not key or key in told or FilePath(absolute(key, base)).exists():
            continue
        told.add(key)
        what = "The private key does not exist on this machine."
        fix = f"Make it, correct the path ({absolute(key, base)}), or remove the line to use your agent."
        yield context.warning("GP162", path, what, fix)


def _drop_in(context: CheckContext) -> Iterator[Problem]:
    """Yield a drop-in of the toolkit that the configuration of a host's containerd could not name as a path."""
    rule = schema()["$defs"]["host_path"]
    name = "RUNTIME_DROP_IN_CONFIG"
    path = context.data.get("toolkit", {}).get("env", {}).get(name)
    if isinstance(path, str) and path and not re.fullmatch(rule["pattern"], path):
        what = f"{rule['patternErrorMessage']}."
        yield context.error("GP124", ("toolkit", "env", name), what, "Correct it, or remove the line.")


def _secrets(context: CheckContext) -> Iterator[Problem]:
    """Yield variables whose value in the file looks like a secret, and Secrets that would hide a setting."""
    paths: list[KeyPath] = [(key, "env") for key in SPECS]
    paths += [("pools", name, "driver", "env") for name in context.pools]
    for path in paths:
        for variable, value in context.at(path).items():
            here = (*path, variable)
            if not isinstance(value, str):
                yield from _unknown_setting(context, here)
            elif value and context.is_written(here) and (looks_secret(variable) or has_password(value)):
                what = f"{variable} looks like a secret; this file, and everyone who may read pods, would show it."
                fix = f"Keep it in a Secret of the cluster: {variable}: {{secret: {{name: ..., key: ...}}}}"
                yield context.warning("GP163", here, what, fix)


def _unknown_setting(context: CheckContext, path: KeyPath) -> Iterator[Problem]:
    variable = str(path[-1])
    if is_shown_variable(variable) and not variable.lower().endswith("_proxy"):
        what = f"{variable} cannot come from a Secret: it is a setting of the component, which the tool has to know."
        yield context.error("GP169", path, what, f"Write the value: {variable}: ...")
