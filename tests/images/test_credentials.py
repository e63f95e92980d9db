"""Finding the user's own credentials."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from gpu_provision.images.credentials import Credentials, credentials

JANE = base64.b64encode(b"jane:s3:cret").decode()


def found(directory: Path, registry: str, config: Any) -> Credentials | None:
    (directory / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    return credentials(registry, {"DOCKER_CONFIG": str(directory)})


@pytest.mark.parametrize("key", ["nvcr.io", "https://nvcr.io"])
def test_docker_login(tmp_path: Path, key: str) -> None:
    """A password may hold colons."""
    assert found(tmp_path, "nvcr.io", {"auths": {key: {"auth": JANE}}}) == Credentials("jane", "s3:cret")


def test_hub_has_a_key_of_its_own(tmp_path: Path) -> None:
    """Docker writes Docker Hub's old address."""
    config = {"auths": {"https://index.docker.io/v1/": {"auth": JANE}}}
    assert found(tmp_path, "docker.io", config) == Credentials("jane", "s3:cret")


@pytest.mark.parametrize("config", ["", "not JSON", [], {}, {"auths": None}, {"auths": {"nvcr.io": {"auth": "%%%"}}}])
def test_nothing_or_broken_is_nothing(tmp_path: Path, config: Any) -> None:
    """Public images need no credentials."""
    assert found(tmp_path, "nvcr.io", config) is None


HALF = "\ud800"
NO_TEXTS = [None, 0, 1.5, True, [], ["x"], {}, {"x": 1}]
BROKEN = [
    *NO_TEXTS,
    *({key: each} for key in ("auths", "credHelpers", "credsStore") for each in (*NO_TEXTS, HALF, "x")),
    *({key: {"nvcr.io": each}} for key in ("auths", "credHelpers") for each in (*NO_TEXTS, HALF, "x")),
    *(
        {"auths": {"nvcr.io": {key: each}}}
        for key in ("auth", "identitytoken")
        for each in (*NO_TEXTS, HALF, "", "\u00e9")
    ),
    "[" * 100_000,
    "1" * 5000,
]


@pytest.mark.parametrize("config", BROKEN, ids=range(len(BROKEN)))
def test_file_of_any_shape_is_nothing(tmp_path: Path, config: Any) -> None:
    """Whatever JSON can hold, at every place that is read; an identity token may be any text."""
    credential = found(tmp_path, "nvcr.io", config)
    assert credential is None or credential == Credentials("<token>", "\u00e9")


@pytest.mark.parametrize("answer", ["null", "[]", "1", '"x"', "{}", '{"Username": 1, "Secret": []}', "[" * 100_000])
def test_helper_of_any_answer_is_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    (tmp_path / "answer").write_text(answer)
    helper = tmp_path / "docker-credential-test"
    helper.write_text(f"#!/bin/sh\ncat {tmp_path}/answer\n")
    helper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert found(tmp_path, "nvcr.io", {"credsStore": "test"}) is None


def test_podman_comes_first(tmp_path: Path) -> None:
    """Where its variable names a file."""
    (tmp_path / "auth.json").write_text(json.dumps({"auths": {"nvcr.io": {"auth": JANE}}}))
    assert credentials("nvcr.io", {"REGISTRY_AUTH_FILE": str(tmp_path / "auth.json"), "HOME": "/nowhere"})


def test_credential_helper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """docker-credential-NAME get: the registry in, JSON out; one that fails is nothing."""
    helper = tmp_path / "docker-credential-test"
    helper.write_text('#!/bin/sh\nread -r key\necho "{\\"Username\\": \\"<token>\\", \\"Secret\\": \\"for $key\\"}"\n')
    helper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    credential = found(tmp_path, "nvcr.io", {"credHelpers": {"nvcr.io": "test"}})
    assert credential == Credentials("<token>", "for nvcr.io")
    assert credential.is_token
    helper.write_text("#!/bin/sh\nexit 1\n")
    assert found(tmp_path, "nvcr.io", {"credsStore": "test"}) is None


def test_password_is_not_shown() -> None:
    """Neither in a log nor in a traceback."""
    assert "s3" not in repr(Credentials("jane", "s3:cret"))
