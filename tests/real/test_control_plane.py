"""A real control plane for tests keeps strangers out: others on this machine reach its ports, and its pods have rights.

That it works, everything else with the marker ``real`` shows.
"""

from __future__ import annotations

import os
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.real.access import ask
from tests.real.control_plane import control_plane, missing

pytestmark = pytest.mark.real


def test_strangers_are_kept_out(tmp_path: Path) -> None:
    """By the API server, by etcd, by the files, and by clients who verify the server."""
    if reason := missing():
        pytest.skip(reason)
    with control_plane(tmp_path / "plane") as plane:
        trust = plane.authority.trust()
        guess = urllib.request.Request(f"{plane.url}/api", headers={"Authorization": "Bearer guessed"})  # noqa: S310 - our own
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(guess, context=trust, timeout=300)  # noqa: S310 - our own
        arguments = plane.programs["etcd"].args
        assert isinstance(arguments, list)
        [etcd] = [os.fsdecode(text) for text in arguments if "--listen-client-urls=" in os.fsdecode(text)]
        health = f"{etcd.partition('=')[2]}/health"
        assert ask(health, trust) is None
        assert ask(health, plane.authority.trust(plane.authority.issue("test-client"))) is not None
        private = [*plane.directory.glob("*.key"), *plane.directory.glob("*kubeconfig"), plane.directory / "tokens.csv"]
        assert {file.stat().st_mode & 0o777 for file in private} == {0o600}
        assert plane.directory.stat().st_mode & 0o777 == 0o700
        assert not [file for file in plane.directory.glob("*kubeconfig") if "insecure" in file.read_text()]
