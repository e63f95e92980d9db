"""Servers that answer as they are told."""

from tests.kube.conftest import answering

__all__ = ["answering"]
