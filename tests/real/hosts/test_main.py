"""``python -m tests.real.hosts``, with which ``make test-hosts`` begins."""

from __future__ import annotations

import pytest

from tests.real.hosts import __main__ as program
from tests.real.hosts import image, nspawn, rootfs


def test_where_nothing_can_run_it_fails_and_names_every_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Otherwise tests would be skipped, and look as if they had passed."""
    for part in (image, rootfs, nspawn):
        monkeypatch.setattr(part, "missing", lambda name=part.__name__: f"no {name}")
    assert program.main() == 1
    said = capsys.readouterr().err
    assert said.splitlines() == [
        "virtual machines cannot run: no tests.real.hosts.image",
        "light hosts cannot run: no tests.real.hosts.rootfs",
        "hosts with systemd cannot run: no tests.real.hosts.nspawn",
    ]


def test_what_can_run_does_though_something_else_cannot(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without QEMU, hosts in namespaces are left."""
    monkeypatch.setattr(image, "missing", lambda: "no QEMU")
    for part in (rootfs, nspawn):
        monkeypatch.setattr(part, "missing", lambda: "")
    monkeypatch.setattr("tests.real.hosts.built.Recipe.built", lambda recipe: recipe.script)
    assert program.main() == 0
    said = capsys.readouterr()
    assert said.err == "virtual machines cannot run: no QEMU\n"
    assert said.out.startswith("light hosts start from ")
