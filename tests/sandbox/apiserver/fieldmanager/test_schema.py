"""The types of built-in kinds, as the data file gives them."""

from __future__ import annotations

import pytest

from gpu_provision.sandbox.apiserver.fieldmanager.schema import ABSENT, DEDUCED, ListTypes, Shape, Type, builtin

KINDS = {
    "v1": "ConfigMap Endpoints Event LimitRange Namespace Node PersistentVolume PersistentVolumeClaim Pod "
    "ReplicationController ResourceQuota Secret Service ServiceAccount",
    "apps/v1": "ControllerRevision DaemonSet Deployment ReplicaSet StatefulSet",
    "batch/v1": "CronJob Job",
    "rbac.authorization.k8s.io/v1": "ClusterRole ClusterRoleBinding Role RoleBinding",
    "node.k8s.io/v1": "RuntimeClass",
    "scheduling.k8s.io/v1": "PriorityClass",
    "coordination.k8s.io/v1": "Lease",
    "policy/v1": "PodDisruptionBudget",
    "events.k8s.io/v1": "Event",
    "discovery.k8s.io/v1": "EndpointSlice",
    "networking.k8s.io/v1": "Ingress NetworkPolicy",
    "storage.k8s.io/v1": "StorageClass",
    "apiextensions.k8s.io/v1": "CustomResourceDefinition",
}


def at(api_version: str, kind: str, path: str) -> Type:
    types = builtin(api_version, kind)
    assert types is not None
    typed = types.root
    for name in path.split("."):
        typed = (typed.item or DEDUCED) if name == "*" else typed.of(name)
    return typed


@pytest.mark.parametrize(
    ("version", "kind"), [(version, kind) for version, kinds in KINDS.items() for kind in kinds.split()]
)
def test_every_served_kind_is_known(version: str, kind: str) -> None:
    """Each has metadata, and all its types can be read."""
    assert at(version, kind, "metadata.finalizers").shape is Shape.SET


@pytest.mark.parametrize(
    ("path", "keys"),
    [
        ("spec.containers", ["name"]),
        ("spec.initContainers", ["name"]),
        ("spec.volumes", ["name"]),
        ("spec.hostAliases", ["ip"]),
        ("spec.imagePullSecrets", ["name"]),
        ("spec.topologySpreadConstraints", ["topologyKey", "whenUnsatisfiable"]),
        ("spec.containers.*.env", ["name"]),
        ("spec.containers.*.ports", ["containerPort", "protocol"]),
        ("spec.containers.*.volumeMounts", ["mountPath"]),
        ("status.conditions", ["type"]),
        ("status.podIPs", ["ip"]),
        ("metadata.ownerReferences", ["uid"]),
    ],
)
def test_a_pods_lists_have_their_keys(path: str, keys: list[str]) -> None:
    """Facts of the Kubernetes API."""
    typed = at("v1", "Pod", path)
    assert (typed.shape, [name for name, _ in typed.keys]) == (Shape.LIST, keys)


def test_a_protocol_that_is_left_out_is_tcp() -> None:
    """Container ports and service ports have the default in their key."""
    assert at("v1", "Pod", "spec.containers.*.ports").keys[1] == ("protocol", "TCP")
    assert at("v1", "Service", "spec.ports").keys[1] == ("protocol", "TCP")


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        ("DaemonSet", "spec.selector"),
        ("DaemonSet", "spec.template.spec.nodeSelector"),
        ("DaemonSet", "spec.template.spec.tolerations"),
        ("DaemonSet", "spec.template.spec.containers.*.args"),
        ("DaemonSet", "spec.template.spec.containers.*.env.*.valueFrom.fieldRef"),
        ("DaemonSet", "spec.template.spec.containers.*.env.*.valueFrom.secretKeyRef"),
    ],
)
def test_some_values_are_atomic(kind: str, path: str) -> None:
    """Whoever sets them owns them whole."""
    assert at("apps/v1", kind, path).shape is Shape.LEAF


def test_an_object_that_is_atomic_elsewhere_can_be_merged_at_one_place() -> None:
    """A volume's claim reference is merged although other object references are atomic."""
    assert at("v1", "PersistentVolume", "spec.claimRef").shape is Shape.MAP


def test_an_unknown_kind_and_a_kind_of_another_group_are_not_built_in() -> None:
    """A custom resource does not get a built-in type because of its name."""
    assert builtin("nfd.k8s-sigs.io/v1alpha1", "NodeFeature") is None
    assert builtin("apps.example.com/v1", "DaemonSet") is None
    assert builtin("apps/v2", "DaemonSet") is None


def test_a_status_without_the_subresource_is_a_field_like_others() -> None:
    """Only kinds whose status has its own endpoint keep it out of other writes."""
    assert builtin("v1", "Pod") == ListTypes(at("v1", "Pod", "").of("") and builtin("v1", "Pod").root, has_status=True)  # type: ignore[union-attr]
    config_map = builtin("v1", "ConfigMap")
    assert config_map is not None
    assert not config_map.has_status


def test_a_crds_schema_is_read() -> None:
    """Int-or-string, free maps, embedded resources and unknown fields have their types."""
    schema = {
        "type": "object",
        "properties": {
            "port": {"x-kubernetes-int-or-string": True},
            "free": {"type": "object", "additionalProperties": {"type": "integer"}},
            "any": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
            "embedded": {"type": "object", "x-kubernetes-embedded-resource": True},
            "list": {"type": "array", "items": {"type": "string"}},
            "keyed": {
                "type": "array",
                "items": {"type": "object", "properties": {"name": {"type": "string"}}},
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["name"],
            },
        },
    }
    root = ListTypes.from_crd(schema, has_status=True).root
    assert root.of("port").shape is Shape.LEAF
    assert root.of("free").of("x").scalar == "number"
    assert root.of("any").of("x") is DEDUCED
    assert root.of("embedded").of("metadata").of("finalizers").shape is Shape.SET
    assert root.of("list").shape is Shape.LEAF
    assert root.of("keyed").keys == (("name", ABSENT),)
    assert root.of("metadata").of("labels").native
