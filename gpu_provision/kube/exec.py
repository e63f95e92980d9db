"""Run a process in a container by the exec subresource; its streams share one websocket.

Source: the API server's channel protocols v4 and v5. A frame's first byte is its channel. Old servers speak v4 alone,
which cannot end stdin, so the reader has to know how much comes.
"""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import urlencode

from gpu_provision.kube.client import KubeClient
from gpu_provision.kube.errors import RequestContext, UnavailableError, map_api_errors
from gpu_provision.kube.transport import READ_SECONDS
from gpu_provision.model.cluster import ObjectRef
from gpu_provision.model.findings import InvalidError, UnreachableError

STDOUT, STDERR = 1, 2
_STDIN, _STATUS = 0, 3
_PROTOCOLS = "v5.channel.k8s.io,v4.channel.k8s.io"
_QUIET_SECONDS = 15  # after which a ping keeps proxies on the way from closing the connection
_FRAME = 32 * 1024

Listen = Callable[[int, bytes], None]  # is called with STDOUT or STDERR, and what came there


def exec_in_pod(  # noqa: PLR0913 - the sides that a process has
    cluster: KubeClient,
    pod: ObjectRef,
    command: Sequence[str],
    *,
    stdin: Sequence[Iterable[bytes]] = (),
    listen: Listen = lambda _channel, _data: None,
    timeout: float | None = None,
) -> int:
    """Run a command in the only container of a pod that runs, and return its exit status.

    Args:
        command: Must hold no secret: it is part of the URL, and so of audit logs.
        stdin: In turns. The first one is sent at once, the next one when the process has written a byte to stdout,
            which is taken off.
        listen: Gets the output as it comes.
        timeout: In seconds.

    Raises:
        TimeoutError: The command has not ended in time; it goes on.
        UnreachableError: The connection was lost; whether the command goes on is not known.
        ForbiddenError, InvalidError: The server, or the container's runtime, does not do it.
    """
    from websocket import WebSocketException

    place = RequestContext(cluster.server, "EXEC", str(pod), cluster.advice)
    give_up = time.monotonic() + timeout if timeout else None
    with _connect(cluster, pod, command, place) as channels:
        try:
            return _conversation(channels, iter(stdin), listen, give_up, place)
        except TimeoutError:
            raise
        except (WebSocketException, OSError) as error:
            what = f"the connection to a running command was lost ({error})"
            unknown = "whether the command goes on, and how it ended, is not known"
            fix = f"run again; if it stays, {place.advice}"
            raise UnreachableError(place.finding("GP301", what, unknown, fix)) from error


@contextmanager
def _connect(cluster: KubeClient, pod: ObjectRef, command: Sequence[str], place: RequestContext) -> Iterator[Any]:
    from kubernetes.stream.ws_client import get_websocket_url, websocket_proxycare
    from websocket import WebSocket

    api = cluster.api
    headers: dict[str, str] = {"user-agent": api.user_agent, "sec-websocket-protocol": _PROTOCOLS}
    path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}/exec"
    api.update_params_for_auth(headers, [], ["BearerToken"], path, "GET", None)
    query = [*(("command", word) for word in command), *((name, "true") for name in ("stdin", "stdout", "stderr"))]
    url = get_websocket_url(f"{api.configuration.host}{path}?{urlencode(query)}")
    settings = api.configuration
    files = {"ca_certs": settings.ssl_ca_cert, "certfile": settings.cert_file, "keyfile": settings.key_file}
    tls = {key: value for key, value in {**files, "server_hostname": settings.tls_server_name}.items() if value}
    tls["cert_reqs"] = ssl.CERT_REQUIRED if settings.verify_ssl else ssl.CERT_NONE
    channels = WebSocket(sslopt=tls, skip_utf8_validation=True)
    options = websocket_proxycare({}, settings, url, headers) if settings.proxy else {}

    def connect(_: float) -> None:
        with map_api_errors(place), _as_api_errors():
            channels.connect(url, header=headers, timeout=READ_SECONDS, **options)

    # After a lost connection the command may have begun: only an answer says that it has not.
    cluster.retry(connect, place, retried=(UnavailableError,))
    try:
        yield channels
    finally:
        channels.shutdown()  # its close() waits for the other side, and leaves a connection that was lost open


@contextmanager
def _as_api_errors() -> Iterator[None]:
    """Turn refusals of the websocket into what the client library raises for others."""
    from kubernetes.client.exceptions import ApiException
    from websocket import WebSocketBadStatusException, WebSocketException

    try:
        yield
    except WebSocketBadStatusException as error:
        answer = ApiException(status=error.status_code, reason=str(error))
        answer.body, answer.headers = error.resp_body, error.resp_headers
        raise answer from error
    except WebSocketException as error:
        raise OSError(str(error)) from error


def _conversation(
    channels: Any, stdin: Iterator[Iterable[bytes]], listen: Listen, give_up: float | None, place: RequestContext
) -> int:
    """Send and receive until the server says how the process ended."""
    _send(channels, next(stdin, ()))
    following = next(stdin, None)
    for channel, data in _frames(channels, give_up):
        if channel == _STATUS:
            return _exit_status(json.loads(data), place)
        said = data
        if channel == STDOUT and following is not None:
            said = data[1:]
            _send(channels, following)
            following = next(stdin, None)
        if said:
            listen(channel, said)
    message = "it was closed"
    raise OSError(message)


def _send(channels: Any, parts: Iterable[bytes]) -> None:
    """Send to stdin. A process that has ended takes no more; how it ended is still to be read."""
    from websocket import WebSocketException

    channels.settimeout(READ_SECONDS)
    with suppress(OSError, WebSocketException):
        for part in parts:
            for start in range(0, len(part), _FRAME):
                channels.send_binary(bytes([_STDIN]) + part[start : start + _FRAME])


def _frames(channels: Any, give_up: float | None) -> Iterator[tuple[int, bytes]]:
    """Yield each frame's channel and data until the connection is closed. Raises TimeoutError at the deadline."""
    from websocket import ABNF, WebSocketTimeoutException

    while True:
        left = _QUIET_SECONDS if give_up is None else min(_QUIET_SECONDS, give_up - time.monotonic())
        if left <= 0:
            raise TimeoutError
        channels.settimeout(left)
        try:
            code, frame = channels.recv_data_frame(control_frame=True)
        except WebSocketTimeoutException:
            channels.ping()
            continue
        if code == ABNF.OPCODE_CLOSE:
            return
        if code in {ABNF.OPCODE_BINARY, ABNF.OPCODE_TEXT} and len(frame.data) > 1:
            yield frame.data[0], frame.data[1:]


def _exit_status(status: dict[str, Any], place: RequestContext) -> int:
    """Return the exit status that a Status object tells. Raises InvalidError if the process was never started."""
    if status.get("status") == "Success":
        return 0
    causes = (status.get("details") or {}).get("causes") or ()
    codes = [int(cause["message"]) for cause in causes if cause.get("reason") == "ExitCode"]
    if codes:
        return codes[0]
    what, said = "the command could not be started in the container", str(status.get("message", ""))
    raise InvalidError(place.finding("GP305", what, said))
