"""A running API server, and a client for it."""

from tests.kube.conftest import cluster, server

__all__ = ["cluster", "server"]
