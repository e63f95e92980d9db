"""Policies for upgrades of the driver that contradict themselves or the fleet."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from zoneinfo import ZoneInfoNotFoundError

from gpu_provision.inventory.checks.subject import Subject
from gpu_provision.inventory.document import Path
from gpu_provision.inventory.problems import Problem
from gpu_provision.model.rollout_policy import zone_of
from gpu_provision.model.selectors import BadSelector, parsed


def check_rollouts(subject: Subject) -> Iterator[Problem]:
    """Yield policies that no rollout can follow, and settings in them that do nothing."""
    for path, policy in _policies(subject):
        yield from _selectors(subject, path, policy)
        yield from _idle_settings(subject, path, policy)
        yield from _more_than_allowed(subject, path, policy)
    rollout = subject.data.get("rollout", {})
    yield from _more_than_allowed(subject, ("rollout",), rollout)
    yield from _canary(subject, rollout.get("canary", {}))
    yield from _time_zone(subject, rollout.get("maintenance_window", {}))


def _policies(subject: Subject) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """Yield the upgrade policies as they stand in the file, with their places."""
    yield ("driver", "upgrade_policy"), subject.data.get("driver", {}).get("upgrade_policy", {})
    for name, pool in subject.pools.items():
        yield ("pools", name, "driver", "upgrade_policy"), pool.get("driver", {}).get("upgrade_policy", {})


def _selectors(subject: Subject, path: Path, policy: Mapping[str, Any]) -> Iterator[Problem]:
    for key in ("wait_for_completion", "drain"):
        text = policy.get(key, {}).get("pod_selector", "")
        try:
            parsed(text)
        except BadSelector as error:
            fix = "Write it as for kubectl get pods --selector, such as app=training or tier in (a,b)."
            yield subject.error("GP166", (*path, key, "pod_selector"), f"This is no label selector: {error}.", fix)


def _idle_settings(subject: Subject, path: Path, policy: Mapping[str, Any]) -> Iterator[Problem]:
    if not subject.complete:
        return
    wait, drain = policy.get("wait_for_completion", {}), policy.get("drain", {})
    in_a_pool = len(path) > len(("driver", "upgrade_policy"))  # where the rest may come of the inventory's policy
    if "timeout_seconds" in wait and not wait.get("pod_selector") and not in_a_pool:
        what = "timeout_seconds has no effect without a pod_selector: the node waits for no pod."
        fix = "Set pod_selector to the pods whose end a node is to wait for, or remove the line."
        yield subject.warning("GP145", (*path, "wait_for_completion", "timeout_seconds"), what, fix)
    if drain and "enable" not in drain and not in_a_pool:
        what = "These settings have no effect: drain.enable is off."
        yield subject.warning("GP145", (*path, "drain"), what, "Set drain.enable: true, or remove them.")


def _more_than_allowed(subject: Subject, path: Path, policy: Mapping[str, Any]) -> Iterator[Problem]:
    parallel, away = policy.get("max_parallel_upgrades"), policy.get("max_unavailable")
    if isinstance(parallel, int) and isinstance(away, int) and parallel > away:
        what = f"{parallel} nodes at a time cannot be: max_unavailable allows {away}."
        fix = f"Set max_parallel_upgrades: {away}, or raise max_unavailable."
        yield subject.warning("GP145", (*path, "max_parallel_upgrades"), what, fix)


def _canary(subject: Subject, canary: Mapping[str, Any]) -> Iterator[Problem]:
    nodes, selector = canary.get("nodes", 1), canary.get("node_selector")
    if nodes == 0 and not selector:
        what = "A canary of 0 nodes without a node_selector is none, so no node may ever follow it."
        yield subject.error("GP168", ("rollout", "canary", "nodes"), what, "Set nodes, or remove canary.")
    count = sum("gpu" in subject.pools.get(node.get("pool", ""), {}) for node in subject.nodes)
    dynamic = any(pool.get("node_selector") for pool in subject.pools.values())
    if subject.complete and 0 < count < nodes and not dynamic:
        what = f"{nodes} canaries are more than the {count} GPU nodes: all of them would go first."
        fix = "Set fewer, so that a failure leaves nodes as they are."
        yield subject.warning("GP168", ("rollout", "canary", "nodes"), what, fix)


def _time_zone(subject: Subject, window: Mapping[str, Any]) -> Iterator[Problem]:
    name = window.get("timezone", "UTC")
    try:
        zone_of(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        what = f"This machine knows no time zone {name}."
        fix = "Write an IANA name such as Europe/Berlin, or UTC; on a small image, pip install tzdata."
        yield subject.error("GP167", ("rollout", "maintenance_window", "timezone"), what, fix)
