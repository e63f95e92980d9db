from __future__ import annotations

import pytest

from tests.contract.api.replay import STEPS, read_answers, replay
from tests.contract.client import Object, Server

RECORDED = read_answers()
NAMES = [f"{number:02} {step['do']}" for number, step in enumerate(STEPS)]


@pytest.fixture(scope="module")
def answers(server: Server) -> list[Object]:
    return replay(server)


@pytest.mark.usefixtures("_controllers")
@pytest.mark.parametrize("number", range(len(STEPS)), ids=NAMES)
def test_a_request_is_answered_as_a_real_server_has_answered_it(answers: list[Object], number: int) -> None:
    """Code, reason and message of an error, and every field of an object, including defaults."""
    given, wanted = answers[number], RECORDED[number]
    if "differs" in STEPS[number]:
        assert given["code"] == wanted["code"], STEPS[number]["differs"]
    else:
        assert given == wanted


def test_every_request_has_an_answer_on_record() -> None:
    assert len(RECORDED) == len(STEPS)
