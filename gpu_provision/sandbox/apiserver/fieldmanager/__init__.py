"""Server-side apply and managedFields as the Kubernetes API server does them: pure functions on dicts.

What a server does and this does not: convert between API versions (all versions of a kind are taken as one
schema), adapt stored entries to a schema that has become atomic since, limit the number of entries, own items that
share a key as one value, and give kubectl what it applied on the client's side. Null for a field that the live object
lacks is never a conflict here.
"""

from gpu_provision.sandbox.apiserver.fieldmanager.apply import apply_configuration, record_update, same_but_for_times
from gpu_provision.sandbox.apiserver.fieldmanager.managed_fields import ApplyConflictError
from gpu_provision.sandbox.apiserver.fieldmanager.schema import ObjectType

__all__ = ["ApplyConflictError", "ObjectType", "apply_configuration", "record_update", "same_but_for_times"]
