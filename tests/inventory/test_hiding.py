"""No record shows a secret, and all else in it is as it was written."""

from __future__ import annotations

import json

import pytest
import yaml

from gpu_provision.inventory.hiding import hidden, replaced, restored
from gpu_provision.inventory.secrets import without_users
from tests.documents import CHECKOUT

TEXT = """\
# the old password: hunter2
name: x   # see http://bob:pw1@wiki/
driver:
  env:
    NGC_API_KEY: &key nvapi-12345   # ends with nvapi-12345
    NGC_KEY: ngc-0000
    HTTPS_PROXY: http://u:p@ss/w@h:3128
    ESCAPED: "http:\\/\\/u:pw2@h"
    PLAIN: "yes"
    TOKEN: |
      first line
      second line
    TEXT: 'a # b'
  args: [--token=abc123, --verbose, é]
proxy: {http_proxy: "http://me:pw3@h:1", no_proxy: localhost}
copy: *key
again: nvapi-12345
nodes:
  - {name: b, env: {SECRET: s1}}
  - name: a
    env: {SECRET: "s # 2", TOKEN: "yes"}
"""
SECRETS = ["hunter2", "pw1", "nvapi", "ngc-0", "p@ss", "pw2", "abc123", "pw3", "s1"]


def test_secrets_are_hidden_wherever_they_stand() -> None:
    """By name, in addresses, in arguments, in comments, by an alias, and where the same value is written again."""
    shown = hidden(TEXT)
    assert [secret for secret in [*SECRETS, "first line", "s # 2"] if secret in shown] == []


def test_all_else_is_as_it_was() -> None:
    told = [line for line in hidden(TEXT).splitlines() if "not shown" not in line]
    assert [line for line in TEXT.splitlines() if line in told] == told
    assert '    PLAIN: "yes"' in told
    assert "    TEXT: 'a # b'" in told
    assert yaml.safe_load(hidden(TEXT)).keys() == yaml.safe_load(TEXT).keys()
    prod = (CHECKOUT / "inventories" / "prod.yaml").read_text()
    assert yaml.safe_load(hidden(prod)) == yaml.safe_load(prod), "comments alone may tell"


def test_secrets_come_back_from_a_file_that_has_them() -> None:
    back = restored(hidden(TEXT), TEXT)
    assert yaml.safe_load(back) == yaml.safe_load(TEXT)


def test_a_list_may_be_in_another_order() -> None:
    document = yaml.safe_load(TEXT)
    document["nodes"].reverse()
    back = restored(hidden(TEXT), yaml.safe_dump(document))
    assert yaml.safe_load(back) == yaml.safe_load(TEXT)


@pytest.mark.parametrize(
    ("old", "new", "hidden_ones"),
    [
        ("NGC_KEY: ", "NGC_OLD: ", 1),
        ("me:pw3@h:1", "me:pw3@elsewhere:1", 1),
        ("me:pw3@h:1", "me:new@h:1", 0),
        ("name: b", "name: c", 1),
    ],
)
def test_a_secret_is_that_of_the_same_place_and_address(old: str, new: str, hidden_ones: int) -> None:
    """A password that was changed since is the one to use."""
    back = yaml.safe_load(restored(hidden(TEXT), TEXT.replace(old, new)))
    assert json.dumps(back).count("(not shown)") == hidden_ones


def test_without_a_file_every_value_stays_hidden() -> None:
    assert restored(hidden(TEXT), "") == restored(hidden(TEXT), "name: x") == hidden(TEXT)


def test_a_value_is_replaced_where_it_stands() -> None:
    """By its path; comments and anchors stay."""
    found = replaced(TEXT, {("driver", "env", "NGC_API_KEY"): 'a "b"', ("name",): "y", ("none",): "z"})
    assert found == TEXT.replace("name: x ", 'name: "y" ').replace("&key nvapi-12345 ", '&key "a \\"b\\"" ', 1)


def test_messages_of_others_lose_users_and_passwords() -> None:
    assert without_users("dial http://u:p@h: refused") == "dial http://(not shown)@h: refused"
