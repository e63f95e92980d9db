"""The figures of a controller for Prometheus, under the GPU Operator's names where the meaning is the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from gpu_provision.operator.conditions import Reason
from gpu_provision.operator.figures import StackFigures

READY, WORKING, FAILED, NO_NODES = 1, 0, -1, -2
"""Values of gpu_operator_reconciliation_status, as in the reference."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a scrape tells.

    Attributes:
        stacks: Name of a stack -> its figures; empty while another controller leads.
        requests: API requests since the process began.
        retries: How many of them were repetitions of requests that failed.
    """

    is_leader: bool
    requests: int
    retries: int
    stacks: Mapping[str, StackFigures]


@dataclass(frozen=True, slots=True)
class _Metric:
    name: str
    help: str
    value: Callable[[StackFigures], float]
    is_counter: bool = False


def _nodes(key: str) -> Callable[[StackFigures], float]:
    return lambda figures: float((figures.status.get("nodes") or {}).get(key, 0))


def _rollout(key: str) -> Callable[[StackFigures], float]:
    return lambda figures: float((figures.status.get("rollout") or {}).get(key, 0))


def reconciliation_status(figures: StackFigures) -> float:
    """Return how a stack is: as declared, on the way, broken, or without nodes to look after."""
    if figures.is_true("Ready"):
        return READY
    if not figures.is_true("Degraded"):
        return WORKING
    return NO_NODES if figures.reason("Degraded") in {Reason.NO_GPU_NODES, Reason.NO_FEATURES} else FAILED


_METRICS = (
    _Metric("gpu_operator_gpu_nodes_total", "GPU nodes that the stack looks after.", _nodes("total")),
    _Metric("gpu_provision_ready_nodes", "Those of them on which everything is ready.", _nodes("ready")),
    _Metric("gpu_provision_allocatable_gpus", "GPUs that these nodes offer to pods.", _nodes("gpus")),
    _Metric(
        "gpu_operator_reconciliation_status",
        "1: as declared. 0: on the way. -1: failed. -2: no GPU node, or none that Node Feature Discovery has labelled.",
        reconciliation_status,
    ),
    _Metric("gpu_operator_reconciliation_total", "Runs that have ended.", lambda each: each.runs, is_counter=True),
    _Metric(
        "gpu_operator_reconciliation_failed_total",
        "Runs that did not end as declared.",
        lambda each: each.failed,
        is_counter=True,
    ),
    _Metric(
        "gpu_operator_reconciliation_last_success_ts_seconds",
        "When the stack was last as declared, in unix seconds.",
        lambda each: each.succeeded_at,
    ),
    _Metric(
        "gpu_operator_reconciliation_has_nfd_labels",
        "1 if Node Feature Discovery has labelled a GPU node.",
        lambda each: float(each.reason("Degraded") not in {Reason.NO_GPU_NODES, Reason.NO_FEATURES}),
    ),
    _Metric(
        "gpu_provision_needs", "Objects, labels and validations that are not as declared.", lambda each: each.needs
    ),
    _Metric(
        "gpu_provision_reconciliation_seconds_total",
        "Seconds from when something was to be done to the end of the run that did it.",
        lambda each: each.seconds,
        is_counter=True,
    ),
    _Metric("gpu_operator_nodes_upgrades_in_progress", "Nodes whose driver is being replaced.", _rollout("underWay")),
    _Metric("gpu_operator_nodes_upgrades_done", "Nodes with the driver that is declared.", _rollout("done")),
    _Metric("gpu_operator_nodes_upgrades_failed", "Nodes where that has failed.", _rollout("failed")),
    _Metric("gpu_operator_nodes_upgrades_pending", "Nodes that wait for their turn.", _rollout("waiting")),
)


class Collector:
    """Answers prometheus_client's question for all metrics."""

    def __init__(self, look: Callable[[], Snapshot]) -> None:
        """Keep what tells the figures."""
        self._look = look

    def collect(self) -> Iterator[Any]:
        """Yield every metric as it is now."""
        now = self._look()
        yield GaugeMetricFamily("gpu_provision_leader", "1 if this controller leads.", value=float(now.is_leader))
        yield CounterMetricFamily("gpu_provision_api_requests_total", "Requests to the API server.", value=now.requests)
        yield CounterMetricFamily("gpu_provision_api_retries_total", "Requests that were repeated.", value=now.retries)
        for metric in _METRICS:
            family = CounterMetricFamily if metric.is_counter else GaugeMetricFamily
            found = family(metric.name, metric.help, labels=["stack"])
            for stack, figures in sorted(now.stacks.items()):
                found.add_metric([stack], float(metric.value(figures)))
            yield found
