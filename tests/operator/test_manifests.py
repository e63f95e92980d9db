"""The operator's manifests are hardened, with the least permissions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_provision.components.security_constraints import constraints
from gpu_provision.model.cluster import Permission
from gpu_provision.model.inventory import Inventory
from gpu_provision.operator import manifests
from gpu_provision.operator.manifests import InstallOptions, group_by_file, kustomization
from gpu_provision.operator.stack import inventory_of
from gpu_provision.rbac import permissions
from gpu_provision.rbac.permissions import for_destroy
from gpu_provision.rbac.roles import grants
from tests.components import builders
from tests.operator.conftest import a_stack

IMAGE = "registry.example.com/gpu-provision:0.1.0"


def inventory(name: str = "prod", **spec: Any) -> Inventory:
    found, findings = inventory_of(a_stack(name, **spec))
    assert found is not None, findings
    return found


def render(*stacks: Inventory, **shape: Any) -> list[dict[str, Any]]:
    return manifests.manifests(InstallOptions(**{"image": IMAGE, **shape}), stacks)


def rules(found: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    for role in found:
        if role["kind"] in {"ClusterRole", "Role"}:
            yield from ((role["metadata"].get("namespace", ""), rule) for rule in role["rules"])


def is_granted(found: list[dict[str, Any]], wanted: Permission) -> bool:
    return any(grants(rule, wanted) for namespace, rule in rules(found) if namespace in ("", wanted.namespace))


def test_any_stack_in_usual_namespaces_can_be_kept_and_removed() -> None:
    """A stack known at the installation also in other namespaces, with its own licence and runtime class."""
    special = inventory(
        cluster={"namespace": "own"},
        nfd={"namespace": "features"},
        driver={"licensing_config": "licence", "repo_config": "sources"},
        operator={"runtime_class": "own-class"},
    )

    def lacking(stack: Inventory, found: list[dict[str, Any]]) -> set[Permission]:
        wanted = permissions.for_apply(stack) | for_destroy(stack)
        return {one for one in wanted if not is_granted(found, one)}

    assert [lacking(inventory(name), render()) for name in ("prod", "lab")] == [set(), set()]
    assert lacking(special, render(special)) == set()
    assert {one.namespace for one in lacking(special, render())} >= {"own", "features"}


def test_rights_for_a_known_stack_name_its_objects() -> None:
    lock = Permission("update", "coordination.k8s.io", "leases", "gpu-operator-resources", "prod")
    other = lock._replace(name="other")
    known, unknown = render(inventory()), render()
    assert (is_granted(known, lock), is_granted(known, other)) == (True, False)
    assert (is_granted(unknown, lock), is_granted(unknown, other)) == (True, True)


def test_secrets_are_read_only_if_a_stack_names_them() -> None:
    """A watch names its Secret, in any namespace, since its path has none."""
    assert not [rule for _, rule in rules(render()) if "secrets" in rule["resources"]]
    found = render(inventory(driver={"licensing_config": "licence"}))
    named = [rule for _, rule in rules(found) if "secrets" in rule["resources"]]
    assert named
    assert all(rule["resourceNames"] == ["licence"] for rule in named)
    assert {verb for rule in named for verb in rule["verbs"]} == {"get", "list", "watch"}


@pytest.mark.parametrize(
    ("shape", "kinds"),
    [
        ({}, {"Deployment", "NetworkPolicy", "PodDisruptionBudget"}),
        ({"kubernetes": "v1.20.2"}, {"Deployment", "NetworkPolicy", "PodDisruptionBudget"}),
        ({"replicas": 1}, {"Deployment", "NetworkPolicy"}),
        ({"image": ""}, set()),
    ],
    ids=["several", "old server", "one, whose node a budget would keep", "outside the cluster"],
)
def test_controllers_have_what_they_need(shape: dict[str, Any], kinds: set[str]) -> None:
    found = {item["kind"]: item["apiVersion"] for item in render(**shape)}
    assert found.keys() & {"Deployment", "NetworkPolicy", "PodDisruptionBudget"} == kinds
    assert found.get("PodDisruptionBudget") in {None, "policy/v1beta1" if "kubernetes" in shape else "policy/v1"}
    assert {"CustomResourceDefinition", "ClusterRole", "ServiceAccount", "Namespace"} <= found.keys()


def test_a_monitor_of_the_controller_is_made_for_an_inventory_that_wants_it() -> None:
    """A stack has no such key: who installs the controller decides."""
    settings = {"enabled": True, "interval": "1m", "additional_labels": {"release": "prometheus"}}
    declared = builders.inventory_with({"operator": {"metrics": {"service_monitor": settings}}})
    found = group_by_file(render(declared))["monitoring.yaml"]
    service, monitor = found
    assert (service["kind"], service["spec"]["clusterIP"]) == ("Service", "None")
    assert service["spec"]["selector"].items() <= monitor["spec"]["selector"]["matchLabels"].items()
    assert service["metadata"]["labels"].items() >= monitor["spec"]["selector"]["matchLabels"].items()
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    (endpoint,) = monitor["spec"]["endpoints"]
    assert (endpoint["port"], endpoint["interval"]) == (service["spec"]["ports"][0]["name"], "1m")
    assert "monitoring.yaml" not in group_by_file(render(builders.inventory()))
    assert "monitoring.yaml" not in group_by_file(render(declared, image=""))


def test_the_example_is_what_is_rendered() -> None:
    """``make docs`` writes it; a difference here appears in every user's repository."""
    folder = Path(__file__).parents[2] / "examples/operator/manifests"
    files = {path.name: [*yaml.safe_load_all(path.read_text(encoding="utf-8"))] for path in folder.glob("*.yaml")}
    expected = group_by_file(render())
    assert files.pop("kustomization.yaml") == [kustomization([*expected])]
    assert files == expected


