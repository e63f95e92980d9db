"""What the operator consists of: hardened, and with no more rights than it uses."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import yaml

from gpu_provision.kube.observe import MEMBER_KINDS
from gpu_provision.kube.resources import KINDS
from gpu_provision.model.cluster import Permission
from gpu_provision.model.inventory import Inventory
from gpu_provision.operator import controller, manifests
from gpu_provision.operator.manifests import InstallOptions, budget_version, grouped, kustomization
from gpu_provision.operator.stack import CONTROLLER_NAME, CONTROLLER_NAMESPACE, inventory_of, stack_of
from gpu_provision.rbac import permissions
from gpu_provision.rbac.permissions import for_destroy
from gpu_provision.rbac.roles import grants

IMAGE = "registry.example.com/gpu-provision:0.1.0"
POOL = {"gpu": {"model": "T4", "count": 1}, "node_selector": {"gpu": "yes"}}


def a_stack(name: str = "prod", **spec: Any) -> Inventory:
    inventory, findings = inventory_of(stack_of({"name": name, "cluster": {}, "pools": {"gpu": POOL}, **spec}))
    assert inventory is not None, findings
    return inventory


def made(*stacks: Inventory, **shape: Any) -> list[dict[str, Any]]:
    return manifests.manifests(InstallOptions(**{"image": IMAGE, **shape}), stacks)


def of_kind(found: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [item for item in found if item["kind"] == kind]


def pod_of(found: list[dict[str, Any]]) -> dict[str, Any]:
    (deployment,) = of_kind(found, "Deployment")
    spec: dict[str, Any] = deployment["spec"]["template"]["spec"]
    return spec


def rules(found: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every rule with the namespace that it holds in, empty for everywhere."""
    for role in [*of_kind(found, "ClusterRole"), *of_kind(found, "Role")]:
        yield from ((role["metadata"].get("namespace", ""), rule) for rule in role["rules"])


def may(found: list[dict[str, Any]], wanted: Permission) -> bool:
    return any(grants(rule, wanted) for namespace, rule in rules(found) if namespace in ("", wanted.namespace))


def test_no_rule_has_a_wildcard() -> None:
    """Least privilege: every right is named."""
    words = {word for _, rule in rules(made()) for key in ("apiGroups", "resources", "verbs") for word in rule[key]}
    assert "*" not in words


@pytest.mark.parametrize("name", ["prod", "lab"])
def test_a_stack_of_any_name_can_be_kept_and_removed(name: str) -> None:
    """The stacks are not known at the installation."""
    inventory, found = a_stack(name), made()
    wanted = permissions.for_apply(inventory) | for_destroy(inventory)
    assert [one for one in sorted(wanted) if not may(found, one)] == []


def test_a_known_stack_can_be_kept_wherever_it_is() -> None:
    """With other namespaces, a licence and a runtime class of its own name."""
    inventory = a_stack(
        cluster={"namespace": "own"},
        nfd={"namespace": "features"},
        driver={"licensing_config": "licence", "repo_config": "sources"},
        operator={"runtime_class": "own-class"},
    )
    wanted = permissions.for_apply(inventory) | for_destroy(inventory)
    known, unknown = made(inventory), made()
    assert [one for one in sorted(wanted) if not may(known, one)] == []
    missing = {one.namespace for one in wanted if not may(unknown, one)}
    assert {"own", "features"} <= missing


def test_rights_for_a_known_stack_name_its_objects() -> None:
    """What is known need not be granted for any name."""
    lock = Permission("update", "coordination.k8s.io", "leases", "gpu-operator-resources", "prod")
    other = lock._replace(name="other")
    known, unknown = made(a_stack()), made()
    assert (may(known, lock), may(known, other)) == (True, False)
    assert (may(unknown, lock), may(unknown, other)) == (True, True)


