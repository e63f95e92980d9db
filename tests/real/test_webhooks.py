"""Admission webhooks of a real API server, which the sandbox's server does not call."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from gpu_provision.kube import retry
from gpu_provision.kube.client import KubeClient, connect
from gpu_provision.kube.errors import WebhookError
from gpu_provision.model.cluster import Manifest, ref_of
from tests.kube.conftest import config_map
from tests.real.control_plane import control_plane, missing

pytestmark = pytest.mark.real

_NAME = "policy.example.com"
_HOOK = {
    "name": _NAME,
    "admissionReviewVersions": ["v1"],
    "sideEffects": "None",
    "failurePolicy": "Fail",
    "timeoutSeconds": 2,
    "clientConfig": {"url": "https://127.0.0.1:1/"},
    "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]}],
}


def _create_until_refused(cluster: KubeClient, manifest: Manifest) -> None:
    """The server calls its webhooks a moment after they are there."""
    while cluster.create(manifest):
        cluster.delete(ref_of(manifest))


def test_a_webhook_that_does_not_answer_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Within seconds: not as an overloaded server, after a minute."""
    if reason := missing():
        pytest.skip(reason)
    with control_plane(tmp_path / "plane") as plane, caplog.at_level(logging.DEBUG, "gpu_provision.kube"):
        cluster = connect(str(plane.kubeconfig))
        kind = "ValidatingWebhookConfiguration"
        hook = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": {"name": "policy"}}
        path = f"/apis/admissionregistration.k8s.io/v1/{kind.lower()}s"
        cluster._json("POST", path, kind, body={**hook, "webhooks": [_HOOK]})
        manifest = config_map("refused")
        with pytest.raises(WebhookError) as caught:
            _create_until_refused(cluster, manifest)
        assert f"the admission webhook {_NAME} fails" in str(caught.value)
        assert "kubectl get validatingwebhookconfigurations" in str(caught.value)
        assert cluster.retries < retry._WEBHOOK_SECONDS * 20
