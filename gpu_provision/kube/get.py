"""One GET request, for readers that share nothing with the client that runs are made of."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from gpu_provision.kube.errors import RequestContext, map_api_errors
from gpu_provision.kube.retry import RETRIED, Retries

_ADVICE = "check that the cluster runs and that this machine may reach it: kubectl version"
_SECONDS = (5, 30)  # to connect, to read


def get(api: Any, path: str, query: Mapping[str, str], *, accept: str, retry_seconds: float) -> bytes:
    """Return what an API server has at a path.

    Args:
        api: A ``kubernetes.client.ApiClient``.
        accept: Media type, such as ``application/json``.
        retry_seconds: For how long the request is repeated if it fails.

    Raises:
        Unreachable, Refused, Rejected: As the API server answers.
    """
    retries = Retries(retry_seconds)
    while True:
        try:
            return _get_once(api, path, query, accept)
        except RETRIED as error:
            delay = retries.delay(error, time.monotonic())
            if delay is None:
                raise
            time.sleep(delay)


def _get_once(api: Any, path: str, query: Mapping[str, str], accept: str) -> bytes:
    from kubernetes.dynamic import DynamicClient

    client = DynamicClient(api, discoverer=lambda _client, _cache: None)
    with map_api_errors(RequestContext(api.configuration.host, "GET", path, _ADVICE)):
        response = client.request(
            "get",
            path,
            query_params=list(query.items()),
            header_params={"Accept": accept},
            serialize=False,
            _request_timeout=_SECONDS,
        )
        data: bytes = response.data
    return data
