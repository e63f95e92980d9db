"""SecurityContextConstraints of OpenShift: one for each account, which allows what the pods of the account need.

The names are those of the GPU Operator 26.7. Its constraints allow more, and every administrator and node may use them;
these may be used by the account alone, by its Role.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gpu_provision.components.objects import rule
from gpu_provision.model.cluster import Kind, Manifest

CONSTRAINTS = Kind("security.openshift.io/v1", "SecurityContextConstraints")

_PROFILES = {"RuntimeDefault": "runtime/default", "Unconfined": "unconfined"}
_ANY, _NON_ROOT, _OF_NAMESPACE = {"type": "RunAsAny"}, {"type": "MustRunAsNonRoot"}, {"type": "MustRunAs"}


def use_constraints(name: str) -> dict[str, Any]:
    """Return the rule that lets an account use one object of this kind."""
    return rule(CONSTRAINTS.api_version.partition("/")[0], ["securitycontextconstraints"], ["use"], names=[name])


PRIVILEGED = use_constraints("privileged")
"""The rule in the GPU Operator's roles: without effect on plain Kubernetes."""


def with_constraints(rendered: Mapping[str, Sequence[Manifest]]) -> dict[str, list[Manifest]]:
    """Return the manifests of components with constraints of their accounts, which the accounts' Roles name."""
    every = [item for items in rendered.values() for item in items]
    pods = [item["spec"]["template"]["spec"] for item in every if item["kind"] in {"DaemonSet", "Deployment"}]
    accounts = {_role_of(item): item["subjects"][0]["name"] for item in every if item["kind"] == "RoleBinding"}
    return {
        name: [made for item in items for made in _secure(item, accounts, pods)] for name, items in rendered.items()
    }


def _role_of(binding: Manifest) -> tuple[str, str]:
    return binding["metadata"]["namespace"], binding["roleRef"]["name"]


def _secure(
    item: Manifest, accounts: Mapping[tuple[str, str], str], pods: Sequence[Mapping[str, Any]]
) -> Iterator[Manifest]:
    """Yield an object, and after a ServiceAccount its constraints; a validation needs no more than the validator."""
    metadata = item["metadata"]
    if item["kind"] == "Role" and PRIVILEGED in item["rules"]:
        own = use_constraints(accounts[metadata["namespace"], metadata["name"]])
        item = {**item, "rules": [own if each == PRIVILEGED else each for each in item["rules"]]}
    yield item
    if item["kind"] == "ServiceAccount":
        yield constraints(metadata["name"], [pod for pod in pods if pod.get("serviceAccountName") == metadata["name"]])


def constraints(name: str, pods: Sequence[Mapping[str, Any]]) -> Manifest:
    """Return the constraints that admit these pods, and nothing beyond them.

    The API wants every list, also an empty one. Groups of files do not matter: no volume of these pods has one.
    """
    containers = [(pod, each) for pod in pods for each in (*pod.get("initContainers", ()), *pod["containers"])]
    contexts = [{**pod.get("securityContext", {}), **each.get("securityContext", {})} for pod, each in containers]
    kinds = {kind for pod in pods for volume in pod.get("volumes", ()) for kind in volume if kind != "name"}
    # The token of an account is a projected volume.
    kinds |= {"projected" for pod in pods if pod.get("automountServiceAccountToken", True)}
    privileged = any(each.get("privileged") for each in contexts)
    on_host = any(pod.get("hostNetwork") for pod in pods)
    ports = [port for pod, each in containers for port in each.get("ports", ()) if pod.get("hostNetwork")]
    ports += [port for _, each in containers for port in each.get("ports", ()) if port.get("hostPort")]
    profiles = sorted({_profile(each["seccompProfile"]) for each in contexts if "seccompProfile" in each})
    added = sorted({name for each in contexts for name in each.get("capabilities", {}).get("add", ())})
    has_levels = privileged or any("seLinuxOptions" in each for each in contexts)
    body = {
        "allowHostDirVolumePlugin": "hostPath" in kinds,
        "allowHostIPC": any(pod.get("hostIPC", False) for pod in pods),
        "allowHostNetwork": on_host,
        "allowHostPID": any(pod.get("hostPID", False) for pod in pods),
        "allowHostPorts": bool(ports),
        "allowPrivilegeEscalation": any(each.get("allowPrivilegeEscalation", True) for each in contexts),
        "allowPrivilegedContainer": privileged,
        "allowedCapabilities": added,
        "defaultAddCapabilities": [],
        "fsGroup": _ANY,
        "priority": 0,
        "readOnlyRootFilesystem": False,
        "requiredDropCapabilities": [],
        "runAsUser": _NON_ROOT if all(each.get("runAsNonRoot") for each in contexts) else _ANY,
        "seLinuxContext": _ANY if has_levels else _OF_NAMESPACE,
        **({"seccompProfiles": profiles} if profiles else {}),
        "supplementalGroups": _ANY,
        "volumes": sorted(kinds) or ["none"],
    }
    return {"apiVersion": CONSTRAINTS.api_version, "kind": CONSTRAINTS.kind, "metadata": {"name": name}, **body}


def _profile(profile: Mapping[str, str]) -> str:
    return _PROFILES.get(profile["type"]) or f"localhost/{profile.get('localhostProfile', '')}"
