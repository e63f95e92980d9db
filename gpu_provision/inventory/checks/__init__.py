"""Checks an inventory that fits the schema. Each check is a function from a context to problems."""

from __future__ import annotations

from collections.abc import Iterator

from gpu_provision.inventory.checks.context import CheckContext
from gpu_provision.inventory.checks.nodes import check_nodes, check_versions
from gpu_provision.inventory.checks.settings import check_files, check_rollouts, check_settings
from gpu_provision.inventory.document import Problem

__all__ = ["CheckContext", "run_checks"]


def run_checks(context: CheckContext) -> Iterator[Problem]:
    """Yield everything that is wrong with an inventory although it fits the schema."""
    yield from check_nodes(context)
    yield from check_versions(context)
    yield from check_settings(context)
    yield from check_files(context)
    yield from check_rollouts(context)
