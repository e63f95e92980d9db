"""Constraints on OpenShift admit the pods of their account, and allow nothing that no pod needs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from gpu_provision.components import render_manifests
from gpu_provision.components.security_constraints import constraints, use_constraints
from gpu_provision.model.cluster import Manifest
from tests.components import builders, views

CASES = [case for case, given in builders.CASES.items() if case.startswith("openshift") or "mig" in given["components"]]
_PROFILES = {"RuntimeDefault": "runtime/default", "Unconfined": "unconfined"}


def rendered(case: str) -> list[Manifest]:
    """Return the objects of a case on OpenShift, also of one that is about another cluster."""
    context = builders.case_context(case)
    config = replace(context.inventory.cluster, platform="openshift")
    context = builders.context(replace(context.inventory, cluster=config), context.facts)
    return [item for items in render_manifests(context).values() for item in items]


def pods_of(manifests: list[Manifest], account: str) -> Iterator[Mapping[str, Any]]:
    for item in manifests:
        spec = item.get("spec", {})
        pod = spec if item["kind"] == "Pod" else spec.get("template", {}).get("spec", {})
        if pod.get("serviceAccountName") == account:
            yield pod


def refusals(scc: Manifest, pod: Mapping[str, Any]) -> Iterator[str]:
    """Yield what constraints refuse of a pod, as the admission of OpenShift judges it."""
    kinds = [kind for volume in pod.get("volumes", ()) for kind in volume if kind != "name"]
    kinds += ["projected"] if pod.get("automountServiceAccountToken", True) else []
    yield from (kind for kind in kinds if kind not in scc["volumes"])
    asked = {
        "allowHostNetwork": pod.get("hostNetwork"),
        "allowHostPID": pod.get("hostPID"),
        "allowHostIPC": pod.get("hostIPC"),
        "allowHostDirVolumePlugin": "hostPath" in kinds,
    }
    yield from (key for key, value in asked.items() if value and not scc[key])
    for container in (*pod.get("initContainers", ()), *pod["containers"]):
        yield from _refusals_of_container(scc, pod, container)


def _refusals_of_container(scc: Manifest, pod: Mapping[str, Any], container: Mapping[str, Any]) -> Iterator[str]:
    context = {**pod.get("securityContext", {}), **container.get("securityContext", {})}
    is_privileged, profile = context.get("privileged", False), context.get("seccompProfile", {}).get("type")
    ports = [each for each in container.get("ports", ()) if pod.get("hostNetwork") or each.get("hostPort")]
    asked = {
        "allowHostPorts": ports,
        "allowPrivilegedContainer": is_privileged,
        "allowPrivilegeEscalation": context.get("allowPrivilegeEscalation", True),
    }
    yield from (key for key, value in asked.items() if value and not scc[key])
    yield from {*context.get("capabilities", {}).get("add", ())} - {*scc["allowedCapabilities"]}
    yield from {_PROFILES[profile]} - {*scc.get("seccompProfiles", ())} if profile else ()
    if scc["runAsUser"]["type"] == "MustRunAsNonRoot" and not context.get("runAsNonRoot"):
        yield "runAsUser"
    if scc["seLinuxContext"]["type"] == "MustRunAs" and (is_privileged or "seLinuxOptions" in context):
        yield "seLinuxOptions"


def narrower(scc: Manifest) -> Iterator[tuple[str, Manifest]]:
    """Yield constraints that lack one permission of these."""
    for key, value in scc.items():
        if value is True:
            yield key, {**scc, key: False}
    for key in ("volumes", "allowedCapabilities", "seccompProfiles"):
        for item in scc.get(key, ()):
            yield item, {**scc, key: [each for each in scc[key] if each != item]}
    if scc["runAsUser"]["type"] == "RunAsAny":
        yield "runAsUser", {**scc, "runAsUser": {"type": "MustRunAsNonRoot"}}
    if scc["seLinuxContext"]["type"] == "RunAsAny":
        yield "seLinuxContext", {**scc, "seLinuxContext": {"type": "MustRunAs"}}


@pytest.mark.parametrize("case", [*CASES, "with-host-network", "with-updates-by-hand"])
def test_constraints_allow_what_the_pods_need(case: str) -> None:
    manifests = rendered(case)
    found = {item["metadata"]["name"]: item for item in views.of_kind(manifests, "SecurityContextConstraints")}
    assert found.keys() == {item["metadata"]["name"] for item in views.of_kind(manifests, "ServiceAccount")}
    for account, scc in found.items():
        pods = [*pods_of(manifests, account)]
        assert [[*refusals(scc, pod)] for pod in pods] == [[] for _ in pods], account
        for lacking, less in narrower(scc) if pods else ():
            assert any([*refusals(less, pod)] for pod in pods), (account, lacking)


@pytest.mark.parametrize("case", CASES)
def test_only_the_account_may_use_its_constraints(case: str) -> None:
    manifests = rendered(case)
    bindings = {item["roleRef"]["name"]: item["subjects"] for item in views.of_kind(manifests, "RoleBinding")}
    used = {}
    for role in views.of_kind(manifests, "Role"):
        for rule in role["rules"]:
            if rule["apiGroups"] == ["security.openshift.io"]:
                ((name,), (subject,)) = rule["resourceNames"], bindings[role["metadata"]["name"]]
                assert rule == use_constraints(name)
                used[name] = subject["name"]
    accounts = {item["metadata"]["name"] for item in views.of_kind(manifests, "ServiceAccount")}
    assert used == {account: account for account in accounts}
    for scc in views.of_kind(manifests, "SecurityContextConstraints"):
        assert not scc.get("users")
        assert not scc.get("groups")


def test_an_account_without_pods_may_do_nothing() -> None:
    """Of a driver before a node is known; the API wants every list."""
    scc = constraints("nvidia-driver", [])
    assert not any(value is True for value in scc.values())
    assert (scc["runAsUser"]["type"], scc["volumes"]) == ("MustRunAsNonRoot", ["none"])
    assert (scc["allowedCapabilities"], scc["defaultAddCapabilities"], scc["requiredDropCapabilities"]) == ([], [], [])


def test_what_no_operand_asks_for_is_allowed_where_a_pod_does() -> None:
    pod = {
        "hostIPC": True,
        "containers": [
            {
                "ports": [{"hostPort": 80}],
                "securityContext": {
                    "capabilities": {"add": ["SYS_ADMIN", "CHOWN"]},
                    "seccompProfile": {"type": "Localhost", "localhostProfile": "a.json"},
                },
            }
        ],
    }
    scc = constraints("any", [pod])
    assert (scc["allowHostIPC"], scc["allowHostPorts"], scc["allowHostNetwork"]) == (True, True, False)
    assert (scc["allowedCapabilities"], scc["seccompProfiles"]) == (["CHOWN", "SYS_ADMIN"], ["localhost/a.json"])
