"""Server-side apply and managedFields as the Kubernetes API server does them: pure functions on dicts."""

from gpu_provision.sandbox.apiserver.fieldmanager.conflict import ApplyConflict, Conflict
from gpu_provision.sandbox.apiserver.fieldmanager.manager import applied, same_but_for_times, updated
from gpu_provision.sandbox.apiserver.fieldmanager.schema import ListTypes
from gpu_provision.sandbox.apiserver.fieldmanager.validate import InvalidConfig

__all__ = [
    "ApplyConflict",
    "Conflict",
    "InvalidConfig",
    "ListTypes",
    "applied",
    "same_but_for_times",
    "updated",
]
