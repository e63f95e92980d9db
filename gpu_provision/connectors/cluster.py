"""``@cluster/<context>``: a Kubernetes cluster as a pyinfra host.

Operations on it send requests to its API server; a cluster has no shell. pyinfra imports this module for every
inventory, so it imports nothing of Kubernetes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NoReturn

from pyinfra.api.exceptions import InventoryError
from pyinfra.api.output import echo, format_text
from pyinfra.connectors.base import BaseConnector
from pyinfra.connectors.util import CommandOutput, OutputLine

GROUP = "cluster"
"""Every cluster host is in this group."""


class ClusterConnector(BaseConnector):
    """A cluster of the kubeconfig, by the name of its context; pyinfra's own operations do not run on it."""

    handles_execution = True

    @staticmethod
    def make_names_data(name: str | None = None) -> Iterator[tuple[str, dict[str, Any], list[str]]]:
        """Yield the one host of a context; raises InventoryError without one."""
        if not name:
            message = "a cluster needs the name of its context: @cluster/<context>"
            raise InventoryError(message)
        yield f"@cluster/{name}", {}, ["@cluster", GROUP]

    def _refusal(self, what: str) -> str:
        return (
            f"{self.host.name} is a Kubernetes cluster and {what}; "
            f'leave it out of this operation, for example with: if "{GROUP}" not in host.groups'
        )

    def run_shell_command(
        self,
        command: object,  # noqa: ARG002 - pyinfra's signature
        print_output: bool = False,  # noqa: FBT001, FBT002 - pyinfra's signature
        **_: Any,
    ) -> tuple[bool, CommandOutput]:
        """Refuse, so that a misplaced command does not run on the control machine."""
        refusal = self._refusal("has no shell to run a command in")
        if print_output:
            echo(f"{self.host.print_prefix}{format_text(refusal, 'red')}", err=True)
        return False, CommandOutput([OutputLine("stderr", refusal)])

    def put_file(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse with an OSError, which pyinfra reports as the host's failure."""
        raise OSError(self._refusal("takes no files"))

    def get_file(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse with an OSError, which pyinfra reports as the host's failure."""
        raise OSError(self._refusal("gives no files"))
