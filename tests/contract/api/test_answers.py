from __future__ import annotations

import pytest

from tests.contract.api.replay import STEPS, recorded, replay
from tests.contract.client import Object, Server

RECORDED = recorded()
NAMES = [f"{number:02} {step['do']}" for number, step in enumerate(STEPS)]


@pytest.fixture(scope="module")
def answers(server: Server) -> list[Object]:
    """What the server answered to all requests, in their order."""
    return replay(server)


@pytest.mark.usefixtures("_controllers")
@pytest.mark.parametrize("number", range(len(STEPS)), ids=NAMES)
def test_a_request_is_answered_as_a_real_server_has_answered_it(answers: list[Object], number: int) -> None:
    """Code, reason and message of a refusal, and every field of an object, the defaulted ones too."""
    given, wanted = answers[number], RECORDED[number]
    if "differs" in STEPS[number]:
        assert given["code"] == wanted["code"], STEPS[number]["differs"]
    else:
        assert given == wanted


def test_every_request_has_an_answer_on_record() -> None:
    assert len(RECORDED) == len(STEPS)
