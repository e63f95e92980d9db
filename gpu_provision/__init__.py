"""Declarative provisioning of NVIDIA GPU nodes for Kubernetes.

    import gpu_provision

    inventory = gpu_provision.load("inventories/prod.yaml")
    print(gpu_provision.plan(inventory))
    gpu_provision.apply(inventory, listen=print)

Most functions are the commands of the same name; docs/library.md has examples. For pyinfra deploys use
`gpu_provision.deploys`. A name is imported on first use; `__init__.pyi` has the types for checkers.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

_NAMES = {
    "adopt.plan": "Adoption Disposition NodeLabels ObjectPlan RunningDriver",
    "api.imports": "ImportedInventory import_settings",
    "api.options": "render",
    "api.results": "Printable StackPlan StackRemoval StackRun",
    "api.verbs": "StackHistory apply destroy history plan prepare_rollback rbac revalidate rollback unlock",
    "api.views": (
        "StackAdoption StackDrift StackPreflight StackStatus StackVerification adopt adoption drift preflight status "
        "verify"
    ),
    "hosts.result": "HostOutcome HostsResult",
    "inventory": "check load schema",
    "model.cluster": "Kind ObjectRef",
    "model.codes": "ExitCode",
    "model.findings": (
        "Finding Findings ForbiddenError InvalidError InvalidInventoryError LockedError ProvisionError "
        "RunFailedError Severity UnreachableError UsageError"
    ),
    "model.history": "Ending History Record",
    "model.hosts": "ConnectionMethod Drain HelperPod HostPrerequisites Preflight Reboot SshOptions",
    "model.inventory": "ClusterConfig Gpu Inventory MigGeometry Node NodePool OperatingSystem PoolPlugin",
    "model.plan": (
        "Action Change Departure Difference Drift FieldChange FieldDrift Eviction Origin NodePreview Plan "
        "DestroyResult ResourceChange Schedule Wave Writer"
    ),
    "model.progress": (
        "ComponentStatus Event Evidence LockHolder NodeState NodeStatus OutsideState RunResult State Status Transition"
    ),
    "model.rollout_policy": (
        "Canary Day MaintenanceWindow OnFailure Order PodDeletion RolloutPolicy UpgradeDrain UpgradePolicy "
        "WaitForCompletion"
    ),
    "model.driver_specs": (
        "DriverManagerSpec DriverSpec GdrcopySpec GdsSpec GpuDirectRdma StartupProbe VirtualTopology"
    ),
    "model.monitoring_specs": (
        "DashboardSpec DcgmExporterSpec DcgmSpec HpcJobMapping MetricsConfig NodeStatusExporterSpec OperatorMetrics "
        "OperatorServiceMonitor PrometheusRuleSpec ServiceMonitorSpec"
    ),
    "model.openshift_specs": "OpenShiftSection",
    "model.operand_specs": "ContainerSpec Image OperandSpec SecretKey",
    "model.specs": (
        "DaemonSetSettings DevicePluginSpec GfdSpec GpuClientsConfig HostPaths MigManagerConfig MigManagerSpec "
        "MpsSection NfdDeployment NfdGarbageCollector NfdPart NfdSpec PluginConfigs Specs StartupTaintSpec "
        "ToolkitSpec ValidationSettings ValidatorSpec"
    ),
    "output.text": "Style",
    "rbac.roles": "RbacSubject",
    "reconcile.preflight": "PreflightReport",
    "verify.run": "Check CheckOutcome Verification",
}
_HOMES = dict(sorted((name, module) for module, names in _NAMES.items() for name in names.split()))

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]


class _Face(ModuleType):
    """This module: ``gpu_provision.verify`` stays the function after an import of the package of that name."""

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in _HOMES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Face
