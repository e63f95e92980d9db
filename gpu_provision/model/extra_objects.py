"""Kinds of objects that an inventory may have under ``extra_objects``."""

from __future__ import annotations

from collections.abc import Mapping

from gpu_provision.model.cluster import Kind

EXTRA_KINDS: Mapping[Kind, bool] = {
    Kind(api_version, kind): api_version not in {"node.k8s.io/v1", "scheduling.k8s.io/v1"}
    for api_version, kinds in {
        "monitoring.coreos.com/v1": "PodMonitor PrometheusRule ServiceMonitor",
        "networking.k8s.io/v1": "NetworkPolicy",
        "node.k8s.io/v1": "RuntimeClass",
        "policy/v1": "PodDisruptionBudget",
        "scheduling.k8s.io/v1": "PriorityClass",
        "v1": "ConfigMap LimitRange ResourceQuota Service ServiceAccount",
    }.items()
    for kind in kinds.split()
}
"""Kind -> whether its objects are in a namespace.

Permissions of all of them can be named. Workloads, Secrets, roles and kinds of others are left out: the content of a
Secret would stand in plans and records, and a role needs an account that holds what the role grants.
"""
