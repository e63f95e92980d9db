"""The stack as it stands, from one reading: a row per component, a row per node."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice

from gpu_provision.cluster.client import Cluster
from gpu_provision.diagnose import pods as pod_view
from gpu_provision.engine.crashes import Crashes
from gpu_provision.engine.reading import Reading
from gpu_provision.engine.rows import component_rows, node_rows
from gpu_provision.engine.settle import settler_of
from gpu_provision.model.cluster import Manifest, ref_of
from gpu_provision.model.findings import ProvisionError
from gpu_provision.model.progress import Evidence, NodeState, Status
from gpu_provision.planning.states import Key, Situation, situation, states
from gpu_provision.planning.upgrades import at_rest

_MOST_LOGS = 10  # evidence is for reading; a fleet's is in the run's record


def status(cluster: Cluster, reading: Reading) -> Status:
    """Return what `gpu-provision status` shows. Reads a few logs besides the reading."""
    seen = situation(reading.context, reading.desired, reading.observed)
    settled = {key: at_rest(state) for key, state in settler_of(reading).settle(_told(cluster, seen), 0.0).items()}
    inventory = reading.context.inventory
    return Status(
        inventory=inventory.name,
        cluster=reading.observed.cluster,
        release=inventory.release,
        components=component_rows(seen, settled),
        nodes=node_rows(seen, settled),
        evidence=tuple(evidence(cluster, seen)),
        lock=reading.observed.lock,
        installed=reading.observed.is_installed,
    )


def _told(cluster: Cluster, seen: Situation) -> Mapping[Key, NodeState]:
    """Return the states, those of crashed containers with what they said; reads a few logs."""
    raw, crashes = states(seen), Crashes(cluster)
    for step in islice(crashes.unread(raw, seen), _MOST_LOGS):
        crashes.read(step)
    return crashes.told(raw, seen)


def evidence(cluster: Cluster, seen: Situation) -> Iterable[Evidence]:
    """Yield what validations printed whose pods have ended; reads a few logs."""
    wanted = [(name, item) for name, items in seen.desired.items() for item in items if item["kind"] == "Pod"]
    live = [(name, pod) for name, item in wanted if (pod := seen.observed.pods.get(ref_of(item)))]
    ended = [(name, pod) for name, pod in live if pod_view.phase(pod) in {"Succeeded", "Failed"}]
    for name, pod in ended[:_MOST_LOGS]:
        yield _read(cluster, name, pod)


def _read(cluster: Cluster, component: str, pod: Manifest) -> Evidence:
    try:
        lines = cluster.log(ref_of(pod), pod["spec"]["containers"][0]["name"])
    except ProvisionError:
        lines = ()
    return Evidence(
        component=component,
        node=pod_view.node_of(pod),
        pod=pod["metadata"]["name"],
        passed=pod_view.phase(pod) == "Succeeded",
        lines=lines,
    )
