"""Asking a registry whether it has an image."""

from __future__ import annotations

import base64
import socket
from pathlib import Path

import pytest

from gpu_provision.preflight.subject import ImageState
from gpu_provision.registry import client
from gpu_provision.registry.client import ask
from tests.registry.conftest import TOKEN, Registry, log_in

TAG = "580.95.05-ubuntu22.04"
SECRET = base64.b64encode(b"jane:s3cret").decode()


def image(registry: Registry) -> str:
    return f"{registry.host}/nvidia/driver:{TAG}"


@pytest.mark.parametrize("wants", ["", "bearer"])
@pytest.mark.parametrize(
    ("architectures", "state"),
    [
        (["amd64", "arm64"], ImageState.PRESENT),
        (["arm64"], ImageState.OTHER_ARCHITECTURE),
        ([], ImageState.PRESENT),
        (["unknown"], ImageState.PRESENT),
    ],
)
def test_image_that_is_there(registry: Registry, wants: str, architectures: list[str], state: ImageState) -> None:
    """With and without the token that public registries ask everybody to fetch."""
    registry.wants = wants
    registry.images[f"nvidia/driver:{TAG}"] = architectures
    answer = ask(image(registry), "amd64")
    assert answer.state is state
    assert answer.reference == image(registry)


def test_only_an_index_is_read(registry: Registry) -> None:
    """HEAD is enough elsewhere, and counts as no pull where pulls are counted."""
    registry.images[f"nvidia/driver:{TAG}"] = []
    ask(image(registry), "amd64")
    assert [method for method, _, _ in registry.asked] == ["HEAD"]


def test_image_that_is_not_there(registry: Registry) -> None:
    """The registry's own words are the evidence."""
    answer = ask(image(registry), "amd64")
    assert (answer.state, answer.evidence) == (ImageState.ABSENT, f"{registry.host}: HTTP 404")


def test_users_credentials_buy_the_token(registry: Registry, tmp_path: Path) -> None:
    """They go to the token service, and the token to the registry."""
    registry.wants, registry.user = "bearer", "jane:s3cret"
    registry.images[f"nvidia/driver:{TAG}"] = []
    assert ask(image(registry), "amd64").state is ImageState.REFUSED
    log_in(tmp_path, registry.host, auth=SECRET)
    registry.asked.clear()
    assert ask(image(registry), "amd64").state is ImageState.PRESENT
    assert [given for _, _, given in registry.asked] == ["", f"Basic {SECRET}", f"Bearer {TOKEN}"]


def test_identity_token_is_exchanged(registry: Registry, tmp_path: Path) -> None:
    """As docker's credential helpers give it for some clouds."""
    registry.wants = "bearer"
    registry.images[f"nvidia/driver:{TAG}"] = []
    log_in(tmp_path, registry.host, identitytoken="refresh-me")
    assert ask(image(registry), "amd64").state is ImageState.PRESENT


def test_basic_authentication(registry: Registry, tmp_path: Path) -> None:
    """As small registries of one's own have it."""
    registry.wants, registry.user = "basic", "jane:s3cret"
    registry.images[f"nvidia/driver:{TAG}"] = []
    assert ask(image(registry), "amd64").state is ImageState.REFUSED
    log_in(tmp_path, registry.host, auth=SECRET)
    assert ask(image(registry), "amd64").state is ImageState.PRESENT


def test_wrong_password_is_refused_and_not_told(registry: Registry, tmp_path: Path) -> None:
    """Secrets never reach an evidence."""
    registry.wants, registry.user = "basic", "jane:other"
    log_in(tmp_path, registry.host, auth=SECRET)
    answer = ask(image(registry), "amd64")
    assert answer.state is ImageState.REFUSED
    assert "s3cret" not in str(answer)
    assert SECRET not in str(answer)


def test_credentials_go_to_no_service_without_tls(registry: Registry, tmp_path: Path) -> None:
    """A registry may name any token service; one without TLS gets nothing."""
    registry.wants, registry.realm = "bearer", f"http://{registry.host}/token"
    log_in(tmp_path, registry.host, auth=SECRET)
    assert ask(image(registry), "amd64").state is ImageState.REFUSED
    assert len(registry.asked) == 1


@pytest.mark.parametrize(
    ("status", "state"),
    [
        (307, ImageState.PRESENT),
        (403, ImageState.REFUSED),
        (429, ImageState.UNREACHABLE),
        (503, ImageState.UNREACHABLE),
    ],
)
def test_other_answers(registry: Registry, status: int, state: ImageState) -> None:
    """A redirect is not followed; an overloaded registry says nothing about the image."""
    registry.status = status
    answer = ask(image(registry), "amd64")
    assert answer.state is state
    assert f"HTTP {status}" in answer.evidence


def test_nobody_there(registry: Registry) -> None:
    """A warning's worth, not a crash."""
    with socket.socket() as deaf:  # keeps its port from others, and accepts no connection
        deaf.bind(("127.0.0.1", 0))
        answer = ask(f"localhost:{deaf.getsockname()[1]}/nvidia/driver:{TAG}", "amd64")
    assert answer.state is ImageState.UNREACHABLE
    assert "refused" in answer.evidence
    assert not registry.asked


def test_silent_server_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A firewall that drops packets must not hold a plan for minutes."""
    monkeypatch.setattr(client, "SECONDS", 0.4)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        answer = ask(f"localhost:{silent.getsockname()[1]}/nvidia/driver:{TAG}", "amd64")
    assert answer.state is ImageState.UNREACHABLE


def test_untrusted_certificate(registry: Registry, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing is asked of a server that cannot prove who it is."""
    (tmp_path / "none.pem").write_text("")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "none.pem"))
    answer = ask(image(registry), "amd64")
    assert answer.state is ImageState.UNREACHABLE
    assert "CERTIFICATE_VERIFY_FAILED" in answer.evidence
    assert not registry.asked
