"""Outputs that cannot take what is written."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

_MAIN = "from gpu_provision.cli import main; main()"


def gpu_provision(*words: str, redirect: str) -> subprocess.CompletedProcess[str]:
    """Run the command line under a shell that redirects its output."""
    shell = f'exec "$@" {redirect}'
    command = ("sh", "-c", shell, "sh", sys.executable, "-c", _MAIN, *words)
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.parametrize("words", [("schema",), ("schema", "--json"), ("validate", "--json")])
def test_a_full_disk_is_told_in_words_on_stderr(words: tuple[str, ...]) -> None:
    ran = gpu_provision(*words, redirect=">/dev/full")
    assert ran.returncode == 1
    assert ran.stderr == f"error: GP007: the output cannot be written\n  seen: {os.strerror(28)}\n"


@pytest.mark.parametrize("redirect", [">&-", "2>&-", ">&- 2>&-", "<&-"])
def test_closed_streams_are_no_failure(redirect: str) -> None:
    ran = gpu_provision("schema", redirect=redirect)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_a_reader_that_has_seen_enough_is_no_failure() -> None:
    ran = gpu_provision("schema", redirect="| head -1")
    assert (ran.stdout, ran.stderr) == ("{\n", "")
