"""The stack as it stands, from one reading: a row per component, a row per node."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice

from gpu_provision.cluster.client import Cluster
from gpu_provision.engine.crashes import Crashes
from gpu_provision.engine.reading import Reading
from gpu_provision.engine.rows import component_rows, node_rows
from gpu_provision.engine.settle import settler_of
from gpu_provision.model.progress import Evidence, NodeState, Status
from gpu_provision.planning.states import Key, Situation, situation, states
from gpu_provision.planning.upgrades import at_rest
from gpu_provision.planning.verdicts import RUNS_IN, verdict_of

_MOST_LOGS = 10


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
        evidence=tuple(evidence(seen)),
        lock=reading.observed.lock,
        installed=reading.observed.is_installed,
    )


def _told(cluster: Cluster, seen: Situation) -> Mapping[Key, NodeState]:
    """Return the states, those of crashed containers with what they said; reads a few logs."""
    raw, crashes = states(seen), Crashes(cluster)
    for step in islice(crashes.unread(raw, seen), _MOST_LOGS):
        crashes.read(step)
    return crashes.told(raw, seen)


def evidence(seen: Situation) -> Iterator[Evidence]:
    """Yield what vectorAdds printed last whose pods are there."""
    for component, runs_in in RUNS_IN.items():
        for target in seen.context.targets:
            for pod in seen.pods.get((runs_in, target.name), ()):
                if verdict := verdict_of(pod):
                    name = pod["metadata"]["name"]
                    yield Evidence(
                        component=component, node=target.name, pod=name, passed=verdict.passed, lines=verdict.lines
                    )
