"""The Api in the same process, and its fair queue."""

from __future__ import annotations

import asyncio

from gpu_provision.sandbox.api import Api, ApiResource
from gpu_provision.sandbox.apiserver.local_api import FairQueue, LocalApi
from tests.sandbox.apiserver.conftest import Cluster

CONFIGMAPS = ApiResource("", "v1", "configmaps")


def test_what_comes_back_is_the_callers_own(cluster: Cluster) -> None:
    """A change of a result or an argument changes nothing in the cluster."""
    api: Api = LocalApi(cluster.registry)

    async def scenario() -> None:
        body = {"metadata": {"name": "one"}, "data": {"a": "1"}}
        made = await api.create(CONFIGMAPS, body, "default")
        made["data"]["a"] = body["data"]["a"] = "changed"
        items, _ = await api.list(CONFIGMAPS, "default", field_selector="metadata.name=one")
        items[0]["data"]["a"] = "changed"
        assert (await api.get(CONFIGMAPS, "one", "default"))["data"] == {"a": "1"}

    asyncio.run(scenario())


def test_a_crowd_leaves_room_for_others_between_its_turns() -> None:
    """A task of ten turns ends long before a thousand writes; a cancelled caller blocks no other."""

    async def ask() -> int:
        for _ in range(10):
            await asyncio.sleep(0)
        return len(gone)

    async def go(number: int) -> None:
        await queue.wait_turn()
        gone.append(number)

    async def all_of_them() -> int:
        crowd = [asyncio.create_task(go(number)) for number in range(1000)]
        found = await asyncio.create_task(ask())
        crowd[500].cancel()
        await asyncio.gather(*crowd, return_exceptions=True)
        return found

    queue, gone = FairQueue(), list[int]()
    assert asyncio.run(all_of_them()) < 300
    assert gone == [number for number in range(1000) if number != 500], "in the order in which they came"
