"""A contributor's own cluster to test on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.real.control_plane import given

VARIABLE = "GPU_PROVISION_TEST_KUBECONFIG"


def test_only_a_variable_of_its_own_names_a_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests delete what they find: KUBECONFIG may lead to a cluster that somebody needs."""
    (tmp_path / "throw-away.yaml").touch()
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "throw-away.yaml"))
    monkeypatch.delenv(VARIABLE, raising=False)
    assert given() is None
    monkeypatch.setenv(VARIABLE, str(tmp_path / "throw-away.yaml"))
    assert given() == tmp_path / "throw-away.yaml"


def test_a_kubeconfig_that_is_not_there_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the tests would run on something else than meant."""
    monkeypatch.setenv(VARIABLE, str(tmp_path / "mistyped.yaml"))
    with pytest.raises(FileNotFoundError, match=r"mistyped\.yaml is no file"):
        given()
