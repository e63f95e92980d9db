"""Asking a registry for an image, with the user's own credentials: a small one with TLS on the loopback interface."""

from __future__ import annotations

import base64
import json
import socket
import ssl
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from email.message import Message
from operator import itemgetter
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import trustme

from gpu_provision import registry as client
from gpu_provision.model.hosts import ImageAvailability
from gpu_provision.registry import Credentials, ImageReference, find_credentials, look_up_image, parse_reference
from tests import data_file
from tests.kube.conftest import QuietHandler, serving

INDEX = "application/vnd.oci.image.index.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
DATA = data_file.document(Path(__file__).with_suffix(".yaml").read_text())
CONFIG = "sha256:c0ffee"
TOKEN = "token-of-the-test"  # noqa: S105 - the test's own


@dataclass(slots=True)
class Registry:
    """What the registry has and wants, and what it was asked."""

    port: int = 0
    # ``name:version`` -> the architectures that it exists for; none for a bare manifest
    images: dict[str, list[str]] = field(default_factory=dict)
    config: Any = None  # the configuration of a bare manifest
    storage: str = ""  # where it redirects for configurations, as a path of its own
    wants: str = ""  # ``bearer`` or ``basic``
    user: str = ""  # ``name:password`` that it lets in; empty for everybody
    realm: str = ""  # where it sends for tokens; empty for itself
    status: int = 0  # that it answers to everything, if set
    asked: list[tuple[str, str, str]] = field(default_factory=list)  # (method, path, Authorization)
    content: str | None = None  # the body of every answer, instead of what fits

    @property
    def host(self) -> str:
        return f"localhost:{self.port}"


