"""An API server and its client, as for the tests of kube."""

from __future__ import annotations

from tests.kube.conftest import cluster, server

__all__ = ["cluster", "server"]
