"""What two runs on record declared, whatever their texts say."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpu_provision.inventory import load
from gpu_provision.inventory.again import again
from gpu_provision.inventory.hiding import hidden
from gpu_provision.inventory.sameness import declare_the_same
from gpu_provision.model.history import OF_RESOURCE, Record
from gpu_provision.operator.stack import inventory_of
from tests.documents import CHECKOUT
from tests.operator.served import stored

FILES = (CHECKOUT / "inventories/sandbox.yaml", CHECKOUT / "inventories/prod.yaml")
NOW = load(FILES[0])
RUN = Record(id="a", number=1, text=hidden(NOW.text))
HOSTS = "host_prerequisites: {enabled: false}\n"
DRIVER = 'driver: {version: "580.126.20"}\n'


def of_stack(text: str) -> Record:
    """The record of a controller's run."""
    return Record(id="b", number=2, text=hidden(text), source=OF_RESOURCE)


@pytest.fixture(params=FILES, ids=lambda file: file.stem)
def stack(request: pytest.FixtureRequest) -> tuple[Record, Record, str]:
    """A run of a file, one of its stack as an API server stores it, and the file's text."""
    inventory, _ = inventory_of(stored(request.param))
    assert inventory
    assert inventory.is_of_resource
    text = request.param.read_text()
    return replace(RUN, text=hidden(text)), of_stack(inventory.text), text


def test_a_stack_means_what_its_file_does(stack: tuple[Record, Record, str]) -> None:
    """Defaults that a server writes, and hosts that a stack does not have, are no difference."""
    by_file, by_stack, text = stack
    now = replace(NOW, text=text)
    assert by_file.text != by_stack.text
    assert declare_the_same(by_file, by_stack, now)
    assert declare_the_same(by_stack, by_file, now)


def test_what_a_file_says_otherwise_of_the_cluster_is_another_meaning() -> None:
    inventory, _ = inventory_of(stored(FILES[0]))
    assert inventory
    changed = replace(RUN, text=NOW.text + DRIVER)
    assert not declare_the_same(changed, of_stack(inventory.text), NOW)
    assert not declare_the_same(changed, RUN, NOW)


def test_hosts_and_comments_are_no_difference() -> None:
    assert declare_the_same(RUN, replace(RUN, text=f"# of mine\n{RUN.text}"), NOW)
    assert "host_prerequisites" not in NOW.text
    assert declare_the_same(RUN, replace(RUN, text=NOW.text + HOSTS), NOW)


@pytest.mark.parametrize("text", ["{", "name: x\nweather: fine\n", ""])
def test_what_cannot_be_read_is_like_itself_alone(text: str) -> None:
    assert not declare_the_same(RUN, replace(RUN, text=text), NOW)
    assert not declare_the_same(replace(RUN, text=text, source=OF_RESOURCE), RUN, NOW)
    assert declare_the_same(replace(RUN, text=text, source=OF_RESOURCE), replace(RUN, text=text), NOW)


def test_hosts_that_a_stack_does_not_name_are_no_difference() -> None:
    """The record of a stack has the API server's defaults, and says nothing of hosts."""
    then, _ = inventory_of(stored(FILES[1]))
    assert then
    found = again(then.text, load(FILES[1]), name="run 2", of_cluster=True)
    assert (found.inventory and found.inventory.text, found.kept) == (FILES[1].read_text(), ())
