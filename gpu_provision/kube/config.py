"""From an inventory, a kubeconfig or a pod's service account to a client of the ``kubernetes`` package.

Kubeconfigs are read here: files merged, and of a context its cluster and user, as entries that know their place. No
message quotes a value: any may be secret, also one that stands in the wrong place.
"""

from __future__ import annotations

import base64
import json
import math
import os
import re
import ssl
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import yaml

from gpu_provision.kube.credentials import (
    VERSIONS,
    Credential,
    Login,
    MemoryFile,
    Plugin,
    Transport,
    credential_of,
    is_sendable,
    problem_of_pair,
)
from gpu_provision.kube.errors import bad_kubeconfig
from gpu_provision.model.findings import UsageError

_LIST, _MAPPING = "it must be a list", "it must be a mapping"
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # C is ten times faster; not every wheel has it
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Entry:
    """A mapping of a kubeconfig.

    Attributes:
        file: The kubeconfig that has it; relative paths begin at its folder.
        place: Where it stands there, such as ``users[ada].user``.
    """

    file: Path
    place: str
    data: Mapping[str, Any] = field(repr=False)

    def bad(self, key: str, reason: str) -> UsageError:
        """Return the error for a value that cannot be used. It is not quoted, as it may be secret."""
        return bad_kubeconfig(f"{self.file}: {self.place}.{key}".replace(": .", ": "), "", reason)

    def text(self, key: str) -> str:
        """Return a text; empty for none."""
        return self._typed(key, str, "it must be text; put it in quotes")

    def flag(self, key: str) -> bool:
        """Return whether a flag is set."""
        return self._typed(key, bool, "it must be true or false")

    def texts(self, key: str) -> tuple[str, ...]:
        """Return a list of texts."""
        items = self._typed(key, list, _LIST)
        if all(isinstance(item, str) for item in items):
            return tuple(items)
        raise self.bad(key=key, reason="it must be a list of texts; put each in quotes")

    def part(self, key: str) -> Entry:
        """Return the mapping that a key holds."""
        return Entry(self.file, f"{self.place}.{key}", self._typed(key, dict, _MAPPING))

    def parts(self, key: str) -> Iterator[Entry]:
        """Yield the mappings of the list that a key holds."""
        for number, item in enumerate(self._typed(key, list, _LIST)):
            place = f"{self.place}.{key}[{number}]".removeprefix(".")
            if not isinstance(item, dict):
                raise bad_kubeconfig(path=f"{self.file}: {place}", context="", reason=_MAPPING)
            yield Entry(self.file, place, item)

    def _typed(self, key: str, kind: type[_T], reason: str) -> _T:
        value = self.data.get(key)
        if value is None:
            return kind()
        if isinstance(value, kind):
            return value
        raise self.bad(key=key, reason=reason)

    def content(self, key: str) -> bytes:
        """Return what KEY-data holds in base64, else what the file has that KEY names; empty without both."""
        if encoded := self.text(f"{key}-data"):
            try:
                return base64.b64decode("".join(encoded.split()), validate=True)
            except ValueError:
                raise self.bad(key=f"{key}-data", reason="it is not base64") from None
        return self.read(key) if self.text(key) else b""

    def read(self, key: str) -> bytes:
        """Return what is in the file that a key names."""
        path = self.file.parent / self.text(key)
        try:
            return path.read_bytes()
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", "") or "no file can have this name"
            raise self.bad(key=key, reason=f"{path} cannot be read: {reason}") from error


@dataclass(frozen=True, slots=True)
class Chosen:
    """A context with its cluster and user."""

    name: str
    cluster: Entry
    user: Entry
    user_name: str


def default_files() -> list[Path]:
    """Return those of the default kubeconfigs that exist."""
    places = (os.environ.get("KUBECONFIG") or "~/.kube/config").split(os.pathsep)
    return [path for path in (Path(place).expanduser() for place in places if place) if path.exists()]


