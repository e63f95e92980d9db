"""Execute runs through the operator: if a GPUStack exists, apply changes it and waits for the controller."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

from gpu_provision.kube.client import KubeClient
from gpu_provision.kube.observe import GPU_STACKS
from gpu_provision.model import codes
from gpu_provision.model.findings import Finding, UsageError
from gpu_provision.model.inventory import Inventory
from gpu_provision.model.operand_specs import OperandSpec
from gpu_provision.model.plan import ResourceChange
from gpu_provision.model.progress import Event, NodeState
from gpu_provision.model.specs import Specs
from gpu_provision.planning.states import ComponentNode
from gpu_provision.reconcile.plan import ClusterPlan

if TYPE_CHECKING:
    from gpu_provision.operator.client import StackResource
    from gpu_provision.operator.remote_run import RemoteRun


@dataclass(slots=True)
class OperatorExecutor:
    """See `gpu_provision.reconcile.session.Executor`. ``force`` takes fields over from other managers."""

    force: bool = False
    _resource: StackResource | None = None

    def review_plan(self, cluster: KubeClient, reading: ClusterPlan) -> ClusterPlan:
        """Return a reading whose plan includes the change of the GPUStack, if one exists, and its findings."""
        if GPU_STACKS not in reading.context.facts.resources:
            return reading
        from gpu_provision.operator.client import compare_stack

        self._resource = resource = compare_stack(cluster, reading.context.inventory, force=self.force)
        if resource is None:
            return reading
        change = ResourceChange(name=resource.name, fields=resource.fields)
        findings = (*reading.plan.findings, *resource.findings)
        return replace(reading, plan=replace(reading.plan, resource=change, findings=findings))

    def run_factory(
        self,
        cluster: KubeClient,
        reading: ClusterPlan,
        *,
        listen: Callable[[Event], None],
        on_states: Callable[[Mapping[ComponentNode, NodeState]], None],
        rollback_to: int,
    ) -> RemoteRun:
        """Return the run that the controller executes. Raises UsageError for options that a GPUStack cannot express."""
        from gpu_provision.operator.remote_run import RemoteRun
        from gpu_provision.operator.stack import inventory_of

        resource, inventory = self._resource, reading.context.inventory
        if resource is None:
            raise AssertionError  # `reviewed` has set it
        if not reading.context.selection.is_all:
            raise UsageError(_unsupported_finding(resource, "a part of a stack", "leave --limit and --target out"))
        declared, _ = inventory_of(resource.desired or resource.live)
        if declared and _timeouts(declared) != _timeouts(inventory):
            fix = "leave --timeout out, or set timeout there"
            raise UsageError(_unsupported_finding(resource, "other timeouts than the inventory's", fix))
        return RemoteRun(
            cluster, reading, resource, force=self.force, rollback_to=rollback_to, listen=listen, on_states=on_states
        )


def _timeouts(inventory: Inventory) -> dict[str, int]:
    operands = {field.name: getattr(inventory.specs, field.name) for field in fields(Specs)}
    drivers = {f"pools.{name}": pool.driver for name, pool in inventory.pools.items()}
    return {name: spec.timeout for name, spec in (operands | drivers).items() if isinstance(spec, OperandSpec)}


def _unsupported_finding(resource: StackResource, what: str, fix: str) -> Finding:
    return Finding(
        code=codes.NOT_FOR_RESOURCE,
        where=resource.name,
        what=f"a controller manages this stack, and its resource cannot express {what}; nothing was written",
        fix=fix,
    )