def test_secrets_are_read_only_if_a_stack_names_them() -> None:
    """A watch of one secret has its name, and any namespace, as its path has none."""
    assert not [rule for _, rule in rules(made()) if "secrets" in rule["resources"]]
    found = made(a_stack(driver={"licensing_config": "licence"}))
    named = [rule for _, rule in rules(found) if "secrets" in rule["resources"]]
    assert named
    assert all(rule["resourceNames"] == ["licence"] for rule in named)
    assert {verb for rule in named for verb in rule["verbs"]} == {"get", "list", "watch"}


def test_the_controller_may_answer_in_stacks_and_lead() -> None:
    """The status is written apart from the rest; Events of what has no namespace are in this one."""
    found, group = made(), "gpu-provision.io"
    lease = Permission("update", "coordination.k8s.io", "leases", CONTROLLER_NAMESPACE, CONTROLLER_NAME)
    for one in (
        Permission("patch", group, "gpustacks/status"),
        Permission("patch", group, "gpustacks"),
        Permission("watch", group, "gpustacks"),
        Permission("create", "", "events", "default"),
        lease,
    ):
        assert may(found, one), one
    assert not may(found, Permission("delete", group, "gpustacks"))
    assert not may(found, lease._replace(name="other"))


def test_the_controller_holds_the_lease_that_it_has_the_right_to() -> None:
    """Both are named in one place, or a controller would wait for ever."""
    unused = cast("Any", None)
    lease = controller.Controller(unused, aim=unused, take=unused)._lease
    assert (lease.namespace, lease.name) == (CONTROLLER_NAMESPACE, CONTROLLER_NAME)


def test_the_pod_has_no_more_than_it_needs() -> None:
    """As the restricted Pod Security Standard asks; and nothing is written but into its own volume."""
    pod = pod_of(made())
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
    assert [volume for volume in pod["volumes"] if "emptyDir" not in volume] == []
    assert container["resources"].keys() == {"requests", "limits"}


def test_only_several_controllers_have_a_budget() -> None:
    """A budget for one would keep its node from being drained."""
    assert len(of_kind(made(), "PodDisruptionBudget")) == 1
    assert of_kind(made(replicas=1), "PodDisruptionBudget") == []


def test_without_an_image_there_is_no_controller() -> None:
    """``gpu-provision operator run`` outside the cluster."""
    kinds = {item["kind"] for item in made(image="")}
    assert {"CustomResourceDefinition", "ClusterRole", "ServiceAccount", "Namespace"} <= kinds
    assert not {"Deployment", "NetworkPolicy", "PodDisruptionBudget"} & kinds


@pytest.mark.parametrize(
    ("kubernetes", "expected"),
    [("1.20", "policy/v1beta1"), ("v1.20.2", "policy/v1beta1"), ("1.21", "policy/v1"), ("", "policy/v1")],
)
def test_budgets_are_of_the_version_that_the_cluster_has(kubernetes: str, expected: str) -> None:
    """One went with Kubernetes 1.25, the other came with 1.21."""
    assert budget_version(kubernetes) == expected


def test_what_is_followed_between_two_runs_may_be_followed() -> None:
    """Every kind of which a stack can have objects is listed and watched, and what its declaration refers to."""
    found = made(a_stack(driver={"repo_config": "sources", "licensing_config": "licence"}))
    objects = [Permission("watch", kind.api_version.rpartition("/")[0], KINDS[kind]) for kind in MEMBER_KINDS]
    named = [Permission("watch", "", "secrets", name="licence"), Permission("watch", "", "configmaps", name="sources")]
    assert [one for one in (*objects, *named) if not may(found, one)] == []


def test_the_example_is_what_is_rendered() -> None:
    """``make docs`` writes it; a difference here is one that every user's repository will show."""
    folder = Path(__file__).parents[2] / "examples/operator/manifests"
    files = {path.name: [*yaml.safe_load_all(path.read_text(encoding="utf-8"))] for path in folder.glob("*.yaml")}
    expected = grouped(made())
    assert files.pop("kustomization.yaml") == [kustomization([*expected])]
    assert files == expected
