"""A running API server and its client."""

from tests.kube.conftest import cluster, server

__all__ = ["cluster", "server"]
