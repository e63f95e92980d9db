"""What an account needs, from the inventory alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import groupby
from operator import attrgetter

import pytest

from gpu_provision import rbac
from gpu_provision.kube.client import KINDS
from gpu_provision.kube.observe import MEMBER_KINDS
from gpu_provision.model.cluster import ClusterFacts, NodeFacts, Permission, ref_of
from gpu_provision.model.hosts import ConnectionMethod, Reboot
from gpu_provision.model.inventory import Inventory, OperatingSystem
from gpu_provision.model.rollout_policy import UpgradePolicy
from gpu_provision.planning.prepare import prepare
from gpu_provision.rbac import permissions
from gpu_provision.rbac.roles import grants, rules_of
from gpu_provision.reconcile.cluster_state import run_scopes
from tests.components.builders import inventory, inventory_with, with_spec

STACK = inventory()


def _granted(wanted: Permission, stack: Inventory) -> bool:
    return not _refused([wanted], stack)


def _refused(wanted: Iterable[Permission], stack: Inventory) -> list[Permission]:
    has, refused = permissions.for_apply(stack), []
    for namespace, asked in groupby(sorted(wanted, key=attrgetter("namespace")), attrgetter("namespace")):
        rules = rules_of({one for one in has if one.namespace in {"", namespace}})
        refused += [one for one in asked if not any(grants(rule, one) for rule in rules)]
    return refused


def test_nothing_is_granted_wholesale() -> None:
    """No wildcard: a reader of the rules sees all of it. Secrets are not among them."""
    found = permissions.for_apply(STACK)
    assert [one for one in found if "*" in "".join(one)] == []
    assert {one.resource for one in found} & {"secrets", "pods/exec", "serviceaccounts/token"} == set()
    assert {one.verb for one in found} & {"escalate", "bind", "impersonate"} == set()
    whole = {(one.resource, one.namespace) for one in found if one.verb == "deletecollection"}
    assert whole == {("pods", STACK.cluster.namespace)}, "validations that have succeeded, of its own namespace"


def test_objects_of_the_inventory_are_granted_by_name() -> None:
    """A kind costs one list of the cluster, and the deletion of its objects in the namespace."""
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "pods"}, "spec": {}}
    more = permissions.for_apply(inventory_with({"extra_objects": [quota]})) - permissions.for_apply(STACK)
    home = STACK.cluster.namespace
    named = {Permission(verb, "", "resourcequotas", home, "pods") for verb in ("get", "create", "patch")}
    others = {Permission("list", "", "resourcequotas"), Permission("delete", "", "resourcequotas", home)}
    assert more == named | others


def test_a_secret_is_read_where_a_driver_depends_on_it() -> None:
    """By name; whether it has changed cannot be told without."""
    more = permissions.for_view(with_spec("driver", licensing_config="licence")) - permissions.for_view(STACK)
    assert {(one.verb, one.resource, one.name) for one in more} == {("get", "secrets", "licence")}


def test_whether_a_reference_exists_is_asked_by_its_name() -> None:
    """Not by a list of all Secrets; no run fails without this right."""
    stack = with_spec("gfd", image_pull_secrets=("mirror",))
    more = permissions.for_view(stack) - permissions.for_view(STACK)
    assert {(one.verb, one.resource, one.name) for one in more} == {("get", "secrets", "mirror")}
    assert more <= permissions.for_apply(stack)
    assert not more & permissions.for_own_requests(stack)


def test_processes_on_nodes_are_for_hosts_without_ssh_alone() -> None:
    """The right to run them is that of an administrator of the node, so it is asked for by name and place."""
    real = replace(STACK, cluster=replace(STACK.cluster, sandbox=""))
    first, *others = real.nodes
    without = replace(real, nodes=(replace(first, connect=ConnectionMethod.KUBERNETES), *others))
    more = permissions.for_own_requests(without) - permissions.for_own_requests(real)
    assert {(one.verb, one.resource, one.namespace, one.name) for one in more} == {
        ("get", "nodes", "", first.name),
        *((verb, "pods", "kube-system", "") for verb in ("create", "delete", "get")),
        *((verb, "pods/exec", "kube-system", "") for verb in ("create", "get")),
    }


def _without_upgrades() -> Inventory:
    off = UpgradePolicy(auto_upgrade=False)
    pools = {name: replace(pool, driver=replace(pool.driver, upgrade_policy=off)) for name, pool in STACK.pools.items()}
    return replace(with_spec("driver", upgrade_policy=off), pools=pools)


def test_evictions_are_for_inventories_that_replace_drivers() -> None:
    """They end pods anywhere, as far as budgets allow."""
    more = permissions.for_own_requests(STACK) - permissions.for_own_requests(_without_upgrades())
    assert {(one.verb, one.resource, one.namespace) for one in more} == {
        ("create", "pods/eviction", ""),
        ("list", "poddisruptionbudgets", ""),
        ("watch", "poddisruptionbudgets", ""),
    }


def test_evictions_are_also_for_inventories_with_reboots() -> None:
    stack = _without_upgrades()
    pools = {
        name: replace(pool, host_prerequisites=replace(pool.host_prerequisites, reboot=Reboot.IF_REQUIRED))
        for name, pool in stack.pools.items()
    }
    more = permissions.for_own_requests(replace(stack, pools=pools)) - permissions.for_own_requests(stack)
    assert {(one.verb, one.resource, one.namespace) for one in more} == {
        ("create", "pods/eviction", ""),
        ("get", "nodes", ""),
    }


def test_what_is_written_in_the_whole_cluster_is_named() -> None:
    """But for nodes and pods to be evicted, which are not ours to name."""
    writes = {"create", "update", "patch", "delete"}
    unnamed = {one for one in permissions.for_own_requests(STACK) if not one.namespace and not one.name}
    assert {(one.verb, one.resource) for one in unnamed if one.verb in writes} == {
        ("patch", "nodes"),
        ("create", "pods/eviction"),
    }


def test_objects_of_any_kind_of_node_are_covered() -> None:
    """Names of DaemonSets hold systems and runtimes that only the cluster knows."""
    nodes = tuple(
        NodeFacts(name=node.name, os=OperatingSystem("rocky", f"9.{number}"), container_runtime=runtime)
        for number, (node, runtime) in enumerate(zip(STACK.nodes, ("containerd", "cri-o", "docker") * 9, strict=False))
    )
    context, desired = prepare(STACK, ClusterFacts(version="v1.34.0", nodes=nodes))
    assert len({target.os for target in context.targets}) > 1
    wanted = {one for items in desired.values() for item in items for one in permissions.for_object(item)}
    made = {one for one in wanted if one.resource == "namespaces" and one.verb == "create"}
    assert _refused(wanted - made, STACK) == []


def test_a_component_that_is_off_can_be_removed_and_not_made() -> None:
    specs = STACK.specs
    configured = replace(specs, device_plugin=replace(specs.device_plugin, config_name="plans"))
    without = replace(configured, gfd=replace(specs.gfd, enabled=False))
    role = Permission("create", "rbac.authorization.k8s.io", "clusterroles", name="nvidia-gpu-feature-discovery")
    assert _granted(role, replace(STACK, specs=configured))
    for other in (without, specs):  # only a config-manager reads nodes, see `plugin_config`
        assert not _granted(role, replace(STACK, specs=other))
        assert _granted(role._replace(verb="delete"), replace(STACK, specs=other))


def test_the_home_of_the_stack_cannot_be_deleted() -> None:
    home = Permission("delete", "", "namespaces", name=STACK.cluster.namespace)
    assert not _granted(home, STACK)
    assert _granted(home._replace(name=STACK.specs.nfd.namespace), STACK)


@pytest.mark.parametrize("read_only", [True, False])
def test_roles_are_printed_for_each_namespace_of_the_stack(*, read_only: bool) -> None:
    found = [ref_of(item) for item in rbac(STACK, read_only=read_only)]
    name = "gpu-provision-" + STACK.name + ("-reader" if read_only else "")
    assert [(ref.kind, ref.namespace, ref.name) for ref in found] == [
        ("Namespace", "", "gpu-operator-resources"),
        ("Namespace", "", "node-feature-discovery"),
        ("ClusterRole", "", name),
        ("Role", "gpu-operator-resources", name),
        ("Role", "node-feature-discovery", name),
    ]


def test_the_roles_are_no_members_of_the_stack() -> None:
    """Else a run would remove them, or could change its own rights."""
    own = f"gpu-provision-{STACK.name}"
    labels = [item["metadata"].get("labels", {}) for item in rbac(STACK)]
    assert [found for found in labels if "applyset.kubernetes.io/part-of" in found] == []
    assert not any(own in one.name for one in permissions.for_apply(STACK))


OPENSHIFT = inventory_with({"cluster": {"platform": "openshift"}})
_CONSTRAINTS, _USE = ("security.openshift.io", "securitycontextconstraints"), "use"


def test_constraints_are_granted_by_name_on_openshift_alone() -> None:
    """Who writes a Role has to hold what it grants, so the account may use the constraints as well."""
    before, after = permissions.for_apply(STACK), permissions.for_apply(OPENSHIFT)
    found = {one for one in after - before if (one.group, one.resource) == _CONSTRAINTS}
    named = {one.name for one in found if one.verb == "create"}
    assert "nvidia-driver" in named
    assert {(one.verb, one.name) for one in found if one.verb != _USE} == {
        ("list", ""),
        *((verb, name) for verb in ("get", "create", "patch") for name in named),
        *(("delete", one.name) for one in found if one.verb == "delete"),
    }
    home = {STACK.cluster.namespace, STACK.specs.nfd.namespace}
    assert {one.name for one in found if one.verb == _USE} == named
    assert {one.namespace for one in found if one.verb == _USE} == home
    assert {one.name for one in before if one.verb == _USE} == {"privileged"}
    removable = {one.name for one in permissions.for_destroy(OPENSHIFT) if one.resource == _CONSTRAINTS[1]}
    assert removable >= named


def test_what_openshift_says_of_itself_is_read_by_name() -> None:
    more = permissions.for_view(OPENSHIFT) - permissions.for_view(STACK)
    assert {(one.verb, one.resource, one.namespace, one.name) for one in more} == {
        ("get", "clusterversions", "", "version"),
        ("get", "proxies", "", "cluster"),
        ("get", "imagestreams", "", "driver-toolkit"),
        ("list", "machineconfigpools", "", ""),
        ("list", "machineconfigs", "", ""),
        ("get", "machineconfigs", "", ""),
        ("list", "securitycontextconstraints", "", ""),
    }


_GROUP = "machineconfiguration.openshift.io"


def test_machine_configs_are_for_openshift_alone() -> None:
    """Their names hold those of pools, and rendered ones a digest, so that neither can be named."""
    more = permissions.for_apply(OPENSHIFT) - permissions.for_apply(STACK)
    assert {(one.verb, one.resource) for one in more if one.group == _GROUP} == {
        *((verb, "machineconfigs") for verb in ("list", "get", "create", "patch", "delete")),
        *((verb, "machineconfigpools") for verb in ("list", "watch")),
    }
    assert not [one for one in more if one.group == _GROUP and one.name]
    assert Permission("delete", _GROUP, "machineconfigs") in permissions.for_destroy(OPENSHIFT)
    watched = {(one.verb, one.resource) for one in permissions.for_watches(OPENSHIFT)}
    scopes = run_scopes(OPENSHIFT, machines=True)
    assert watched == {(verb, KINDS[scope.kind]) for scope in scopes for verb in ("list", "watch")}


def test_machine_configs_that_are_off_can_only_be_removed() -> None:
    off = inventory_with({"cluster": {"platform": "openshift"}, "openshift": {"machine_config": False}})
    verbs = {one.verb for one in permissions.for_apply(off) if one.group == _GROUP}
    assert "delete" in verbs
    assert not verbs & {"create", "patch"}


def test_the_tables_name_every_kind_that_the_code_uses() -> None:
    """They are written by hand: a kind that the code gains would be refused first in a user's cluster."""
    watched = {(one.verb, one.resource) for one in permissions.for_watches(STACK)}
    assert watched == {(verb, KINDS[scope.kind]) for scope in run_scopes(STACK) for verb in ("list", "watch")}
    taken_over = {one.resource for one in permissions.additional_for_adopt(STACK) if one.verb == "patch"}
    by_name = {"customresourcedefinitions", "namespaces"}  # an apply has what an adoption needs of these
    assert taken_over >= {KINDS[kind] for kind in MEMBER_KINDS} - by_name
    taken_over |= {one.resource for one in permissions.additional_for_adopt(OPENSHIFT) if one.verb == "patch"}
    assert _CONSTRAINTS[1] in taken_over
