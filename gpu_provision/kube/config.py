"""From an inventory, a kubeconfig, a sandbox or a pod's service account to a client of the ``kubernetes`` package."""

from __future__ import annotations

import base64
import json
import math
import os
import re
import ssl
import time
import warnings
from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

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
from gpu_provision.kube.kubeconfig import Chosen, Entry, choose, default_files
from gpu_provision.model.findings import UsageError
from gpu_provision.model.inventory import Inventory

_CONNECTIONS = 24
_TOKEN_SECONDS = 60  # after which a tokenFile is read again, as by kubectl
_TOKEN = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")


def api_client(kubeconfig: str = "", context: str = "") -> Any:
    """Return the ``kubernetes.client.ApiClient`` that a kubeconfig names; nothing is sent yet.

    A credential plugin runs, and runs again before its credential ends and when the server refuses it.

    Args:
        kubeconfig: Path; empty for $KUBECONFIG, else ~/.kube/config, else the pod's service account.
        context: Name of the context; empty for the current one.

    Raises:
        UsageError: The file or the context cannot be used.
        CredentialPluginError: The credential plugin fails.
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
        _trusted(cluster, authority)
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


def _trusted(cluster: Entry, authority: bytes) -> None:
    """Raise UsageError unless an authority's certificate can be used."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=authority.decode("ascii"))
    except (ssl.SSLError, ValueError):
        raise cluster.bad(key=_AUTHORITY, reason="it is no certificate in PEM") from None


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
    if _end_of(token) <= time.time():
        raise provider.bad(key="config.id-token", reason="the token has expired; kubectl version renews it")
    return credential


_REMOVED = (
    "Kubernetes 1.26 removed the authentication providers of clouds; name a credential plugin instead (exec), such as"
    " gke-gcloud-auth-plugin or kubelogin"
)


def _end_of(token: str) -> float:
    """Return when a JSON web token ends, in seconds since 1970; never, if it does not say so."""
    try:
        claims = json.loads(base64.urlsafe_b64decode(f"{token.split('.')[1]}=="))
        return float(claims["exp"])
    except (ValueError, IndexError, TypeError, KeyError, OverflowError, RecursionError):
        return math.inf


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
    return Plugin(
        where=f"{entry.file}: {entry.place}",
        command=str(entry.file.parent / command) if os.sep in command else command,
        api_version=version,
        args=entry.texts("args"),
        env=dict(_variables(entry)),
        cluster=_information(chosen.cluster) if entry.flag("provideClusterInfo") else None,
        mode=mode,
        hint=entry.text("installHint"),
    )


def _variables(entry: Entry) -> Iterator[tuple[str, str]]:
    for variable in entry.parts("env"):
        if not variable.text("name"):
            raise variable.bad(key="name", reason="it is missing")
        yield variable.text("name"), variable.text("value")


def _information(cluster: Entry) -> dict[str, Any]:
    """Return what a plugin learns of the cluster."""
    told: dict[str, Any] = {key: cluster.text(key) for key in ("server", "tls-server-name", "proxy-url")}
    told["insecure-skip-tls-verify"] = cluster.flag("insecure-skip-tls-verify")
    told["certificate-authority-data"] = base64.b64encode(cluster.content(_AUTHORITY)).decode()
    own = (item for item in cluster.parts("extensions") if item.text("name") == "client.authentication.k8s.io/exec")
    told["config"] = next((item.data.get("extension") for item in own), None)
    return {key: value for key, value in told.items() if value}


def find_context(inventory: Inventory) -> tuple[str, str] | None:
    """Return the same as `locate`, but None for a sandbox that does not run: nothing is started."""
    if not inventory.cluster.sandbox:
        return resolve_context(inventory)
    from gpu_provision.kube import sandbox as door

    sandbox = door.find_running(inventory.cluster.sandbox)
    return (str(sandbox.kubeconfig), sandbox.context) if sandbox else None


def resolve_context(inventory: Inventory) -> tuple[str, str]:
    """Return the kubeconfig's path and the context's name; empty strings mean the user's defaults.

    Raises:
        ProvisionError: The inventory asks for a sandbox, and it cannot be started.
    """
    if not inventory.cluster.sandbox:
        return inventory.cluster.kubeconfig, inventory.cluster.context
    from gpu_provision.kube import sandbox as door

    sandbox = door.start(inventory.cluster.sandbox)
    return str(sandbox.kubeconfig), sandbox.context
