"""Settings that only an OpenShift cluster has."""

from __future__ import annotations

from dataclasses import dataclass

from gpu_provision.model.settings import setting

KUBERNETES, OPENSHIFT = "kubernetes", "openshift"
"""Values of ``cluster.platform``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenShiftSection:
    """Settings of OpenShift clusters: docs/openshift.md."""

    use_ocp_driver_toolkit: bool = setting(
        True,
        "Whether drivers on Red Hat Enterprise Linux CoreOS are built in the Driver Toolkit image of the node's own "
        "release. If off, the build needs a Red Hat entitlement on the nodes.",
    )
    machine_config: bool = setting(
        True, "Whether MachineConfigs carry `host_prerequisites` to the nodes. If off, an administrator makes them."
    )
    timeout: int = setting(
        1800,
        "Seconds without progress, such as another node with the new configuration, after which a MachineConfigPool "
        "counts as failed.",
        minimum=1,
    )