ON_OPENSHIFT = {"cluster": {"platform": "openshift"}}
_OF_OPENSHIFT = {"config", "image", "machineconfiguration", "security"}
_EVERYWHERE = {"clusterversions", "privileged", "nonroot-v2"}  # what drivers read, what roles of the reference name


def openshift_groups(found: list[dict[str, Any]]) -> set[str]:
    """Return the API groups of OpenShift in roles, without rules that are there on any platform."""
    own = (rule for _, rule in rules(found) if not _EVERYWHERE & {*rule["resources"], *rule.get("resourceNames", ())})
    suffix = ".openshift.io"
    return {group.removesuffix(suffix) for rule in own for group in rule["apiGroups"] if group.endswith(suffix)}


@pytest.mark.parametrize(
    ("stacks", "platform", "groups"),
    [
        ((), "", _OF_OPENSHIFT),
        ((), "openshift", _OF_OPENSHIFT),
        ((), "kubernetes", _OF_OPENSHIFT),
        (({},), "", set()),
        (({},), "kubernetes", set()),
        (({},), "openshift", _OF_OPENSHIFT),
        ((ON_OPENSHIFT,), "", _OF_OPENSHIFT),
    ],
)
def test_rights_on_openshift_are_for_stacks_that_may_be_there(
    stacks: tuple[dict[str, Any], ...], platform: str, groups: set[str]
) -> None:
    """Without a stack they are there on any platform, so that `render` and `install` agree."""
    assert openshift_groups(render(*(inventory(**each) for each in stacks), platform=platform)) == groups


def test_stacks_on_openshift_can_be_kept_and_removed() -> None:
    """Also one that does not name the platform, which the installation has found."""
    stack = inventory(**ON_OPENSHIFT)
    wanted = permissions.for_apply(stack) | for_destroy(stack)
    for found in (render(), render(inventory(), platform="openshift")):
        assert [one for one in wanted if not is_granted(found, one)] == []


def test_the_fixed_user_of_the_controller_is_allowed_on_openshift() -> None:
    """The default there is a user of the namespace's range."""
    found = render()
    (pod,) = (item["spec"]["template"]["spec"] for item in found if item["kind"] == "Deployment")
    assert pod["securityContext"]["runAsUser"] == 65532
    use = Permission("use", "security.openshift.io", "securitycontextconstraints", "gpu-operator", "nonroot-v2")
    assert is_granted(found, use)
    assert not is_granted(found, use._replace(name="privileged"))
    needed = constraints("any", [pod])
    allowed = {key for key, value in needed.items() if value is True}
    assert (allowed, needed["runAsUser"], needed["seccompProfiles"], needed["volumes"]) == (
        set(),
        {"type": "MustRunAsNonRoot"},
        ["runtime/default"],
        ["emptyDir", "projected"],
    )


@pytest.mark.parametrize("platform", ["", "kubernetes", "openshift"])
def test_openshift_reads_the_metrics_of_the_controller(platform: str) -> None:
    stack = builders.inventory_with({"operator": {"metrics": {"service_monitor": {"enabled": True}}}})
    found = render(stack, platform=platform)
    (namespace,) = (
        item for item in found if item["metadata"]["name"] == "gpu-operator" and item["kind"] == "Namespace"
    )
    is_monitored = namespace["metadata"]["labels"].get("openshift.io/cluster-monitoring") == "true"
    roles = [item for item in found if item["metadata"]["name"] == "prometheus-k8s"]
    assert (is_monitored, len(roles)) == ((True, 2) if platform == "openshift" else (False, 0))
