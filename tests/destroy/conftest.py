"""Servers with scripted answers."""

from tests.kube.conftest import answering

__all__ = ["answering"]
