"""An embedded Kubernetes API server: kubectl, the kubernetes client and gpu-provision use it like any other."""

from gpu_provision.sandbox.apiserver.local_api import LocalApi
from gpu_provision.sandbox.apiserver.server import Server, serve
from gpu_provision.sandbox.apiserver.store import Store

__all__ = ["LocalApi", "Server", "Store", "serve"]
