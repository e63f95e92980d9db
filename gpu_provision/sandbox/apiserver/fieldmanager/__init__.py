"""Server-side apply and managedFields as the Kubernetes API server does them: pure functions on dicts.

What a server does and this does not: convert between API versions (all versions of a kind are taken as one
schema), adapt stored entries to a schema that has become atomic since, and look for unknown fields inside atomic
lists. Null for a field that the live object lacks is never a conflict here.
"""

from gpu_provision.sandbox.apiserver.fieldmanager.manager import applied, same_but_for_times, updated
from gpu_provision.sandbox.apiserver.fieldmanager.schema import ListTypes
from gpu_provision.sandbox.apiserver.fieldmanager.validate import ApplyConflict, Conflict, InvalidConfig

__all__ = [
    "ApplyConflict",
    "Conflict",
    "InvalidConfig",
    "ListTypes",
    "applied",
    "same_but_for_times",
    "updated",
]