def choose(kubeconfig: str, context: str) -> Chosen:
    """Return a context. Of several files the first one that names an entry, or a current context, decides."""
    files = [Path(kubeconfig)] if kubeconfig else default_files()
    where = os.pathsep.join(map(str, files)) or "the default kubeconfig"
    if not files:
        raise bad_kubeconfig(where, context, "there is no such file")
    roots = [_root(file) for file in files]
    name = context or next(filter(None, (root.text("current-context") for root in roots)), "")
    if not name:
        raise bad_kubeconfig(where, "", "it has no current-context")
    found = _named(roots, "context", name)
    if found is None:
        raise bad_kubeconfig(where, name, "there is no such context")
    cluster, user = (_referred(roots, found, kind) for kind in ("cluster", "user"))
    return Chosen(name, cluster, user, found.text("user"))


def _root(file: Path) -> Entry:
    try:
        document = yaml.load(file.read_text(encoding="utf-8-sig"), Loader=_LOADER)  # noqa: S506 - a safe loader
    except OSError as error:
        raise bad_kubeconfig(str(file), "", error.strerror or "it cannot be read") from error
    except UnicodeDecodeError:
        raise bad_kubeconfig(str(file), "", "it is not UTF-8") from None
    except (yaml.YAMLError, *_ODD_SCALARS) as error:  # whose texts quote the file
        mark = getattr(error, "problem_mark", None)
        raise bad_kubeconfig(f"{file}:{mark.line + 1}" if mark else str(file), "", "it is not YAML") from None
    if not isinstance(document, dict):
        raise bad_kubeconfig(str(file), "", "it holds no mapping")
    return Entry(file, "", document)


# What PyYAML raises of texts such as !!int x, !!bool x, !!timestamp x, and a thousand brackets.
_ODD_SCALARS = (ValueError, KeyError, AttributeError, TypeError, OverflowError, RecursionError)


def _named(roots: Iterable[Entry], kind: str, name: str) -> Entry | None:
    """Return what stands under a name in the list of a kind, such as ``user``."""
    for root in roots:
        for entry in root.parts(f"{kind}s"):
            if entry.text("name") == name:
                return Entry(root.file, f"{kind}s[{name}]", {kind: entry.data.get(kind)}).part(kind)
    return None


def _referred(roots: Iterable[Entry], context: Entry, kind: str) -> Entry:
    """Return the cluster or user of a context; a context need not have a user."""
    name = context.text(kind)
    found = _named(roots, kind, name) if name else None
    if found is not None:
        return found
    if name or kind == "cluster":
        raise context.bad(key=kind, reason=f"there is no such {kind}")
    return Entry(context.file, context.place, {})


_CONNECTIONS = 24
_TOKEN_SECONDS = 60  # after which a tokenFile is read again, as by kubectl
_TOKEN = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")


def api_client(kubeconfig: str = "", context: str = "") -> Any:
    """Return the ``kubernetes.client.ApiClient`` that a kubeconfig names; nothing is sent yet.

    A credential plugin runs, and runs again before its credential ends and when the server refuses it.

    Args:
        kubeconfig: Path; empty for $KUBECONFIG, else ~/.kube/config, else the pod's service account.
        context: Name of the context; empty for the current one.

    Raises UsageError for a file or context that cannot be used, CredentialPluginError if the plugin fails.
    """
    from kubernetes import client

    settings = client.Configuration()
    settings.keep_alive = True  # a connection that died silently is noticed within minutes
    settings.retries = False  # the caller owns the retries
    settings.connection_pool_maxsize = _CONNECTIONS
    if not kubeconfig and not context and not default_files() and _TOKEN.exists():
        files: list[MemoryFile] = []
        login = _account(settings)
    else:
        chosen = choose(kubeconfig, context)
        files = _secure(settings, chosen)
        login = _login(chosen)
    if authorization := login.credential().authorization:
        # Websockets ask the settings for it, requests the transport.
        settings.api_key["BearerToken"] = authorization
        settings.refresh_api_key_hook = lambda own: own.api_key.update(BearerToken=login.credential().authorization)
    api = client.ApiClient(settings)
    api.rest_client = Transport(settings, login, files)
    api.user_agent = "gpu-provision"
    return api


