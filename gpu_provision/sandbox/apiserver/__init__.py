"""An embedded Kubernetes API server: kubectl, the kubernetes client and gpu-provision use it like any other.

A request comes in through ``server.HttpServer`` (HTTP, TLS, request log, faults) or ``local_api.LocalApi`` (controllers
and simulated nodes in the same process). Both end in ``registry.Registry``, which applies the ``strategy``, defaults,
admission and validation of a kind and writes to ``store.Store``: objects in memory, a SQLite file behind them, and a
window of changes for watches. ``fieldmanager`` is server-side apply. What is known of a built-in kind stands in
resources.yaml; its scope is frozen to what docs/sandbox.md lists.

It imports ``sandbox.api``, ``sandbox.objects`` and ``sandbox.state``, and nothing else of the sandbox.
"""

from gpu_provision.sandbox.apiserver.local_api import LocalApi
from gpu_provision.sandbox.apiserver.server import Server, serve
from gpu_provision.sandbox.apiserver.store import Store

__all__ = ["LocalApi", "Server", "Store", "serve"]
