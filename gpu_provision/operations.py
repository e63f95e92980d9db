"""Operations of the host phase for any pyinfra deploy file, each useful without the rest and without an inventory.

Each reads the host once and changes only what differs: a second run makes no change. Changes need root: ``_sudo=True``.
What was there before the first change is kept on the host, and `gpu_provision.deploys.host_teardown` restores it.
A host on which an operation cannot do its work fails with a finding, and no other host with it; docs/pyinfra.md
describes them with examples.
"""

from __future__ import annotations

from gpu_provision.hosts.operations.driver import kernel_modules, nouveau
from gpu_provision.hosts.operations.packages import packages_held
from gpu_provision.hosts.operations.runtime import runtime_imports

__all__ = ["kernel_modules", "nouveau", "packages_held", "runtime_imports"]
