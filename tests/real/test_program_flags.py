"""Command lines of the control plane's programs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.real import program_flags


@pytest.mark.parametrize(
    ("version", "expected"), [((1, 20, 2), {"port": 0}), ((1, 23, 17), {"port": 0}), ((1, 24, 0), {}), ((1, 36, 1), {})]
)
def test_plain_http_is_turned_off_where_a_version_has_it(version: tuple[int, ...], expected: dict[str, int]) -> None:
    """Newer versions refuse to start with a flag that they do not know."""
    flags = program_flags.controller("kube-scheduler", Path("/d"), version, Path("/k"))
    assert {name: value for name, value in flags.items() if name == "port"} == expected


def test_without_a_controller_manager_pods_need_no_service_account() -> None:
    """Nothing makes any, so that the API server would refuse every pod."""
    assert program_flags.without(()) == {"disable-admission-plugins": "ServiceAccount"}
    assert program_flags.without(("kube-controller-manager",)) == {}
