"""Observed facts of an OpenShift cluster."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

_GROUP = "machineconfiguration.openshift.io"
CURRENT_CONFIG = f"{_GROUP}/currentConfig"
"""Annotation of a node: the rendered MachineConfig that it has."""

DESIRED_CONFIG, CONFIG_STATE, CONFIG_REASON = (f"{_GROUP}/{name}" for name in ("desiredConfig", "state", "reason"))
"""Annotations of a node: the rendered MachineConfig that it is to get, how far that is, and why that failed."""


class ConfigIdentity(NamedTuple):
    """Name of a MachineConfig of the tool, and digest of its content."""

    name: str
    digest: str


class RenderedConfig(NamedTuple):
    """What a stack needs to know of a rendered MachineConfig."""

    digests: frozenset[str] = frozenset()  # of the tool's MachineConfigs that it holds
    os_image: str = ""  # image of CoreOS that nodes boot with it: ``spec.osImageURL``


@dataclass(frozen=True, slots=True, kw_only=True)
class MachinePool:
    """One MachineConfigPool: nodes that the Machine Config Operator configures alike, one after another."""

    name: str
    paused: bool = False
    nodes: tuple[str, ...] = ()  # names of the nodes of which this is the primary pool, sorted
    degraded: str = ""  # why a node could not be configured, or the configuration not be rendered; empty if neither
    rendered: str = ""  # rendered MachineConfig that all nodes have: ``status.configuration.name``
    wanted: str = ""  # rendered MachineConfig that the nodes are to get: ``spec.configuration.name``
    sources: tuple[str, ...] = ()  # MachineConfigs that ``rendered`` was made of
    wanted_sources: tuple[str, ...] = ()  # MachineConfigs that ``wanted`` was made of
    # Selector of MachineConfigs, as ``spec.machineConfigSelector`` has it.
    config_selector: Mapping[str, object] = field(default_factory=dict)
    max_unavailable: int | str = 1
    machines: int = 0  # ``status.machineCount``
    updated: int = 0  # ``status.updatedMachineCount``

    @property
    def stuck_reason(self) -> str:
        """Why the pool rolls nothing out; empty if it does."""
        return "is paused" if self.paused else f"is degraded: {self.degraded}" if self.degraded else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterProxy:
    """The cluster-wide proxy: the effective values in the status of the Proxy ``cluster``; empty for none."""

    http: str = ""
    https: str = ""
    no_proxy: str = ""
    trusted_ca: str = ""  # ConfigMap of ``openshift-config`` with certificates of the proxy: ``spec.trustedCA.name``


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenShiftFacts:
    """An OpenShift cluster at one moment. Empty: nothing is known, as for offline rendering.

    ``unreadable`` names the resources that our user may not read; what depends on one reports it.
    """

    version: str = ""  # of the release that the cluster runs, such as ``4.18.9``
    update: str = ""  # version of the release that it is updating to; empty if it is not updating
    proxy: ClusterProxy = field(default_factory=ClusterProxy)
    # Version of Red Hat Enterprise Linux CoreOS -> Driver Toolkit image: the tags of the ImageStream ``driver-toolkit``
    # of ``openshift``.
    driver_toolkits: Mapping[str, str] = field(default_factory=dict)
    pools: tuple[MachinePool, ...] = ()  # MachineConfigPools, sorted by name
    rendered: Mapping[str, RenderedConfig] = field(default_factory=dict)  # by name; only those that were read
    unreadable: frozenset[str] = frozenset()  # such as ``imagestreams.image.openshift.io``

    def pool_of(self, node: str) -> MachinePool | None:
        """Return the pool that configures a node; None if none does."""
        return next((pool for pool in self.pools if node in pool.nodes), None)

    def holds(self, pool: MachinePool, rendered: str, config: ConfigIdentity) -> bool:
        """Whether a rendered MachineConfig of a pool holds a MachineConfig of the tool, with its present content.

        For one that was not read, its sources decide, which have no content.
        """
        if rendered in self.rendered:
            return config.digest in self.rendered[rendered].digests
        sources = {pool.rendered: pool.sources, pool.wanted: pool.wanted_sources}
        return config.name in sources.get(rendered, ())


def primary_pool(matching: Iterable[str]) -> str:
    """Return which of the pools that select a node configures it; empty if none, or if it cannot be told.

    As the Machine Config Operator decides (getPoolsForNode in pkg/helpers of openshift/machine-config-operator): a node
    of the control plane stays in ``master``, a custom pool comes before ``worker``, and two custom pools are an error.
    """
    names = sorted(matching)
    custom = [name for name in names if name not in {"master", "worker"}]
    if "master" in names:
        return "master"
    return custom[0] if len(custom) == 1 else "worker" if "worker" in names and not custom else ""
