"""Checks an inventory that fits the schema: nodes and pools, connections and secrets, files, rollouts.

Each check is a function from a context to problems. Those of versions and GPUs are in `hardware`, those of components
in `component_checks`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path as FilePath
from typing import Any
from zoneinfo import ZoneInfoNotFoundError

from gpu_provision.inventory.document import Document, KeyPath, Problem, absolute_path, quote_unprintable
from gpu_provision.inventory.json_schema import ADDRESSES
from gpu_provision.inventory.proxies import needs_credentials
from gpu_provision.inventory.redaction import has_password, is_shown_variable, looks_secret, redact
from gpu_provision.inventory.references import find_certificate_errors
from gpu_provision.inventory.sections import SPECS, VALIDATIONS
from gpu_provision.model import codes
from gpu_provision.model.cluster import Kind
from gpu_provision.model.extra_objects import EXTRA_KINDS
from gpu_provision.model.findings import Finding, Severity
from gpu_provision.model.inventory import Inventory
from gpu_provision.model.label_selectors import SelectorError, parse_selector
from gpu_provision.model.openshift_specs import KUBERNETES
from gpu_provision.model.rollout_policy import zone_of
from gpu_provision.model.text import did_you_mean

Fix = str | Callable[[], str]
"""The fix of a finding; a callable, such as a search for a similar name, runs only if the finding is shown."""


@dataclass(frozen=True, slots=True)
class CheckContext:
    """Input of the checks: one inventory."""

    document: Document  # has the line of every value
    data: dict[str, Any]  # the document's data without schema errors
    inventory: Inventory  # the same, resolved
    is_complete: bool  # whether the document fits the schema; if not, an absent value proves nothing

    @property
    def pools(self) -> dict[str, dict[str, Any]]:
        """The pools as declared."""
        return self.mapping_at(("pools",))

    def is_refused(self, path: KeyPath) -> bool:
        """Return whether the schema refuses the value of a key, or one around it."""
        value: Any = self.data
        for length, step in enumerate(path, start=1):
            try:
                value = value[step]
            except (KeyError, IndexError, TypeError):
                return self.document.item(path[:length]) is not None
        return False

    @property
    def nodes(self) -> list[dict[str, Any]]:
        """The nodes as declared, at their positions in the file."""
        return [*self.data.get("nodes", ())]

    def first_declared(self, *paths: KeyPath) -> KeyPath:
        """Return the first path that the file has, else the last one."""
        return next((path for path in paths if self.document.item(path)), paths[-1])

    def mapping_at(self, path: KeyPath) -> dict[str, Any]:
        """Return the mapping at a path; an empty one if there is none, or another value."""
        section: Any = self.data
        for step in path:
            try:
                section = section[step]
            except (KeyError, IndexError, TypeError):
                return {}
        return dict(section) if isinstance(section, Mapping) else {}

    def is_written(self, path: KeyPath) -> bool:
        """Return whether the file has the value at a path, and not a reference to it."""
        item = self.document.item(path)
        return item is not None and not isinstance(item.value, dict)

    def warning(self, code: str, path: KeyPath, what: str, fix: Fix) -> Problem:
        """Return a warning about the value at a path, which is its evidence."""
        return self.error(code, path, what, fix, Severity.WARNING)

    def error(self, code: str, path: KeyPath, what: str, fix: Fix, severity: Severity = Severity.ERROR) -> Problem:
        """Return an error about the value at a path, which is its evidence."""

        def finding() -> Finding:
            item = self.document.item(path)
            evidence = quote_unprintable(redact(path, item.raw))[:100] if item else ""
            remedy = fix if isinstance(fix, str) else fix()
            where = self.document.location(path)
            return Finding(code=code, where=where, what=what, evidence=evidence, fix=remedy, severity=severity)

        return Problem(line=self.document.line(path), severity=severity, finding=finding)


def check_nodes(context: CheckContext) -> Iterator[Problem]:
    """Yield problems of nodes and pools."""
    yield from _check_duplicate_names(context)
    yield from _check_addresses(context)
    yield from _check_pools(context)
    yield from _check_open_pools(context)
    yield from _check_labels(context)


def _check_labels(context: CheckContext) -> Iterator[Problem]:
    """Yield labels that this tool sets itself, whatever their value here."""
    drivers: list[KeyPath] = [("driver",), *(("pools", name, "driver") for name in context.pools)]
    holders: list[KeyPath] = [*(("pools", name) for name in context.pools), ("daemonsets",), *drivers]
    holders += (("nodes", position) for position in range(len(context.nodes)))
    extra = context.data.get("extra_objects", ())
    holders += (("extra_objects", position, "metadata") for position in range(len(extra)))
    for path in ((*holder, "labels") for holder in holders):
        for key in (key for key in context.mapping_at(path) if key.startswith("gpu-provision.io/")):
            what = f"The label {key} is set by this tool; a value here is overwritten."
            yield context.warning("GP164", (*path, key), what, "Remove it.")


def _check_open_pools(context: CheckContext) -> Iterator[Problem]:
    """Yield pools for any GPUs with equal selectors: none of them would get a node."""
    first: dict[frozenset[tuple[str, str]], str] = {}
    for name, pool in context.inventory.pools.items():
        if pool.takes_any_gpu and context.is_complete:
            other = first.setdefault(frozenset(pool.node_selector.items()), name)
            if other != name:
                what = f"The pools {other} and {name} are for any GPUs of the same nodes, so neither gets them."
                fix = "Remove one of them, or give it a node_selector."
                yield context.error("GP178", ("pools", name, "gpu"), what, fix)


def _check_duplicate_names(context: CheckContext) -> Iterator[Problem]:
    first: dict[str, int] = {}
    for position, node in enumerate(context.nodes):
        name = node.get("name")
        if name in first:
            line = context.document.line(("nodes", first[name], "name"))
            what = f"The node {name} is listed twice, first in line {line}."
            yield context.error("GP140", ("nodes", position, "name"), what, "Remove or rename one of them.")
        elif name is not None:
            first[name] = position


def _check_addresses(context: CheckContext) -> Iterator[Problem]:
    """Yield nodes with the same address and port; sandbox hosts have no addresses."""
    if context.inventory.cluster.sandbox:
        return
    first: dict[tuple[str, int, str], str] = {}
    positions = [position for position, node in enumerate(context.nodes) if "name" in node]
    for position, node in zip(positions, context.inventory.nodes, strict=True):
        port = node.ssh.port or 22
        other = first.setdefault((node.address or node.name, port, node.ssh.bastion), node.name)
        if other != node.name:
            what = f"{node.name} and {other} have the same address and port."
            path = context.first_declared(("nodes", position, "address"), ("nodes", position, "name"))
            fix = f"Correct the address of one of them, or its ssh.port (now {port})."
            yield context.error("GP141", path, what, fix)


def _check_pools(context: CheckContext) -> Iterator[Problem]:
    """Yield pools that do not exist, and pools without nodes."""
    if context.is_refused(("pools",)):
        return
    written = context.document.data.get("pools")
    known = written if isinstance(written, dict) else {}
    listed = f"Known pools: {', '.join(known)}"
    for position, node in enumerate(context.nodes):
        if (pool := node.get("pool")) is not None and pool not in known:
            otherwise = listed if known else f"Declare it: pools: {{{pool}: {{}}}}"
            meant = partial(did_you_mean, pool, known, otherwise)
            yield context.error("GP142", ("nodes", position, "pool"), f"There is no pool {pool}.", meant)
    if not context.is_complete:
        return
    used = {node.get("pool") for node in context.nodes}
    used |= {name for name, pool in context.pools.items() if pool.get("node_selector") or pool.get("gpu") == {}}
    for name in (name for name in context.pools if name not in used):
        fix = "Give it nodes under `nodes`, or a node_selector, or remove it."
        yield context.warning("GP143", ("pools", name), f"No node belongs to the pool {name}.", fix)
    if not any("gpu" in pool and name in used for name, pool in context.pools.items()):
        what = "No node has a GPU, so there is nothing to provision."
        fix = "Declare a pool with gpu: {model: T4, count: 1}, and nodes that belong to it."
        yield context.warning("GP144", context.first_declared(("pools",), ("nodes",), ()), what, fix)


def check_settings(context: CheckContext) -> Iterator[Problem]:
    """Yield settings that contradict each other, or files that do not exist."""
    yield from _check_extra_objects(context)
    cluster = context.data.get("cluster", {})
    both = [key for key in ("kubeconfig", "context") if key in cluster]
    if "sandbox" in cluster and both:
        what = f"cluster.sandbox and cluster.{both[0]} exclude each other."
        fix = f"Remove sandbox for a real cluster, or {' and '.join(both)} for the sandbox."
        yield context.error("GP161", ("cluster", "sandbox"), what, fix)
    if cluster.get("platform") == KUBERNETES and "openshift" in context.data:
        what = "The section openshift is for OpenShift, and cluster.platform is kubernetes."
        yield context.error(codes.OTHER_PLATFORM, ("cluster", "platform"), what, "Remove one of them.")
    yield from _check_ssh_keys(context)
    yield from _check_secrets(context)


def _check_extra_objects(context: CheckContext) -> Iterator[Problem]:
    """Yield problems of ``extra_objects`` by which they could not be objects of the stack."""
    first: dict[tuple[str, ...], int] = {}
    for position, each in enumerate(context.data.get("extra_objects", ())):
        if not each or not {"apiVersion", "kind"} <= each.keys() or not each.get("metadata", {}).get("name"):
            continue  # a mistake that the schema names
        path: KeyPath = ("extra_objects", position)
        kind, metadata = Kind(each["apiVersion"], each["kind"]), each["metadata"]
        if kind not in EXTRA_KINDS:
            what = f"{kind.kind} of {kind.api_version} cannot be one of extra_objects."
            known = ", ".join(sorted(each.kind for each in EXTRA_KINDS))
            fix = f"Apply it with kubectl, or write one of these kinds: {known}"
            yield context.error("GP189", (*path, "kind"), what, fix)
            continue
        yield from _check_namespace(context, path, metadata, is_namespaced=EXTRA_KINDS[kind])
        namespace = metadata.get("namespace", context.inventory.cluster.namespace)
        name = (*kind, namespace, metadata["name"])
        if name in first:
            line = context.document.line(("extra_objects", first[name]))
            what = f"{kind.kind} {metadata['name']} stands here twice, first in line {line}."
            yield context.error("GP189", (*path, "metadata", "name"), what, "Remove or rename one of them.")
        first.setdefault(name, position)
        stack = context.inventory.name
        if kind.kind == "ConfigMap" and (metadata["name"] == stack or metadata["name"].startswith(f"{stack}-")):
            what = f"ConfigMaps whose names begin with {stack} are the stack's records."
            yield context.error("GP189", (*path, "metadata", "name"), what, "Give it another name.")
        data = each.get("data", {})
        if kind.kind == "ConfigMap" and not (
            isinstance(data, dict) and all(isinstance(text, str) for text in data.values())
        ):
            what = "The data of a ConfigMap is a mapping of keys to strings."
            yield context.error("GP189", (*path, "data"), what, "Write a string for each key; quote numbers.")
        if "status" in each:
            what = "An object's status is its controller's."
            yield context.error("GP189", (*path, "status"), what, "Remove it.")


def _check_namespace(
    context: CheckContext, path: KeyPath, metadata: Mapping[str, Any], *, is_namespaced: bool
) -> Iterator[Problem]:
    namespace, home = metadata.get("namespace"), context.inventory.cluster.namespace
    nfd = context.inventory.specs.nfd
    allowed = dict.fromkeys((home, nfd.namespace) if nfd.enabled else (home,))
    if namespace and not is_namespaced:
        what = "Objects of this kind are in no namespace."
        yield context.error("GP189", (*path, "metadata", "namespace"), what, "Remove the line.")
    elif namespace and namespace not in allowed and not context.is_refused(("nfd", "namespace")):
        what = f"The stack's objects are in the namespace{'s' if nfd.enabled else ''} {' and '.join(allowed)}."
        fix = f"Write namespace: {home}, or apply the object with kubectl."
        yield context.error("GP189", (*path, "metadata", "namespace"), what, fix)


def _check_ssh_keys(context: CheckContext) -> Iterator[Problem]:
    base = FilePath(context.inventory.path).parent
    paths: list[KeyPath] = [("ssh",), *(("nodes", position, "ssh") for position in range(len(context.nodes)))]
    checked: set[str] = set()
    for path in paths:
        key = context.mapping_at(path).get("key", "")
        if not key or key in checked or FilePath(absolute_path(key, base)).exists():
            continue
        checked.add(key)
        what = "The private key does not exist on this machine."
        fix = f"Create it, correct the path ({absolute_path(key, base)}), or remove the line to use your agent."
        yield context.warning("GP162", (*path, "key"), what, fix)


def _check_secrets(context: CheckContext) -> Iterator[Problem]:
    """Yield variables with a secret in plain text, and settings of components that are in a Secret."""
    paths: list[KeyPath] = [(key, "env") for key in SPECS]
    paths += [("driver", "manager", "env"), *(("validator", name, "env") for name in VALIDATIONS)]
    paths += [("pools", name, "driver", *manager, "env") for name in context.pools for manager in ((), ("manager",))]
    variables = ((key, value, (*path, key)) for path in paths for key, value in context.mapping_at(path).items())
    for variable, value, place in variables:
        is_hidden = not isinstance(value, str)
        if is_hidden and is_shown_variable(variable) and not variable.lower().endswith("_proxy"):
            what = f"{variable} cannot be in a Secret: gpu-provision has to read this setting of the component."
            yield context.error("GP169", place, what, f"Write the value: {variable}: ...")
        elif not is_hidden and value and context.is_written(place) and (looks_secret(variable) or has_password(value)):
            what = f"{variable} looks like a secret, and everyone who can read this file or pods can read it."
            fix = f"Keep it in a Secret of the cluster: {variable}: {{secret: {{name: ..., key: ...}}}}"
            yield context.warning("GP163", place, what, fix)


def check_files(context: CheckContext) -> Iterator[Problem]:
    """Yield problems of proxies and of certificate files."""
    base, key = FilePath(context.inventory.path).parent, "host_prerequisites"
    sections: list[KeyPath] = [(key,), *(("pools", name, key) for name in context.pools)]
    sections += [("nodes", position, key) for position, node in enumerate(context.nodes) if key in node]
    checked: set[str] = set()
    for path in sections:
        for position, name in enumerate(context.mapping_at(path).get("ca_certificates", ())):
            if name and name not in checked:
                checked.add(name)
                for finding in find_certificate_errors(absolute_path(name, base), name):
                    yield context.document.problem((*path, "ca_certificates", position), finding)
    for path in (("proxy",), *((*path, "proxy") for path in sections)):
        yield from _check_proxy(context, path, base)
    if needs_credentials(context.data.get("proxy", {})) and context.inventory.specs.driver.enabled:
        what = "The driver container does not get this proxy: everyone who can read pods would see its credentials."
        fix = "Set driver.repo_config, or driver.env with a proxy without credentials, if the driver needs packages."
        yield context.warning("GP676", ("proxy",), what, fix)


def _check_proxy(context: CheckContext, path: KeyPath, base: FilePath) -> Iterator[Problem]:
    section = context.mapping_at(path)
    for key in ADDRESSES:
        if has_password(str(section.get(key, ""))) and context.is_written((*path, key)):
            what = "This file holds the password of the proxy in plain text."
            fix = "Set credentials_file to a file with user:password, and keep that file out of version control."
            yield context.warning("GP163", (*path, key), what, fix)
    file = str(section.get("credentials_file", ""))
    if file and not FilePath(absolute_path(file, base)).is_file():
        what = "The file with the proxy's credentials does not exist on this machine."
        fix = f"Create it with one line user:password, or correct the path ({absolute_path(file, base)})."
        yield context.error("GP162", (*path, "credentials_file"), what, fix)


def check_rollouts(context: CheckContext) -> Iterator[Problem]:
    """Yield policies that no rollout can follow, and settings in them without effect."""
    shared: KeyPath = ("driver", "upgrade_policy")
    paths: list[KeyPath] = [shared, *(("pools", name, *shared) for name in context.pools), ("rollout",)]
    if context.is_complete:  # in a pool, the rest may come of the inventory's
        yield from _check_idle_settings(context, shared, context.mapping_at(shared))
    for path in paths:
        policy = context.mapping_at(path)
        yield from _check_selectors(context, path, policy)
        parallel, away = policy.get("max_parallel_upgrades"), policy.get("max_unavailable")
        if isinstance(parallel, int) and isinstance(away, int) and parallel > away:
            what = f"{parallel} nodes cannot be upgraded at a time: max_unavailable allows {away}."
            fix = f"Set max_parallel_upgrades: {away}, or raise max_unavailable."
            yield context.warning("GP145", (*path, "max_parallel_upgrades"), what, fix)
    yield from _check_canary(context, context.mapping_at(("rollout", "canary")))
    zone = context.mapping_at(("rollout", "maintenance_window")).get("timezone", "UTC")
    try:
        zone_of(zone)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        what = f"There is no time zone {zone} on this machine."
        fix = "Write an IANA name such as Europe/Berlin, or UTC; on a small image, pip install tzdata."
        yield context.error("GP167", ("rollout", "maintenance_window", "timezone"), what, fix)


def _check_selectors(context: CheckContext, path: KeyPath, policy: Mapping[str, Any]) -> Iterator[Problem]:
    for key in ("wait_for_completion", "drain"):
        try:
            parse_selector(policy.get(key, {}).get("pod_selector", ""))
        except SelectorError as error:
            fix = "Write it as for kubectl get pods --selector, such as app=training or tier in (a,b)."
            yield context.error("GP166", (*path, key, "pod_selector"), f"This is no label selector: {error}.", fix)


def _check_idle_settings(context: CheckContext, path: KeyPath, policy: Mapping[str, Any]) -> Iterator[Problem]:
    wait, drain = policy.get("wait_for_completion", {}), policy.get("drain", {})
    if "timeout_seconds" in wait and not wait.get("pod_selector"):
        what = "timeout_seconds has no effect without a pod_selector: the node waits for no pod."
        fix = "Set pod_selector to the pods whose end the node waits for, or remove the line."
        yield context.warning("GP145", (*path, "wait_for_completion", "timeout_seconds"), what, fix)
    if drain and "enable" not in drain:
        what = "These settings have no effect: drain.enable is off."
        yield context.warning("GP145", (*path, "drain"), what, "Set drain.enable: true, or remove them.")


def _check_canary(context: CheckContext, canary: Mapping[str, Any]) -> Iterator[Problem]:
    nodes, path = canary.get("nodes", 1), ("rollout", "canary", "nodes")
    if nodes == 0 and not canary.get("node_selector"):
        what = "A canary of 0 nodes without a node_selector never succeeds, so no other node can start."
        yield context.error("GP168", path, what, "Set nodes, or remove canary.")
    count = sum("gpu" in context.pools.get(node.get("pool", ""), {}) for node in context.nodes)
    dynamic = any(pool.get("node_selector") or pool.get("gpu") == {} for pool in context.pools.values())
    if context.is_complete and 0 < count < nodes and not dynamic:
        what = f"{nodes} canaries are more than the {count} GPU nodes, so all nodes would be canaries."
        yield context.warning("GP168", path, what, "Set fewer, so that a failure does not affect all nodes.")
