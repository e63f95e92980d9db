"""The simulation takes turns with whoever asks over the network."""

from __future__ import annotations

import asyncio

from gpu_provision.sandbox.apiserver.turns import Turns


def test_a_crowd_leaves_room_for_others_between_its_turns() -> None:
    """Whoever needs ten turns of the loop has had them long before the last of a thousand has gone on."""

    async def asking() -> int:
        for _ in range(10):
            await asyncio.sleep(0)
        return len(gone)

    async def going(number: int) -> None:
        await turns.take()
        gone.append(number)

    async def all_of_them() -> int:
        crowd = [asyncio.create_task(going(number)) for number in range(1000)]
        found = await asyncio.create_task(asking())
        await asyncio.gather(*crowd)
        return found

    turns, gone = Turns(), list[int]()
    assert asyncio.run(all_of_them()) < 300
    assert gone == list(range(1000)), "in the order in which they came"


def test_who_gives_up_holds_nobody_up() -> None:
    async def all_of_them() -> bool:
        turns = Turns()
        first, second = (asyncio.create_task(turns.take()) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.wait_for(second, 10)
        await asyncio.wait_for(turns.take(), 10)
        return first.cancelled() or not first.done()

    assert asyncio.run(all_of_them())
