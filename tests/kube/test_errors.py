"""What an API server's answers mean: the right class, and words that lead to the cause."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gpu_provision.kube.errors import (
    AlreadyExistsError,
    ConflictError,
    EvictionBlockedError,
    ExpiredError,
    FieldConflictError,
    LogUnavailableError,
    NotFoundError,
    RequestContext,
    UnavailableError,
    WebhookError,
    map_api_errors,
)
from gpu_provision.model.findings import ForbiddenError, InvalidError, ProvisionError

PLACE = RequestContext("https://api:6443", "PATCH", "DaemonSet ns/driver")


def raised(
    code: int, headers: dict[str, str] | None = None, *, place: RequestContext = PLACE, **status: Any
) -> ProvisionError:
    """What an answer of the API server becomes."""
    from kubernetes.client.exceptions import ApiException  # noqa: PLC0415 (slow to import)

    error = ApiException(status=code, reason="Reason")
    error.body, error.headers = json.dumps(status), headers
    with pytest.raises(ProvisionError) as caught, map_api_errors(place):
        raise error
    return caught.value


LOG = RequestContext("https://api:6443", "GET", "log of Pod ns/a")
BUDGETS = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
_WEBHOOK = 'Internal error occurred: failed calling {}webhook "p.example.com": connection refused'
_KUBELET = (
    'Get "https://10.0.0.5:10250/containerLogs/operands/pod/main?tailLines=50": x509: unknown authority',
    'no preferred addresses found; known addresses: [{InternalIP ""}]',
    'Get "https://10.0.0.5:10250/": dial tcp 10.0.0.5:10250: connect: connection refused',
    "No agent available",
)
_NOT_ADMITTED = (
    'pods "p" is forbidden: violates PodSecurity "baseline:latest": host namespaces',
    'pods "p" is forbidden: exceeded quota: gpus, requested: nvidia.com/gpu=1',
    'admission webhook "policy.example.com" denied the request: no privileged pods',
    "unable to create new content in namespace x because it is being terminated",
)
_NO_RIGHT = (
    "",
    'nodes is forbidden: User "bob" cannot list resource "nodes" in API group ""',
    'configmaps "c" is forbidden: ',
)
_TYPED = "failed to create typed patch object (a/b; apps/v1, Kind=DaemonSet): .spec.x: not declared"
_RESTORED = "Timeout: Too large resource version: 900, current: 17"

ANSWERS: list[tuple[int, dict[str, Any], type[ProvisionError], str]] = [
    (401, {}, ForbiddenError, "GP302"),
    (403, {}, ForbiddenError, "GP303"),
    *((403, {"message": message}, ForbiddenError, "GP303") for message in _NO_RIGHT),
    *((403, {"message": message}, InvalidError, "GP305") for message in _NOT_ADMITTED),
    (404, {}, NotFoundError, "GP305"),
    (409, {"reason": "AlreadyExists"}, AlreadyExistsError, "GP305"),
    (409, {"reason": "Conflict"}, ConflictError, "GP305"),
    (410, {}, ExpiredError, "GP305"),
    (422, {"message": "spec.template: Required value"}, InvalidError, "GP305"),
    *((code, {}, UnavailableError, "GP301") for code in (429, 500, 502, 503, 504)),
    (500, {"message": _TYPED}, InvalidError, "GP305"),
    (500, {"message": BUDGETS}, EvictionBlockedError, "GP305"),
    *((500, {"message": _WEBHOOK.format(kind)}, WebhookError, "GP305") for kind in ("", "admission ")),
    (504, {"reason": "Timeout", "message": _RESTORED}, ExpiredError, "GP305"),
]


@pytest.mark.parametrize(("code", "status", "kind", "finding"), ANSWERS)
def test_answer_has_a_class_and_a_code(
    code: int, status: dict[str, Any], kind: type[ProvisionError], finding: str
) -> None:
    """What the cluster's rules forbid is not told as a missing permission of the user."""
    error = raised(code, **status)
    assert type(error) is kind
    assert error.findings[0].code == finding
    assert status.get("message", "") in error.findings[0].evidence
    assert error.findings[0].where
    assert kind is not WebhookError or error.findings[0].what == "the admission webhook p.example.com fails"


@pytest.mark.parametrize("message", _KUBELET)
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


DATE = "Fri, 20 Nov 2026 08:00:00 GMT"


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("7", 7.0),
        ("0", 0.0),
        ("Fri, 20 Nov 2026 08:00:09 GMT", 9.0),
        ("Fri, 20 Nov 2026 07:00:00 GMT", 0.0),
        ("Fri, 20 Nov 2026 08:00:09 -0000", 0.0),
        ("soon", 0.0),
        ("-3", 0.0),
        ("9" * 4000, 999_999_999.0),
        (None, 0.0),
    ],
)
def test_the_server_says_when_to_come_back(header: str | None, seconds: float) -> None:
    error = raised(429, {"Date": DATE} | ({"Retry-After": header} if header else {}))
    assert isinstance(error, UnavailableError)
    assert error.retry_after == pytest.approx(seconds)
