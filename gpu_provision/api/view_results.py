"""What the verbs of `views` return: values that print as the commands do, and have the same JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gpu_provision.api.results import Shown
from gpu_provision.hosts.result import NO_HOSTS, HostsResult
from gpu_provision.model.findings import ExitCode, Finding
from gpu_provision.model.plan import Difference, Drift
from gpu_provision.model.progress import Status
from gpu_provision.output import drift as drift_view
from gpu_provision.output import preflight as preflight_view
from gpu_provision.output import run as hosts_view
from gpu_provision.output import status as status_view
from gpu_provision.output import verify as verify_view
from gpu_provision.output.documents import document
from gpu_provision.output.text import PLAIN, Style
from gpu_provision.reconcile.preflight import Judgement
from gpu_provision.verify.run import Verification


@dataclass(frozen=True, slots=True, kw_only=True)
class StackDrift(Shown):
    """What is not as it was applied, on hosts and in the cluster, and who changed it.

    Attributes:
        hosts: The hosts that were read, with what an apply would change on each.
        cluster: What differs in the cluster; without a difference if it took no part.
    """

    cluster: Drift
    hosts: HostsResult = NO_HOSTS

    @property
    def differences(self) -> tuple[Difference, ...]:
        """What differs in the cluster, an object each."""
        return self.cluster.differences

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What could not be read, and what a reader should know."""
        return (*self.cluster.findings, *self.hosts.errors)

    @property
    def is_worth_a_look(self) -> bool:
        """Whether anything differs besides what is declared and not applied yet."""
        return self.cluster.is_worth_a_look or bool(self.hosts.changed)

    def text(self, style: Style = PLAIN) -> str:
        """Return what ``gpu-provision drift`` prints on stdout: one line if nothing differs."""
        changed = self.hosts.changed
        told = hosts_view.hosts_text(HostsResult(hosts=changed), style, done=False)
        return drift_view.text(self.cluster, style, hosts=told, changed_hosts=len(changed))

    def document(self) -> dict[str, Any]:
        """Return the document of ``gpu-provision drift --json``."""
        return document(
            "drift", self.findings, hosts=hosts_view.hosts_document(self.hosts), **drift_view.document(self.cluster)
        )


@dataclass(frozen=True, kw_only=True)
class StackStatus(Status, Shown):
    """The stack as it stands, with a row for each component and for each node."""

    @property
    def is_ready(self) -> bool:
        """Whether every component and every GPU node is ready."""
        return status_view.is_ready(self)

    def text(self, style: Style = PLAIN) -> str:
        """Return what ``gpu-provision status`` prints on stdout."""
        return status_view.text(self, style)

    def document(self) -> dict[str, Any]:
        """Return the document of ``gpu-provision status --json``."""
        return document("status", **status_view.document(self))


@dataclass(frozen=True, kw_only=True)
class StackPreflight(Judgement, Shown):
    """What would go wrong on hosts and in the cluster; ``findings`` has errors first.

    Attributes:
        inventory: Name of the inventory.
    """

    inventory: str

    def text(self, style: Style = PLAIN) -> str:
        """Return what ``gpu-provision preflight`` prints on stdout."""
        return preflight_view.preflight_text(self, style)

    def document(self) -> dict[str, Any]:
        """Return the document of ``gpu-provision preflight --json``."""
        return document(
            "preflight", self.findings, inventory=self.inventory, hosts=hosts_view.hosts_document(self.hosts)
        )


@dataclass(frozen=True, kw_only=True)
class StackVerification(Verification, Shown):
    """How each acceptance test ended.

    Attributes:
        inventory: Name of the inventory.
    """

    inventory: str

    @property
    def passed(self) -> bool:
        """Whether no test failed, and every host and the cluster answered."""
        return self.exit_code is ExitCode.OK

    def text(self, style: Style = PLAIN) -> str:
        """Return what ``gpu-provision verify`` prints on stdout."""
        return verify_view.text(self, style)

    def document(self) -> dict[str, Any]:
        """Return the document of ``gpu-provision verify --json``."""
        return document("verify", inventory=self.inventory, **verify_view.document(self))
