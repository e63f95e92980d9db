"""All that makes up the operator in a cluster: definition, namespace, RBAC, controller Deployment."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from gpu_provision.components.objects import compact, is_at_least, service_account
from gpu_provision.kube.client import KINDS
from gpu_provision.kube.observe import MEMBER_KINDS, named_secrets
from gpu_provision.model.cluster import Manifest, Permission
from gpu_provision.model.inventory import Inventory
from gpu_provision.operator import crd
from gpu_provision.operator.crd import LABELS, definition
from gpu_provision.operator.stack import CONTROLLER_NAME, CONTROLLER_NAMESPACE, GROUP, PLURAL, inventory_of, stack_of
from gpu_provision.rbac import permissions
from gpu_provision.rbac.roles import RbacSubject, roles

_LEASES = ("coordination.k8s.io", "leases")
_EDITING = ("get", "list", "watch", "patch", "delete")
_ALL_ON: dict[str, Any] = {
    "dcgm": {"enabled": True},
    "pools": {"gpu": {"gpu": {"model": "T4", "count": 1}, "node_selector": {"nvidia.com/gpu.present": "true"}}},
}


def of_controller() -> Iterator[Permission]:
    """Yield what the controller needs whatever stacks there are: to read them, to answer in them, and to lead."""
    yield from (Permission(verb, GROUP, PLURAL) for verb in ("get", "list", "watch", "patch"))
    yield Permission("patch", GROUP, f"{PLURAL}/status")
    yield Permission("create", "", "events", "default")  # of objects without a namespace
    yield Permission("create", *_LEASES, CONTROLLER_NAMESPACE)  # a POST, which names nothing
    yield from (Permission(verb, *_LEASES, CONTROLLER_NAMESPACE, CONTROLLER_NAME) for verb in ("get", "update"))
    yield from (Permission(verb, *_LEASES, "", CONTROLLER_NAME) for verb in ("list", "watch"))


def of_stacks(inventories: Iterable[Inventory]) -> frozenset[Permission]:
    """Return what it takes to keep these stacks, and to take them off the cluster; without any, those of any name.

    Stacks of any name are those in the namespaces that a stack has if it names none, without objects that only a stack
    names: a licence's Secret, a runtime class.
    """
    known = [*inventories]
    if known:
        return frozenset(one for inventory in known for one in _of_stack(inventory))
    found = [inventory_of(stack_of({"name": name, **_ALL_ON}))[0] for name in ("a", "b")]
    one, other = (frozenset(_of_stack(inventory)) for inventory in found if inventory)
    return frozenset(each if each in other else each._replace(name="") for each in one)


def of_editor(inventory: Inventory) -> frozenset[Permission]:
    """Return what it takes to change a stack's resource or let it go, and to follow what its controller does."""
    return frozenset(
        (
            *(Permission(verb, GROUP, PLURAL, "", inventory.name) for verb in _EDITING),
            *(Permission(verb, *_LEASES, "", CONTROLLER_NAME) for verb in ("list", "watch")),
            Permission("get", *_LEASES, CONTROLLER_NAMESPACE, CONTROLLER_NAME),
            *permissions.for_view(inventory),
            *permissions.for_watches(inventory),
            *_to_follow(inventory),
        )
    )


def _of_stack(inventory: Inventory) -> Iterator[Permission]:
    yield from permissions.for_apply(inventory)
    yield from permissions.for_destroy(inventory)
    yield from _to_follow(inventory)


def _to_follow(inventory: Inventory) -> Iterator[Permission]:
    """Yield what watching between two runs needs: objects of the stack, and what its declaration refers to."""
    for kind in MEMBER_KINDS:
        yield from (Permission(verb, kind.api_version.rpartition("/")[0], KINDS[kind]) for verb in ("list", "watch"))
    for name in named_secrets(inventory):  # by name, in any namespace: a watch's path has none
        yield from (Permission(verb, "", "secrets", "", name) for verb in ("list", "watch"))


_FILE_OF = {
    "CustomResourceDefinition": "definition.yaml",
    "Namespace": "namespaces.yaml",
    "Deployment": "controller.yaml",
    "NetworkPolicy": "controller.yaml",
    "PodDisruptionBudget": "controller.yaml",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallOptions:
    """How the controller runs."""

    image: str = ""  # its image; empty for no controller in the cluster: it runs elsewhere
    replicas: int = 2  # how many; one works, the others wait to take over
    pull_secrets: tuple[str, ...] = ()  # names of Secrets in its namespace
    kubernetes: str = ""  # version of the cluster; an empty one, or one that is not known, counts as new


def manifests(shape: InstallOptions, stacks: Iterable[Inventory] = ()) -> list[Manifest]:
    """Return all objects, in an order in which they can be applied.

    The controller gets the rights for ``stacks``; without any, for stacks of any name in the usual namespaces.
    """
    account = RbacSubject("ServiceAccount", CONTROLLER_NAME, CONTROLLER_NAMESPACE)
    rights = roles(CONTROLLER_NAME, {*of_stacks(stacks), *of_controller()}, [account])
    namespaces = [item for item in rights if item["kind"] == "Namespace"]
    found = [definition(rules=crd.are_known(shape.kubernetes))]
    found += [_labelled(item) if item["metadata"]["name"] == CONTROLLER_NAMESPACE else item for item in namespaces]
    found.append(service_account(CONTROLLER_NAME, CONTROLLER_NAMESPACE, LABELS))
    found += [_labelled(item) for item in rights if item["kind"] != "Namespace"]
    return [*found, *(_controller(shape) if shape.image else ())]


def grouped(found: Iterable[Manifest]) -> dict[str, list[Manifest]]:
    """Return objects by the name of the file that they belong into, in an order in which files can be applied."""
    files: dict[str, list[Manifest]] = {}
    for item in found:
        files.setdefault(_FILE_OF.get(item["kind"], "rights.yaml"), []).append(item)
    return files


def kustomization(files: Sequence[str]) -> Manifest:
    """Return what makes a folder of these files one that ``kubectl apply -k`` takes."""
    return {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization", "resources": [*files]}


def _labelled(item: Manifest) -> Manifest:
    return {**item, "metadata": {**item["metadata"], "labels": dict(LABELS)}}


def _controller(shape: InstallOptions) -> Iterator[Manifest]:
    """Yield the objects that run the controller; a budget would keep the node of a single one."""
    text = Path(__file__).with_name("controller.yaml").read_text(encoding="utf-8")
    policy, deployment, budget = yaml.safe_load_all(text)
    pod = deployment["spec"]["template"]["spec"]
    deployment["spec"]["replicas"], pod["containers"][0]["image"] = shape.replicas, shape.image
    pod["imagePullSecrets"] = [{"name": name} for name in shape.pull_secrets]
    yield policy
    yield compact(deployment)
    if shape.replicas > 1:
        yield budget if is_at_least(shape.kubernetes, (1, 21)) else {**budget, "apiVersion": "policy/v1beta1"}
