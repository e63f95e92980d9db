"""Field values on one line, without secrets."""

from __future__ import annotations

import pytest

from gpu_provision.report.values import is_secret, redacted, shown


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, "(none)"),
        ("true", "true"),
        (True, "true"),
        (8, "8"),
        ({"b": 1, "a": 2}, '{"a": 2, "b": 1}'),
        ("#!/bin/sh\nexit 0\n", "(2 lines)"),
        ("x" * 100, "x" * 69 + "..."),
    ],
)
def test_a_value_takes_one_short_line(value: object, expected: str) -> None:
    """Long values are cut, scripts are counted."""
    assert shown(value) == expected


@pytest.mark.parametrize(
    ("kind", "path", "expected"),
    [
        ("Secret", "data.x", True),
        ("Secret", "metadata.annotations.x", True),
        ("DaemonSet", "spec.template.spec.containers[x].env[NGC_API_KEY].value", True),
        ("DaemonSet", "spec.template.spec.containers[x].env[LOG_LEVEL].value", False),
        ("ConfigMap", "data.x", False),
    ],
)
def test_what_counts_as_a_secret(kind: str, path: str, *, expected: bool) -> None:
    """All of a Secret, and env entries that are named like one."""
    assert is_secret(kind, path) is expected


def test_a_new_container_does_not_betray_its_env() -> None:
    """Secrets are hidden inside whole values too."""
    container = {"name": "x", "env": [{"name": "NGC_API_KEY", "value": "hunter2"}]}
    assert "hunter2" not in shown(container)


@pytest.mark.parametrize(
    "value",
    ["http://me:hunter2@proxy:3128", "--token=hunter2", {"name": "HTTPS_PROXY", "value": "http://hunter2@proxy"}],
)
def test_a_secret_inside_a_value_is_hidden_and_the_rest_is_not(value: object) -> None:
    """Passwords of proxies, and arguments; in text, JSON and diffs alike."""
    for told in (shown(value), str(redacted({"kind": "Pod", "it": [value]}))):
        assert "hunter2" not in told
        assert "proxy" in told or "--token=" in told


def test_a_redacted_secret_keeps_its_keys() -> None:
    """A reader sees which keys there are, not what they hold."""
    manifest = {"kind": "Secret", "metadata": {"name": "x"}, "data": {"token": "aHVudGVyMg=="}}
    assert redacted(manifest) == {"kind": "Secret", "metadata": {"name": "x"}, "data": {"token": "(changed)"}}
