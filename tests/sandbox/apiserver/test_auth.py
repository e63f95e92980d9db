"""Tokens and rules."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from gpu_provision.sandbox.apiserver.auth import ADMIN, ANONYMOUS, Attempt, Rule, Tokens, check
from gpu_provision.sandbox.apiserver.status import StatusError


def test_tokens_are_read_again_when_their_file_changes(tmp_path: Path) -> None:
    """A file that is broken for a moment locks nobody out."""
    path = tmp_path / "tokens.json"
    tokens = Tokens(path)
    header = f"Bearer {tokens.token()}"
    assert (tokens.user_of(header), stat.S_IMODE(path.stat().st_mode)) == (ADMIN, 0o600)
    path.write_text("{")
    os.utime(path, ns=(1, 1))
    assert tokens.user_of(header) == ADMIN
    path.write_text('{"other": "bob"}')
    os.utime(path, ns=(2, 2))
    assert tokens.user_of("Bearer other") == "bob"
    with pytest.raises(StatusError, match="401 Unauthorized"):
        tokens.user_of(header)


@pytest.mark.parametrize("header", ["", "Basic abc", "Bearer", "Bearer "])
def test_whoever_shows_no_token_is_nobody(tmp_path: Path, header: str) -> None:
    """A good token under another scheme is none."""
    tokens = Tokens(tmp_path / "tokens.json")
    assert tokens.user_of(header.replace("abc", tokens.token())) == ANONYMOUS


def test_a_wrong_token_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StatusError, match="401 Unauthorized"):
        Tokens(tmp_path / "tokens.json").user_of("Bearer wrong")


@pytest.mark.parametrize(
    ("rule", "refused"),
    [
        (Rule("bob"), True),
        (Rule("eve"), False),
        (Rule("bob", verbs=("get",)), False),
        (Rule("bob", verbs=("patch",), resources=("nodes/status",)), True),
        (Rule("bob", namespaces=("other",)), False),
    ],
)
def test_a_rule_forbids_what_it_names(rule: Rule, *, refused: bool) -> None:
    """An empty part of a rule means everything."""
    attempt = Attempt("bob", "patch", "", "nodes/status", "", "n1")
    if not refused:
        check(attempt, [rule])
        return
    with pytest.raises(StatusError, match=r'cannot patch resource "nodes/status" .* at the cluster scope'):
        check(attempt, [rule])
