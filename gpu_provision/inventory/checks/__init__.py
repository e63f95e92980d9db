"""Checks beyond the schema. Each is a function from a subject to findings."""

from __future__ import annotations

from collections.abc import Iterator

from gpu_provision.inventory.checks.files import check_files
from gpu_provision.inventory.checks.nodes import check_nodes
from gpu_provision.inventory.checks.rollouts import check_rollouts
from gpu_provision.inventory.checks.settings import check_settings
from gpu_provision.inventory.checks.subject import Subject
from gpu_provision.inventory.checks.versions import check_versions
from gpu_provision.inventory.problems import Problem

__all__ = ["Subject", "check_meaning"]


def check_meaning(subject: Subject) -> Iterator[Problem]:
    """Yield everything that is wrong with an inventory although it fits the schema."""
    yield from check_nodes(subject)
    yield from check_versions(subject)
    yield from check_settings(subject)
    yield from check_files(subject)
    yield from check_rollouts(subject)