def names(kubeconfig: str, context: str) -> tuple[str, str]:
    """Return the name of the context, by default of the current one, and that of its user; empty if there is none."""
    try:
        chosen = choose(kubeconfig, context)
    except UsageError:
        return "", ""
    return chosen.name, chosen.user_name


def _account(settings: Any) -> Login:
    """Return the login of the pod's service account, and let the settings name the API server."""
    from kubernetes import config

    try:
        config.load_incluster_config(client_configuration=settings, try_refresh_token=False)
    except (config.ConfigException, OSError, ValueError) as error:
        raise bad_kubeconfig(path="the pod's service account", context="", reason=error) from error
    account = Entry(_TOKEN, "the pod's service account", {"tokenFile": _TOKEN.name})
    return Login(partial(_token_of_file, account))


def _secure(settings: Any, chosen: Chosen) -> list[MemoryFile]:
    """Let settings name the API server and what TLS needs; return the files to keep as long as they are used."""
    cluster, user = chosen.cluster, chosen.user
    settings.host = _url(cluster, "server", _SERVERS).rstrip("/")
    settings.verify_ssl = not cluster.flag("insecure-skip-tls-verify")
    settings.tls_server_name = cluster.text("tls-server-name") or None
    if cluster.data.get("proxy-url") is not None:
        settings.proxy = _url(cluster, "proxy-url", _PROXIES)
    if not settings.verify_ssl:
        _ignore_warnings(settings.host)
    files: list[MemoryFile] = []
    if authority := cluster.content(_AUTHORITY):
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=authority.decode("ascii"))
        except (ssl.SSLError, ValueError):
            raise cluster.bad(key=_AUTHORITY, reason="it is no certificate in PEM") from None
        settings.ssl_ca_cert = _path(cluster, _AUTHORITY, authority, files)
    certificate, key = user.content(_CERTIFICATE), user.content(_KEY)
    if certificate or key:
        if problem := problem_of_pair(certificate, key):
            raise user.bad(key=_CERTIFICATE, reason=f"it and {_KEY} are {problem}")
        settings.cert_file = _path(user, _CERTIFICATE, certificate, files)
        settings.key_file = _path(user, _KEY, key, files) if key else None
    return files


_SERVERS, _PROXIES = ("https", "http"), ("http", "https", "socks5", "socks5h")
_AUTHORITY, _CERTIFICATE, _KEY = "certificate-authority", "client-certificate", "client-key"


def _url(entry: Entry, key: str, schemes: tuple[str, ...]) -> str:
    from urllib3.exceptions import LocationParseError
    from urllib3.util import parse_url

    text = entry.text(key)
    try:
        url = parse_url(text)
    except LocationParseError:
        raise entry.bad(key=key, reason="it is not a URL") from None
    if url.scheme not in schemes or not url.host:
        raise entry.bad(key=key, reason=f"it must be a URL that begins with {schemes[0]}://")
    if url.scheme.startswith("socks") and not find_spec("socks"):
        raise entry.bad(key=key, reason="a SOCKS proxy needs the package PySocks: pip install PySocks")
    return text


def _ignore_warnings(server: str) -> None:
    """Silence urllib3's warning of each request to a server that is not verified: finding GP313 says it once."""
    from urllib3.exceptions import InsecureRequestWarning
    from urllib3.util import parse_url

    host = (parse_url(server).host or "").strip("[]")
    message = re.escape(f"Unverified HTTPS request is being made to host '{host}'")
    warnings.filterwarnings("ignore", message, InsecureRequestWarning)


def _path(entry: Entry, key: str, content: bytes, files: list[MemoryFile]) -> str:
    """Return where to read what an entry has: a file of the user's, which may change, or one in memory."""
    if not entry.text(f"{key}-data"):
        return str(entry.file.parent / entry.text(key))
    files.append(MemoryFile(content))
    return files[-1].path


