"""Pods are admitted by the first constraint that their account or creator may use, or refused as OpenShift does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpu_provision.sandbox.api import ApiError
from tests import data_file
from tests.sandbox.openshift.conftest import OpenShift, use_binding

CASES = data_file.document(Path(__file__).with_suffix(".yaml").read_text())
ACCOUNT, ADMIN = "system:serviceaccount:default:default", "sandbox-admin"
SCC = "openshift.io/scc"
GROUP = "security.openshift.io"


def constraint(name: str, **changes: Any) -> dict[str, Any]:
    flags = ("HostDirVolumePlugin", "HostIPC", "HostNetwork", "HostPID", "HostPorts", "PrivilegedContainer")
    closed = {f"allow{flag}": False for flag in flags} | {"readOnlyRootFilesystem": False, "volumes": ["configMap"]}
    kinds = ("fsGroup", "runAsUser", "seLinuxContext", "supplementalGroups")
    strategies = {kind: {"type": "RunAsAny"} for kind in kinds}
    head = {"apiVersion": f"{GROUP}/v1", "kind": "SecurityContextConstraints", "metadata": {"name": name}}
    return {**head, **closed, **strategies, **changes}


@pytest.mark.parametrize("case", CASES["refused"], ids=lambda case: case["name"])
def test_what_restricted_v2_does_not_allow_is_named(openshift: OpenShift, case: dict[str, Any]) -> None:
    with pytest.raises(ApiError) as refused:
        openshift.pod(case["pod"])
    assert (refused.value.code, refused.value.reason) == (403, "Forbidden")
    head = 'pods "app-" is forbidden: unable to validate against any security context constraint: ['
    assert refused.value.message.startswith(head)
    for text in case["says"]:
        assert text in refused.value.message


def test_a_refusal_names_constraints_in_their_order(openshift: OpenShift) -> None:
    """By priority, then from the most restrictive to the least; problems stand where their constraint was tried."""
    with pytest.raises(ApiError) as refused:
        openshift.pod({"container": {"securityContext": {"privileged": True}}})
    parts = refused.value.message.partition("constraint: [")[2].removesuffix("]").split(", provider ")
    assert [part.removeprefix("provider ").split(":")[0].strip('"') for part in parts] == [
        "anyuid",
        "restricted-v2",
        "restricted",
        "nonroot-v2",
        "nonroot",
        "hostmount-anyuid",
        "hostnetwork-v2",
        "hostnetwork",
        "hostaccess",
        "privileged",
    ]
    assert refused.value.message.endswith('provider "privileged": Forbidden: not usable by user or serviceaccount]')


@pytest.mark.parametrize("case", CASES["admitted"], ids=lambda case: case["name"])
def test_an_account_gets_the_first_constraint_that_fits(openshift: OpenShift, case: dict[str, Any]) -> None:
    for name in case["may_use"]:
        openshift.submit(use_binding(name))
    assert openshift.pod(case["pod"])["metadata"]["annotations"][SCC] == case["gets"]


def test_restricted_v2_fills_what_a_pod_leaves_open(openshift: OpenShift) -> None:
    """Users, groups and level are of the namespace; capabilities are dropped."""
    made = openshift.pod({})
    namespace = openshift.store.get("/namespaces", "default")
    assert namespace is not None
    ranges = namespace.object["metadata"]["annotations"]
    first = int(ranges["openshift.io/sa.scc.uid-range"].partition("/")[0])
    own = made["spec"]["containers"][0]["securityContext"]
    assert own == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "runAsNonRoot": True,
        "runAsUser": first,
    }
    assert made["spec"]["securityContext"] == {
        "fsGroup": first,
        "seLinuxOptions": {"level": ranges["openshift.io/sa.scc.mcs"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert made["metadata"]["annotations"] == {
        SCC: "restricted-v2",
        "security.openshift.io/validated-scc-subject-type": "serviceaccount",
    }


def test_an_administrators_own_pod_gets_anyuid(openshift: OpenShift) -> None:
    """The creator's rights count beside the account's; those of a DaemonSet's author do not."""
    made = openshift.pod({"container": {"securityContext": {"runAsUser": 0}}}, user=ADMIN)
    assert made["metadata"]["annotations"][SCC] == "anyuid"
    assert made["metadata"]["annotations"]["security.openshift.io/validated-scc-subject-type"] == "user"
    privileged = {"container": {"securityContext": {"privileged": True}}}
    assert openshift.pod(privileged, user=ADMIN)["metadata"]["annotations"][SCC] == "privileged"
    with pytest.raises(ApiError):
        openshift.pod(privileged, user="bob")


def test_users_of_a_constraint_need_no_role(openshift: OpenShift) -> None:
    openshift.submit(constraint("own", users=[ACCOUNT], allowPrivilegedContainer=True))
    made = openshift.pod({"container": {"securityContext": {"privileged": True}}})
    assert made["metadata"]["annotations"][SCC] == "own"


def test_a_pod_can_require_its_constraint(openshift: OpenShift) -> None:
    """Then no other one is tried."""
    openshift.submit(constraint("own", groups=["system:serviceaccounts"]))
    required = {"metadata": {"annotations": {"openshift.io/required-scc": "own"}}}
    assert openshift.pod(required)["metadata"]["annotations"][SCC] == "own"
    with pytest.raises(ApiError) as refused:
        openshift.pod({**required, "spec": {"hostPID": True}})
    assert "provider restricted-v2" not in refused.value.message


def test_the_volume_of_a_token_counts(openshift: OpenShift) -> None:
    """A real server has added it to the pod before constraints are tried."""
    openshift.submit(constraint("own", priority=20, users=[ACCOUNT]))
    own = {"spec": {"automountServiceAccountToken": False}}
    assert openshift.pod(own)["metadata"]["annotations"][SCC] == "own"
    with_token = {"spec": {"automountServiceAccountToken": True}}
    assert openshift.pod(with_token)["metadata"]["annotations"][SCC] == "restricted-v2"


def test_namespaces_have_ranges_of_their_own(openshift: OpenShift) -> None:
    openshift.submit({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "other"}})
    found = [openshift.store.get("/namespaces", name) for name in ("default", "other")]
    ranges = [item.object["metadata"]["annotations"]["openshift.io/sa.scc.uid-range"] for item in found if item]
    assert len(set(ranges)) == 2
    assert all(each.endswith("/10000") for each in ranges)
