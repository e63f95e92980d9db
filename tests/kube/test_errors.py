"""What an API server's answers mean: the right class, and words that lead to the cause."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpu_provision.kube.errors import (
    FieldConflictError,
    LogUnavailableError,
    RequestContext,
    UnavailableError,
    WebhookError,
    map_api_errors,
)
from gpu_provision.model.findings import ProvisionError
from tests import data_file

PLACE = RequestContext("https://api:6443", "PATCH", "DaemonSet ns/driver")


def raised(
    code: int, headers: dict[str, str] | None = None, *, place: RequestContext = PLACE, **status: Any
) -> ProvisionError:
    from kubernetes.client.exceptions import ApiException  # noqa: PLC0415 (slow to import)

    error = ApiException(status=code, reason="Reason")
    error.body, error.headers = json.dumps(status), headers
    with pytest.raises(ProvisionError) as caught, map_api_errors(place):
        raise error
    return caught.value


LOG = RequestContext("https://api:6443", "GET", "log of Pod ns/a")
DATA = data_file.document(Path(__file__).with_suffix(".yaml").read_text())


@pytest.mark.parametrize("answer", DATA["answers"], ids=lambda answer: f"{answer['code']} {answer['status']}"[:60])
def test_answer_has_a_class_and_a_code(answer: dict[str, Any]) -> None:
    """What the cluster's rules forbid is not told as a missing permission of the user."""
    error = raised(answer["code"], **answer["status"])
    assert (type(error).__name__, error.findings[0].code) == (answer["error"], answer["finding"])
    assert answer["status"].get("message", "") in error.findings[0].evidence
    assert error.findings[0].where
    assert not isinstance(error, WebhookError) or error.findings[0].what == "the admission webhook p.example.com fails"


@pytest.mark.parametrize("message", DATA["kubelet"])
@pytest.mark.parametrize("code", [500, 502, 504])
def test_kubelet_without_its_logs_is_no_overloaded_server(code: int, message: str) -> None:
    """Waiting does not help: certificates, firewalls and tunnels to nodes stay as they are."""
    error = raised(code, place=LOG, message=message)
    assert type(error) is LogUnavailableError
    assert "10250" in error.findings[0].fix


def test_a_conflict_names_fields_and_managers() -> None:
    causes = [
        {"reason": "FieldManagerConflict", "message": 'conflict with "helm" using v1', "field": ".spec.replicas"},
        {"reason": "FieldManagerConflict", "message": 'conflict with "kubectl-edit"', "field": ".data.a"},
    ]
    error = raised(
        409, reason="Conflict", message="Apply failed with 2 conflicts:\n- .spec", details={"causes": causes}
    )
    assert isinstance(error, FieldConflictError)
    assert error.managers == {"helm", "kubectl-edit"}
    assert ".spec.replicas" in error.findings[0].what
    assert error.findings[0].evidence == "Apply failed with 2 conflicts:"


@pytest.mark.parametrize(("header", "seconds"), [*DATA["retry_after"].items(), ("9" * 4000, 999_999_999)])
def test_the_server_says_when_to_come_back(header: str, seconds: float) -> None:
    error = raised(429, {"Date": "Fri, 20 Nov 2026 08:00:00 GMT"} | ({"Retry-After": header} if header else {}))
    assert isinstance(error, UnavailableError)
    assert error.retry_after == pytest.approx(seconds)
