"""Server-side apply and managedFields of the Kubernetes API server, as pure functions on dicts.

Not implemented: conversion between API versions (all versions of a kind share one schema), stored entries of a schema
that became atomic later, a limit of entries, shared ownership of items with equal keys, and migration of kubectl's
client-side apply. Null for a field that the live object lacks is never a conflict.
"""

from gpu_provision.sandbox.apiserver.fieldmanager.apply import apply_configuration, equal_but_for_times, record_update
from gpu_provision.sandbox.apiserver.fieldmanager.managed_fields import ApplyConflictError
from gpu_provision.sandbox.apiserver.fieldmanager.schema import ObjectType

__all__ = ["ApplyConflictError", "ObjectType", "apply_configuration", "equal_but_for_times", "record_update"]
