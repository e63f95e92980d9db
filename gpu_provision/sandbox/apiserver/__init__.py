"""The sandbox's Kubernetes API server, for kubectl, the kubernetes client and gpu-provision.

Requests arrive at ``server.HttpServer`` (HTTP, TLS, request log, faults) or ``local_api.LocalApi`` (controllers and
simulated nodes in the same process). Both call ``registry.Registry``, which applies the ``strategy``, defaults,
admission and validation of a kind and writes to ``store.Store``: objects in memory and in a SQLite file, and a watch
cache. ``fieldmanager`` is server-side apply. resources.yaml describes the built-in kinds; docs/sandbox.md lists the
scope.

Imports only ``sandbox.api``, ``sandbox.objects`` and ``sandbox.state`` of the sandbox.
"""

from gpu_provision.sandbox.apiserver.local_api import LocalApi
from gpu_provision.sandbox.apiserver.server import Server, serve
from gpu_provision.sandbox.apiserver.store import Store

__all__ = ["LocalApi", "Server", "Store", "serve"]