class _Handler(QuietHandler):
    registry: Registry

    def do_POST(self) -> None:  # noqa: N802 - the name that http.server calls
        form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        self._say(200, {"access_token": TOKEN}) if form["refresh_token"] == ["refresh-me"] else self._say(401, {})

    def _answer(self) -> None:
        registry, given, url = self.registry, self.headers.get("Authorization", ""), urlsplit(self.path)
        registry.asked.append((self.command, self.path, given))
        basic = f"Basic {base64.b64encode(registry.user.encode()).decode()}"
        name, _, version = url.path.removeprefix("/v2/").rpartition("/manifests/")
        found = registry.images.get(f"{name}:{version}")
        if registry.status:
            self._say(registry.status, {}, {"Location": "https://elsewhere.invalid/"})
        elif registry.storage and url.path == registry.storage:
            self._say(200, registry.config)
        elif url.path == "/token":
            assert parse_qs(url.query)["scope"] == ["repository:nvidia/driver:pull"]
            self._say(401, {}) if registry.user and given != basic else self._say(200, {"token": TOKEN})
        elif registry.wants and given != (basic if registry.wants == "basic" else f"Bearer {TOKEN}"):
            realm = registry.realm or f"https://{registry.host}/token"
            bearer = f'Bearer realm="{realm}",service="the-registry",scope="repository:nvidia/driver:pull"'
            challenge = bearer if registry.wants == "bearer" else 'Basic realm="x"'
            self._say(401, {"errors": [{"code": "UNAUTHORIZED"}]}, {"WWW-Authenticate": challenge})
        elif url.path == f"/v2/nvidia/driver/blobs/{CONFIG}" and registry.storage:
            self._say(307, {}, {"Location": f"https://{registry.host}{registry.storage}"})
        elif url.path == f"/v2/nvidia/driver/blobs/{CONFIG}":
            self._say(200, registry.config)
        elif found is None:
            self._say(404, {"errors": [{"code": "MANIFEST_UNKNOWN", "message": "no"}]})
        else:
            manifests = [{"platform": {"architecture": each, "os": "linux"}} for each in found]
            one = {"config": {"digest": CONFIG}}
            self._say(200, {"manifests": manifests} if found else one, {"Content-Type": INDEX if found else MANIFEST})

    do_HEAD = do_GET = _answer  # noqa: N815 - the names that http.server calls

    def _say(self, status: int, content: dict[str, Any], headers: dict[str, str] | None = None) -> None:
        chosen = self.registry.content
        self.say(status, (json.dumps(content) if chosen is None else chosen).encode(), headers)


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    for name in ("REGISTRY_AUTH_FILE", "XDG_RUNTIME_DIR", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    state, tls = Registry(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(tls)
    with serving(type("Handler", (_Handler,), {"registry": state}), tls) as state.port:
        yield state


def log_in(directory: Path, host: str, **entry: str) -> None:
    (directory / "docker").mkdir(exist_ok=True)
    (directory / "docker/config.json").write_text(json.dumps({"auths": {host: entry}}))


JANE = base64.b64encode(b"jane:s3:cret").decode()


def credentials_of(directory: Path, registry: str, config: Any) -> Credentials | None:
    (directory / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    return find_credentials(registry, {"DOCKER_CONFIG": str(directory)})


@pytest.mark.parametrize(
    ("registry", "key"),
    [("nvcr.io", "nvcr.io"), ("nvcr.io", "https://nvcr.io"), ("docker.io", "https://index.docker.io/v1/")],
)
def test_docker_login(tmp_path: Path, registry: str, key: str) -> None:
    """A password may hold colons, and is not shown; Docker writes Docker Hub's old address."""
    credential = credentials_of(tmp_path, registry, {"auths": {key: {"auth": JANE}}})
    assert credential == Credentials("jane", "s3:cret")
    assert "s3" not in repr(credential)


HALF = "\ud800"
NO_TEXTS = [None, 0, 1.5, True, [], ["x"], {}, {"x": 1}]


BROKEN = [
    *(*NO_TEXTS, "", "not JSON", "[" * 100_000, "1" * 5000, {"auths": {"nvcr.io": {"auth": "%%%"}}}),
    *({key: each} for key in ("auths", "credHelpers", "credsStore") for each in (*NO_TEXTS, HALF, "x")),
    *({key: {"nvcr.io": each}} for key in ("auths", "credHelpers") for each in (*NO_TEXTS, HALF, "x")),
    *({"auths": {"nvcr.io": {"auth": each}}} for each in (*NO_TEXTS, HALF, "", "\u00e9")),
    *({"auths": {"nvcr.io": {"identitytoken": each}}} for each in (*NO_TEXTS, HALF, "", "\u00e9")),
]


@pytest.mark.parametrize("config", BROKEN, ids=range(len(BROKEN)))
def test_file_of_any_shape_is_nothing(tmp_path: Path, config: Any) -> None:
    """Whatever JSON can hold, at every place that is read; an identity token may be any text."""
    credential = credentials_of(tmp_path, "nvcr.io", config)
    assert credential is None or credential == Credentials("<token>", "\u00e9")


@pytest.fixture
def helper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    helper = tmp_path / "docker-credential-test"
    helper.touch(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return helper


@pytest.mark.parametrize("answer", ["null", "[]", "1", '"x"', "{}", '{"Username": 1, "Secret": []}', "[" * 100_000])
def test_helper_of_any_answer_is_nothing(tmp_path: Path, helper: Path, answer: str) -> None:
    (tmp_path / "answer").write_text(answer)
    helper.write_text(f"#!/bin/sh\ncat {tmp_path}/answer\n")
    assert credentials_of(tmp_path, "nvcr.io", {"credsStore": "test"}) is None


def test_podman_comes_first(tmp_path: Path) -> None:
    """Where its variable names a file."""
    (tmp_path / "auth.json").write_text(json.dumps({"auths": {"nvcr.io": {"auth": JANE}}}))
    assert find_credentials("nvcr.io", {"REGISTRY_AUTH_FILE": str(tmp_path / "auth.json"), "HOME": "/nowhere"})


def test_credential_helper(tmp_path: Path, helper: Path) -> None:
    """docker-credential-NAME get: the registry in, JSON out; one that fails is nothing."""
    helper.write_text('#!/bin/sh\nread -r key\necho "{\\"Username\\": \\"<token>\\", \\"Secret\\": \\"for $key\\"}"\n')
    credential = credentials_of(tmp_path, "nvcr.io", {"credHelpers": {"nvcr.io": "test"}})
    assert credential == Credentials("<token>", "for nvcr.io")
    assert credential.is_token
    helper.write_text("#!/bin/sh\nexit 1\n")
    assert credentials_of(tmp_path, "nvcr.io", {"credsStore": "test"}) is None


@pytest.mark.parametrize("case", DATA["references"], ids=itemgetter("text"))
def test_references_are_read_as_runtimes_read_them(case: dict[str, Any]) -> None:
    """A host has a dot or a port, or is localhost; a digest counts more than a tag."""
    reference = parse_reference(case["text"])
    assert reference == ImageReference(*case["is"])
    assert reference.registry != "docker.io" or reference.manifest.startswith("https://registry-1.docker.io/v2/")


TAG = "580.95.05-ubuntu22.04"
SECRET = base64.b64encode(b"jane:s3cret").decode()


def image(registry: Registry) -> str:
    return f"{registry.host}/nvidia/driver:{TAG}"


@pytest.mark.parametrize("wants", ["", "bearer"])
@pytest.mark.parametrize("architectures", [["amd64", "arm64"], ["arm64"], [], ["unknown"]])
def test_image_that_is_there(registry: Registry, wants: str, architectures: list[str]) -> None:
    """With and without the token that public registries ask everybody to fetch."""
    registry.wants = wants
    registry.images[f"nvidia/driver:{TAG}"] = architectures
    answer = look_up_image(image(registry), "amd64")
    state = ImageAvailability.OTHER_ARCHITECTURE if architectures == ["arm64"] else ImageAvailability.PRESENT
    assert (answer.state, answer.reference) == (state, image(registry))
    # HEAD counts as no pull where pulls are counted; only an index, which names platforms, is read.
    asked = [method for method, path, _ in registry.asked if "/manifests/" in path]
    assert asked == ["HEAD"] * (2 if wants else 1) + ["GET"] * bool(architectures)


@pytest.mark.parametrize("storage", ["", "/storage"])
@pytest.mark.parametrize(
    ("config", "wanted", "state"),
    [
        ({"architecture": "amd64"}, "arm64", "OTHER_ARCHITECTURE"),
        ({"architecture": "arm64"}, "arm64", "PRESENT"),
        ({"architecture": ["amd64"]}, "arm64", "PRESENT"),
        ([], "arm64", "PRESENT"),
        ({"architecture": "arm64"}, "amd64", "PRESENT"),
        ({"architecture": "amd64"}, "", "PRESENT"),
    ],
)
def test_copy_of_one_platform(registry: Registry, config: Any, wanted: str, state: str, storage: str) -> None:
    """Its configuration names the architecture. Reading it counts as a pull, so amd64 is not looked up."""
    registry.wants, registry.config, registry.storage = "bearer", config, storage
    registry.images[f"nvidia/driver:{TAG}"] = []
    assert look_up_image(image(registry), wanted).state is ImageAvailability[state]
    read = [(path, given) for method, path, given in registry.asked if method == "GET" and path != "/token"]
    assert bool([path for path, _ in read if "/blobs/" in path]) is (wanted == "arm64")
    # A redirect leads to the server of another owner, which gets no credentials.
    assert [given for path, given in read if path == "/storage"] == ([""] if storage and wanted == "arm64" else [])


@pytest.mark.parametrize("content", DATA["manifests"])
def test_one_manifest_of_any_shape_is_an_image(registry: Registry, content: str) -> None:
    """Nothing is known of its architecture."""
    registry.images[f"nvidia/driver:{TAG}"] = []
    registry.content = f'{{"config": {content}}}'
    assert look_up_image(image(registry), "arm64").state is ImageAvailability.PRESENT


def test_image_that_is_not_there(registry: Registry) -> None:
    """The registry's own words are the evidence."""
    answer = look_up_image(image(registry), "amd64")
    assert (answer.state, answer.evidence) == (ImageAvailability.ABSENT, f"{registry.host}: HTTP 404")


@pytest.mark.parametrize("wants", ["bearer", "basic"])
def test_users_credentials_are_shown_to_whom_they_belong(registry: Registry, tmp_path: Path, wants: str) -> None:
    """They buy a token where one is wanted; wrong ones are refused, and no secret reaches the evidence."""
    registry.wants, registry.user = wants, "jane:s3cret"
    registry.images[f"nvidia/driver:{TAG}"] = []
    assert look_up_image(image(registry), "amd64").state is ImageAvailability.REFUSED
    log_in(tmp_path, registry.host, auth=SECRET)
    registry.asked.clear()
    assert look_up_image(image(registry), "amd64").state is ImageAvailability.PRESENT
    shown = ["", f"Basic {SECRET}", f"Bearer {TOKEN}"]
    assert [given for _, _, given in registry.asked] == (shown if wants == "bearer" else shown[:2])
    registry.user = "jane:other"
    answer = look_up_image(image(registry), "amd64")
    assert answer.state is ImageAvailability.REFUSED
    assert "s3cret" not in str(answer)
    assert SECRET not in str(answer)


def test_identity_token_is_exchanged(registry: Registry, tmp_path: Path) -> None:
    """As docker's credential helpers give it for some clouds."""
    registry.wants = "bearer"
    registry.images[f"nvidia/driver:{TAG}"] = []
    log_in(tmp_path, registry.host, identitytoken="refresh-me")
    assert look_up_image(image(registry), "amd64").state is ImageAvailability.PRESENT


def test_credentials_go_to_no_service_without_tls(registry: Registry, tmp_path: Path) -> None:
    """A registry may name any token service; one without TLS gets nothing."""
    registry.wants, registry.realm = "bearer", f"http://{registry.host}/token"
    log_in(tmp_path, registry.host, auth=SECRET)
    assert look_up_image(image(registry), "amd64").state is ImageAvailability.REFUSED
    assert len(registry.asked) == 1


@pytest.mark.parametrize(
    ("status", "state"), [(307, "PRESENT"), (403, "REFUSED"), (429, "UNREACHABLE"), (503, "UNREACHABLE")]
)
def test_other_answers(registry: Registry, status: int, state: str) -> None:
    """A redirect is not followed; an overloaded registry says nothing about the image."""
    registry.status = status
    answer = look_up_image(image(registry), "amd64")
    assert answer.state is ImageAvailability[state]
    assert f"HTTP {status}" in answer.evidence


def test_silent_server_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A firewall that drops packets must not hold a plan for minutes."""
    monkeypatch.setattr(client, "SECONDS", 0.4)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        answer = look_up_image(f"localhost:{silent.getsockname()[1]}/nvidia/driver:{TAG}", "amd64")
    assert answer.state is ImageAvailability.UNREACHABLE


def test_name_that_does_not_resolve_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """No time-out of a socket bounds name resolution."""
    monkeypatch.setattr(client, "SECONDS", 0.2)
    is_over, ended = threading.Event(), threading.Event()

    def hangs(*_: object, **__: object) -> None:
        is_over.wait(20)
        ended.set()
        raise OSError

    monkeypatch.setattr(socket, "getaddrinfo", hangs)
    answer = look_up_image(f"registry.invalid/nvidia/driver:{TAG}", "amd64")
    assert (answer.state, ended.is_set()) == (ImageAvailability.UNREACHABLE, False)
    is_over.set()


ODD, MANIFESTS = [*DATA["odd"], "1" * 5000, "[" * 100_000], DATA["manifests"]
INDEXES = [*ODD, *(f'{{"manifests": {each}}}' for each in (*MANIFESTS, *ODD[:-1]))]
INDEXES += [f'{{"manifests": [{{"platform": {each}}}, {{}}]}}' for each in DATA["platforms"]]


@pytest.mark.parametrize("content", INDEXES)
def test_index_of_any_shape_names_no_platform(registry: Registry, content: str) -> None:
    """It is there, which is all that it tells."""
    registry.images[f"nvidia/driver:{TAG}"] = ["arm64"]
    registry.content = content
    assert look_up_image(image(registry), "amd64").state is ImageAvailability.PRESENT


@pytest.mark.parametrize("content", [*ODD, *(f'{{"token": {each}}}' for each in DATA["tokens"])])
def test_a_malformed_token_grants_nothing(registry: Registry, content: str) -> None:
    """One that no header can hold is not shown either."""
    registry.wants = "bearer"
    registry.content = content
    answer = look_up_image(image(registry), "amd64")
    assert answer.state in {ImageAvailability.REFUSED, ImageAvailability.UNREACHABLE}
    assert "Bearer" not in answer.evidence


@pytest.mark.parametrize("content", [*ODD, *(f'{{"errors": {each}}}' for each in (*MANIFESTS, *ODD[:-1]))])
def test_a_malformed_error_is_reported_by_its_status(content: str) -> None:
    """The answer to a GET of an index that has gone since the HEAD."""
    assert client._reason(client._Response(404, Message(), content.encode())) == ""


@pytest.mark.parametrize(
    "realm", ["https://[", "https://a b/", "https://x:y/", "https://\u00e9.invalid/\u00e9", "https://"]
)
def test_realm_of_any_shape_is_no_crash(registry: Registry, realm: str) -> None:
    registry.wants, registry.realm = "bearer", realm
    assert look_up_image(image(registry), "amd64").state is ImageAvailability.UNREACHABLE


def test_untrusted_certificate(registry: Registry, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing is asked of a server that cannot prove who it is."""
    (tmp_path / "none.pem").write_text("")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "none.pem"))
    answer = look_up_image(image(registry), "amd64")
    assert answer.state is ImageAvailability.UNREACHABLE
    assert "CERTIFICATE_VERIFY_FAILED" in answer.evidence
    assert not registry.asked
