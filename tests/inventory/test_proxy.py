"""What the driver container, and what container runtimes on hosts are told of an inventory's proxies."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_provision.inventory.proxy import container_env, runtime_proxy

BOTH = {"http_proxy": "http://p:1", "https_proxy": "http://p:2", "no_proxy": ".example.com"}


def test_the_driver_container_is_told_in_upper_and_lower_case() -> None:
    """Programs in it read the one or the other; curl reads http_proxy in lower case alone."""
    told = container_env(BOTH, {"OTHER": "1"})
    assert told == {**BOTH, "HTTP_PROXY": "http://p:1", "HTTPS_PROXY": "http://p:2", "NO_PROXY": ".example.com"}


@pytest.mark.parametrize(
    ("section", "own"),
    [
        (BOTH, {"HTTPS_PROXY": "http://other:1"}),
        (BOTH, {"http_proxy": ""}),
        ({**BOTH, "https_proxy": "http://me:pw@p:2"}, {}),
        ({**BOTH, "credentials_file": "file"}, {}),
        ({"no_proxy": ".example.com"}, {}),
        ({}, {}),
    ],
)
def test_the_driver_container_is_told_nothing(section: dict[str, str], own: dict[str, str]) -> None:
    """Its own proxies win; credentials would be in every pod's description; without a proxy there is nothing to say."""
    assert container_env(section, own) == {}


def test_addresses_with_credentials_of_their_own_keep_them(tmp_path: Path) -> None:
    """The file is for those that have none."""
    (tmp_path / "secret").write_text("me:pw\n")
    section = {**BOTH, "http_proxy": "http://you@p:1", "credentials_file": "secret"}
    assert runtime_proxy(section, tmp_path) == {
        "http_proxy": "http://you@p:1",
        "https_proxy": "http://me:pw@p:2",
        "no_proxy": ".example.com",
    }
