"""What starts real programs for tests leads to the cluster that is meant, and to no other."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.real.control_plane import given


def test_only_a_variable_of_its_own_names_a_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests delete what they find: neither KUBECONFIG nor a mistyped path leads them to another cluster than meant."""
    existing = tmp_path / "throw-away.yaml"
    existing.touch()
    monkeypatch.setenv("KUBECONFIG", str(existing))
    monkeypatch.delenv("GPU_PROVISION_TEST_KUBECONFIG", raising=False)
    assert given() is None
    monkeypatch.setenv("GPU_PROVISION_TEST_KUBECONFIG", str(existing))
    assert given() == existing
    monkeypatch.setenv("GPU_PROVISION_TEST_KUBECONFIG", f"{existing}.mistyped")
    with pytest.raises(FileNotFoundError, match="is no file"):
        given()
