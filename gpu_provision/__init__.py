"""Declarative provisioning of NVIDIA GPU nodes for Kubernetes.

    import gpu_provision

    inventory = gpu_provision.load("inventories/prod.yaml")
    print(gpu_provision.plan(inventory))
    gpu_provision.apply(inventory, listen=print)

The functions do what the commands of the same names do; docs/library.md walks through them. Inside pyinfra deploys
there is `gpu_provision.deploys`. A name is imported when it is first used; `__init__.pyi` has the types for checkers.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

_NAMES = {
    "adopt.drivers": "Driver",
    "adopt.plan": "Adoption Fate Handled NodeLabels",
    "api.adopt": "StackAdoption adopt adoption",
    "api.options": "render",
    "api.records": "StackHistory going_back history rbac unlock",
    "api.results": "Shown StackPlan StackRemoval StackRun",
    "api.runs": "apply destroy plan revalidate rollback",
    "api.view_results": "StackDrift StackPreflight StackStatus StackVerification",
    "api.views": "drift preflight status verify",
    "hosts.result": "HostOutcome HostsResult",
    "inventory": "check load schema",
    "model.cluster": "Kind ObjectRef",
    "model.findings": (
        "ExitCode Finding Findings InvalidInventory Locked ProvisionError Refused Rejected RunFailed Severity "
        "Unreachable UsageError"
    ),
    "model.history": "Ending History Record",
    "model.inventory": (
        "ClusterTarget Connect Drain Gpu HelperPod HostPrerequisites Inventory Node NodePool OperatingSystem "
        "Preflight Reboot Ssh"
    ),
    "model.plan": (
        "Action Change Departure Difference Drift FieldChange FieldDrift Leaving Origin Outlook Plan RemovalResult "
        "ResourceChange Schedule Wave Writer"
    ),
    "model.progress": (
        "ComponentStatus Event Evidence Lock NodeState NodeStatus Outside RunResult State Status Transition"
    ),
    "model.specs": (
        "Canary DaemonSetSettings Day DcgmExporterSpec DcgmSpec DevicePluginSpec DriverSpec GfdSpec Image "
        "MaintenanceWindow NfdSpec OnFailure OperandSpec Order PodDeletion RolloutPolicy SecretKey "
        "ServiceMonitorSpec Specs StartupProbe StartupTaintSpec ToolkitSpec UpgradeDrain UpgradePolicy ValidatorSpec "
        "WaitForCompletion"
    ),
    "output.text": "Style",
    "planning.rbac": "Subject",
    "reconcile.preflight": "Judgement",
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
    """This module: ``gpu_provision.verify`` is the function, also when the package of that name was imported."""

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in _HOMES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Face