def _login(chosen: Chosen) -> Login:
    """Return the login of a user, by the first of its ways in the order of kubectl."""
    user = chosen.user
    if token := user.text("token"):
        return Login(lambda: _bearer(user, "token", token))
    if user.text("tokenFile"):
        return Login(partial(_token_of_file, user))
    if user.data.get("exec") is not None:
        return Login(partial(credential_of, _plugin(chosen)))
    if user.data.get("auth-provider") is not None:
        return Login(partial(_id_token, user))
    if name := user.text("username"):
        pair = base64.b64encode(f"{name}:{user.text('password')}".encode(errors="surrogateescape")).decode()
        return Login(lambda: Credential(authorization=f"Basic {pair}"))
    return Login(Credential)


def _id_token(user: Entry) -> Credential:
    """Return the token that kubectl keeps for OpenID Connect, until its end.

    Renewing it is kubectl's: the library does so over a connection that it does not verify.
    """
    provider = user.part("auth-provider")
    if provider.text("name") != "oidc":
        raise user.bad(key="auth-provider", reason=_REMOVED)
    token = provider.part("config").text("id-token")
    credential = _bearer(provider, "config.id-token", token)
    try:
        claims = json.loads(base64.urlsafe_b64decode(f"{token.split('.')[1]}=="))
        has_expired = float(claims["exp"]) <= time.time()
    except (ValueError, IndexError, TypeError, KeyError, OverflowError, RecursionError):
        return credential  # no JSON web token, or one that does not say when it ends
    if has_expired:
        raise provider.bad(key="config.id-token", reason="the token has expired; kubectl version renews it")
    return credential


_REMOVED = (
    "Kubernetes 1.26 removed the authentication providers of clouds; name a credential plugin instead (exec), such as"
    " gke-gcloud-auth-plugin or kubelogin"
)


def _bearer(user: Entry, key: str, token: str, *, renewal: float = math.inf) -> Credential:
    if not is_sendable(token):
        raise user.bad(key=key, reason="it is empty, or holds characters that no token may hold")
    return Credential(authorization=f"Bearer {token}", renewal=renewal)


def _token_of_file(user: Entry) -> Credential:
    token = user.read("tokenFile").decode(errors="replace").strip()
    return _bearer(user, "tokenFile", token, renewal=time.time() + _TOKEN_SECONDS)


def _plugin(chosen: Chosen) -> Plugin:
    entry = chosen.user.part("exec")
    command, version = entry.text("command"), entry.text("apiVersion")
    if not command:
        raise entry.bad(key="command", reason="it is missing")
    if version not in VERSIONS:
        raise entry.bad(key="apiVersion", reason=f"it must be one of {', '.join(VERSIONS)}")
    mode = entry.text("interactiveMode") or "IfAvailable"
    if mode not in {"Never", "IfAvailable", "Always"}:
        raise entry.bad(key="interactiveMode", reason="it must be Never, IfAvailable or Always")
    env: dict[str, str] = {}
    for variable in entry.parts("env"):
        if not variable.text("name"):
            raise variable.bad(key="name", reason="it is missing")
        env[variable.text("name")] = variable.text("value")
    return Plugin(
        where=f"{entry.file}: {entry.place}",
        command=str(entry.file.parent / command) if os.sep in command else command,
        api_version=version,
        args=entry.texts("args"),
        env=env,
        cluster=_information(chosen.cluster) if entry.flag("provideClusterInfo") else None,
        mode=mode,
        hint=entry.text("installHint"),
    )


def _information(cluster: Entry) -> dict[str, Any]:
    """Return what a plugin learns of the cluster."""
    told: dict[str, Any] = {key: cluster.text(key) for key in ("server", "tls-server-name", "proxy-url")}
    told["insecure-skip-tls-verify"] = cluster.flag("insecure-skip-tls-verify")
    told["certificate-authority-data"] = base64.b64encode(cluster.content(_AUTHORITY)).decode()
    own = (item for item in cluster.parts("extensions") if item.text("name") == "client.authentication.k8s.io/exec")
    told["config"] = next((item.data.get("extension") for item in own), None)
    return {key: value for key, value in told.items() if value}
