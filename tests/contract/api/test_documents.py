from __future__ import annotations

import pytest

from tests.contract.client import Server


@pytest.mark.parametrize(
    ("size", "code", "reason"), [(4 * 1024 * 1024, 413, "RequestEntityTooLarge"), (1024 * 1024 + 1, 422, "Invalid")]
)
def test_a_configmap_of_more_than_a_megabyte_is_refused(
    server: Server, namespace: str, size: int, code: int, reason: str
) -> None:
    """By validation, and above three megabytes by the limit of the body."""
    big = {"metadata": {"name": "big"}, "data": {"k": "x" * size}}
    answer = server.ask("POST", f"/api/v1/namespaces/{namespace}/configmaps", big)
    assert (answer.code, answer.reason) == (code, reason)
    assert code != 422 or all(text in answer.message for text in ("Too long: ", "1048576"))
