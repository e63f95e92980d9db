"""What others have in a namespace: first, what there can be at all."""

from __future__ import annotations

import json
from collections.abc import Callable

from gpu_provision.destroy.discovery import ListableKind, foreign_objects_in, listable_kinds
from gpu_provision.kube.client import Cluster


def test_a_group_that_is_named_but_gone_has_nothing(answering: Callable[..., Cluster]) -> None:
    """As for a moment after its only definition was deleted."""
    groups = {"groups": [{"preferredVersion": {"groupVersion": "gpu-provision.io/v1alpha1"}}]}
    cluster = answering((200, {}, json.dumps(groups).encode()), (404, {}, b""))
    assert listable_kinds(cluster) == []


def test_a_list_that_the_server_puts_off_is_asked_for_again(answering: Callable[..., Cluster]) -> None:
    """As Kubernetes 1.36 does with custom resources that were not listed before."""
    kind = ListableKind("nfd.k8s-sigs.io/v1alpha1", "NodeFeatureGroup", "nodefeaturegroups")
    cluster = answering((429, {"Retry-After": "0"}, b"storage is (re)initializing"), (200, {}, b'{"items": []}'))
    assert foreign_objects_in(cluster, "gpu-operator", [kind], ()) == []
