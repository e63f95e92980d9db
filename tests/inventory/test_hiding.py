"""No record shows a secret, and all else in it is as it was written."""

from __future__ import annotations

import json

import pytest
import yaml

from gpu_provision.inventory.hiding import hidden, replaced, restored
from gpu_provision.inventory.redaction import HIDDEN, without_users
from tests.documents import CHECKOUT

TEXT = """\
# the old password: hunter2
name: x   # see http://bob:pw1@wiki/
driver:
  env:
    NGC_API_KEY: &key nvapi-12345   # ends with nvapi-12345
    GIT_PAT: ghp-0000
    # LICENSE: lic-old
    LICENSE: lic-1
    PIN: "1234"
    HTTPS_PROXY: http://u:p@ss/w@h:3128
    NO_PROXY: me:pw4@h
    ESCAPED: "http:\\/\\/u:pw2@h"
    CONTAINERD_CONFIG: "/etc/containerd/config.toml"
    TOKEN: |
      first line
      # second line
    TEXT: 'a # b'
    FROM_FILE: {file: secrets/pat}
    FROM_CALLER: {env: CALLERS_PAT}
    FROM_CLUSTER: {secret: {name: git, key: pat}}
  args: [--token=abc123, --verbose, é, *key, --key=nvapi-12345, "# no comment"]
proxy: {http_proxy: "http://me:pw3@h:1", https_proxy: {env: CALLERS_PROXY}, no_proxy: localhost}
daemonsets:
  annotations: {example.com/token: s0, example.com/team: 'vision # 1'}
pools:
  b: {driver: {env: {SHORT: s1}}}
  a:
    driver: {env: {SECRET: "s # 2", TOKEN: "yes"}}   # the pool's own
"""
SECRETS = ["hunter2", "pw1", "nvapi", "ghp-0", "lic-", "1234", "p@ss", "pw2", "pw4", "abc123", "pw3", "s0", "s1"]


def test_secrets_are_hidden_wherever_they_stand() -> None:
    """What the schema marks, in addresses, in arguments, in comments, and by an alias."""
    shown = hidden(TEXT)
    told = [*SECRETS, "first line", "second line", "a # b", "s # 2", "yes", "the pool"]
    assert [secret for secret in told if secret in shown] == []


def test_names_alone_make_no_value_visible() -> None:
    """Each variable is secret but those that the schema exempts, whatever it is called."""
    told = yaml.safe_load(hidden("name: x\ndriver: {env: {GIT_PAT: a, LICENSE: b, PLAIN: c, RUNTIME: d, E: ''}}"))
    shown = {"GIT_PAT": HIDDEN, "LICENSE": HIDDEN, "PLAIN": HIDDEN, "RUNTIME": "d", "E": ""}
    assert told["driver"]["env"] == shown


def test_all_else_is_as_it_was() -> None:
    """Comments go; every other line stays as it is written, references among them."""
    told = [line for line in hidden(TEXT).splitlines() if "not shown" not in line]
    assert [line for line in TEXT.splitlines() if line in told] == [line for line in told if line != "name: x"]
    assert '    CONTAINERD_CONFIG: "/etc/containerd/config.toml"' in told
    assert "    FROM_FILE: {file: secrets/pat}" in told
    assert "    FROM_CALLER: {env: CALLERS_PAT}" in told
    assert "    FROM_CLUSTER: {secret: {name: git, key: pat}}" in told
    assert yaml.safe_load(hidden(TEXT)).keys() == yaml.safe_load(TEXT).keys()
    prod = (CHECKOUT / "inventories" / "prod.yaml").read_text()
    assert yaml.safe_load(hidden(prod)) == yaml.safe_load(prod), "comments alone may tell"
    assert "#" not in hidden(prod)


def test_secrets_come_back_from_a_file_that_has_them() -> None:
    back = restored(hidden(TEXT), TEXT)
    assert yaml.safe_load(back) == yaml.safe_load(TEXT)


@pytest.mark.parametrize(
    ("old", "new", "hidden_ones"),
    [
        ("GIT_PAT: ", "GIT_OLD: ", 1),
        ("me:pw3@h:1", "me:pw3@elsewhere:1", 1),
        ("me:pw3@h:1", "me:new@h:1", 0),
        ("  b: ", "  c: ", 1),
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
