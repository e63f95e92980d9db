"""The cluster for code in the same process: the protocol of sandbox/api.py."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from gpu_provision.sandbox.api import Api, ApiError, ApiResource
from gpu_provision.sandbox.apiserver.local_api import LocalApi
from tests.sandbox.apiserver.conftest import POD, Cluster

PODS = ApiResource("", "v1", "pods")
CONFIGMAPS = ApiResource("", "v1", "configmaps")


@pytest.fixture
def api(cluster: Cluster) -> LocalApi:
    """Speak to an empty cluster."""
    typed: Api = LocalApi(cluster.registry)
    assert isinstance(typed, LocalApi)
    return typed


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a scenario."""
    return asyncio.run(coroutine)


def test_what_comes_back_is_the_callers_own(api: LocalApi) -> None:
    """Changing a result, or what was given, changes nothing in the cluster."""

    async def scenario() -> None:
        body = {"metadata": {"name": "one"}, "data": {"a": "1"}}
        made = await api.create(CONFIGMAPS, body, "default")
        made["data"]["a"] = body["data"]["a"] = "changed"
        items, _ = await api.list(CONFIGMAPS, "default", field_selector="metadata.name=one")
        items[0]["data"]["a"] = "changed"
        assert (await api.get(CONFIGMAPS, "one", "default"))["data"] == {"a": "1"}

    run(scenario())


def test_a_watch_goes_on_from_its_list(api: LocalApi) -> None:
    """The events since the list, in order, as copies."""

    async def scenario() -> list[tuple[str, str]]:
        _, version = await api.list(PODS)
        await api.create(PODS, {"metadata": {"name": "a"}, "spec": POD}, "default")
        await api.patch(PODS, "a", {"status": {"phase": "Running"}}, "default", "status")
        await api.delete(PODS, "a", "default")
        seen = []
        async for event in api.watch(PODS, version):
            seen.append((event.type, event.object["status"]["phase"]))
            if len(seen) == 3:
                return seen
        return seen

    assert run(scenario()) == [("ADDED", "Pending"), ("MODIFIED", "Running"), ("DELETED", "Running")]


def test_errors_are_those_of_the_protocol(api: LocalApi) -> None:
    """ApiError with code and reason, also for resources that nobody serves."""

    async def scenario() -> list[tuple[int, str]]:
        calls = [
            api.get(PODS, "none", "default"),
            api.get(ApiResource("example.org", "v1", "things"), "none"),
            api.create(CONFIGMAPS, {"metadata": {"name": "kube-root-ca.crt"}}, "default"),
            api.delete(PODS, "none", "default"),
            api.bind("none", "n1", "default"),
        ]
        refusals = await asyncio.gather(*calls, return_exceptions=True)
        return [(refusal.code, refusal.reason) for refusal in refusals if isinstance(refusal, ApiError)]

    assert run(scenario()) == [
        (404, "NotFound"),
        (404, "NotFound"),
        (409, "AlreadyExists"),
        (404, "NotFound"),
        (404, "NotFound"),
    ]


def test_binding_graceful_deletion_and_owners(api: LocalApi) -> None:
    """A bound pod waits for grace 0; who wrote stands in managedFields."""

    async def scenario() -> None:
        kubelet = api.as_manager("kubelet")
        await api.create(PODS, {"metadata": {"generateName": "p-"}, "spec": POD}, "default")
        [pod], _ = await api.list(PODS, "default")
        name = pod["metadata"]["name"]
        await api.bind(name, "n1", "default")
        await kubelet.patch(PODS, name, {"status": {"phase": "Running"}}, "default", "status")
        [pod], _ = await api.list(PODS, field_selector="spec.nodeName=n1")
        managers = {(row["manager"], row.get("subresource", "")) for row in pod["metadata"]["managedFields"]}
        assert ("kubelet", "status") in managers
        await api.delete(PODS, name, "default")
        assert (await api.get(PODS, name, "default"))["metadata"]["deletionTimestamp"]
        await kubelet.delete(PODS, name, "default", grace_seconds=0)
        assert await api.list(PODS) == ([], str((await api.list(PODS))[1]))

    run(scenario())


def test_an_update_checks_its_version(api: LocalApi) -> None:
    """Status is written through its subresource."""

    async def scenario() -> None:
        old = await api.create(CONFIGMAPS, {"metadata": {"name": "one"}, "data": {"a": "1"}}, "default")
        await api.update(CONFIGMAPS, {**old, "data": {"a": "2"}}, "default")
        with pytest.raises(ApiError, match="409 Conflict"):
            await api.update(CONFIGMAPS, {**old, "data": {"a": "3"}}, "default")

    run(scenario())


def test_the_resources_that_hold_objects_are_listed(api: LocalApi) -> None:
    """Each once, although events are served by two groups; questions are none."""
    names = [resource.plural for resource in api.resources()]
    assert names.count("events") == 1
    assert {"pods", "daemonsets", "leases"} <= set(names)
    assert "selfsubjectaccessreviews" not in names
