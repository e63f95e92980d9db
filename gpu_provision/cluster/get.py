"""One GET request, for readers that shall share nothing with the client that runs are made of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpu_provision.cluster.errors import Place, translated

_ADVICE = "check that the cluster runs and that this machine may reach it: kubectl version"
_SECONDS = (5, 30)  # to connect, to read


def get(api: Any, path: str, query: Mapping[str, str], *, accept: str) -> bytes:
    """Return what an API server has at a path; asked once.

    Args:
        api: A ``kubernetes.client.ApiClient``.
        accept: Media type, such as ``application/json``.

    Raises:
        Unreachable, Refused, Rejected: As the API server answers.
    """
    from kubernetes.dynamic import DynamicClient

    client = DynamicClient(api, discoverer=lambda _client, _cache: None)
    with translated(Place(api.configuration.host, "GET", path, _ADVICE)):
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
