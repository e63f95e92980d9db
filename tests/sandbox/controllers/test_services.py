"""Endpoints of Services and disruption budgets on a cluster that runs."""

from __future__ import annotations

from typing import Any

from gpu_provision.sandbox.controllers.resources import (
    DEPLOYMENTS,
    DISRUPTION_BUDGETS,
    ENDPOINT_SLICES,
    ENDPOINTS,
    PODS,
    SERVICES,
)

LABELS = {"app": "web"}


def deployment(template: Any, replicas: int = 3) -> Any:
    """Return a Deployment's spec with a named port."""
    container = {"ports": [{"name": "http", "containerPort": 8080}]}
    return {
        "replicas": replicas,
        "selector": {"matchLabels": LABELS},
        "template": template(LABELS, container=container),
    }


def test_a_service_has_the_addresses_of_its_ready_pods(lab: Any, template: Any) -> None:
    """In EndpointSlices and in Endpoints, which go with the Service."""

    async def story(lab: Any) -> None:
        await lab.node("a")
        await lab.create(DEPLOYMENTS, "Deployment", "web", spec=deployment(template))
        ports = [{"name": "http", "port": 80, "targetPort": "http"}]
        await lab.create(SERVICES, "Service", "web", spec={"selector": LABELS, "ports": ports})
        await lab.status_of(DEPLOYMENTS, "web", availableReplicas=3)

        async def three() -> Any:
            (found,) = (await lab.api.list(ENDPOINT_SLICES, "default", "kubernetes.io/service-name=web"))[0]
            endpoints = await lab.api.get(ENDPOINTS, "web", "default")
            ready = [one for one in found["endpoints"] if one["conditions"]["ready"]]
            if len(ready) != 3:
                return None
            return found, endpoints["subsets"]

        found, subsets = await lab.until(three)
        assert found["ports"] == [{"name": "http", "protocol": "TCP", "port": 8080}]
        pods = {pod["status"]["podIP"] for pod in await lab.pods()}
        assert {one["addresses"][0] for one in found["endpoints"]} == pods
        assert {one["ip"] for one in subsets[0]["addresses"]} == pods
        await lab.api.delete(SERVICES, "web", "default")
        await lab.gone(ENDPOINTS, "web")
        await lab.gone(ENDPOINT_SLICES, found["metadata"]["name"])

    lab(story)


def test_a_service_without_pods_has_an_empty_slice(lab: Any) -> None:
    """So that readers tell "none" from "not yet"."""

    async def story(lab: Any) -> None:
        await lab.create(SERVICES, "Service", "web", spec={"selector": LABELS, "ports": [{"port": 80}]})

        async def empty() -> Any:
            found, _ = await lab.api.list(ENDPOINT_SLICES, "default", "kubernetes.io/service-name=web")
            return [one.get("endpoints") or [] for one in found] == [[]]

        await lab.until(empty)

    lab(story)


def test_a_budget_follows_its_pods(lab: Any, template: Any) -> None:
    """Disruptions are allowed while more pods are healthy than desired."""

    async def story(lab: Any) -> None:
        await lab.node("a")
        spec = {"maxUnavailable": 1, "selector": {"matchLabels": LABELS}}
        await lab.create(DISRUPTION_BUDGETS, "PodDisruptionBudget", "web", spec=spec)
        await lab.create(DEPLOYMENTS, "Deployment", "web", spec=deployment(template))
        await lab.status_of(
            DISRUPTION_BUDGETS, "web", expectedPods=3, currentHealthy=3, desiredHealthy=2, disruptionsAllowed=1
        )
        await lab.condition(DISRUPTION_BUDGETS, "web", "DisruptionAllowed")
        name = (await lab.pods())[0]["metadata"]["name"]
        unready = {"status": {"conditions": [{"type": "Ready", "status": "False"}]}}
        await lab.api.patch(PODS, name, unready, "default", "status")
        await lab.status_of(DISRUPTION_BUDGETS, "web", currentHealthy=2, disruptionsAllowed=0)

    lab(story)
