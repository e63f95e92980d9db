"""Streams that take nothing, and signals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.harness import REPOSITORY, SANDBOX

PROGRAM = """
import sys, time
import gpu_provision
from gpu_provision.cli import main
from gpu_provision.model.findings import Finding, Severity, attach_findings

def status(inventory):
    try:
        print("waiting", flush=True)
        time.sleep(60)
    except KeyboardInterrupt as interrupt:
        interrupt.add_note("changed so far: nothing")
        attach_findings(interrupt, Finding(code="GP517", what="t4-1 stays cordoned", severity=Severity.WARNING))
        raise
    finally:
        print("gave the lock back", file=sys.stderr, flush=True)

gpu_provision.status = status
main(["status", "--json", "-i", sys.argv[1]])
"""


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_runs_the_cleanup_and_is_reported(sent: signal.Signals, code: int, tmp_path: Path) -> None:
    """The finally blocks run, a document is printed, and the exit code names the signal."""
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(SANDBOX)],
        cwd=REPOSITORY,
        env={**os.environ, "XDG_STATE_HOME": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout
    assert process.stdout.readline() == "waiting\n"
    process.send_signal(sent)
    out, err = process.communicate(timeout=300)
    assert process.returncode == code
    assert "gave the lock back" in err
    (error,) = json.loads(out)["errors"]
    assert (error["code"], error["evidence"]) == ("GP003", "changed so far: nothing")
    assert [each["what"] for each in json.loads(out)["warnings"]] == ["t4-1 stays cordoned"]
    assert "Traceback" not in err


_MAIN = "from gpu_provision.cli import main; main()"


def gpu_provision(*words: str, redirect: str) -> subprocess.CompletedProcess[str]:
    shell = f'exec "$@" {redirect}'
    command = ("sh", "-c", shell, "sh", sys.executable, "-c", _MAIN, *words)
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.parametrize("words", [("schema",), ("schema", "--json"), ("validate", "--json")])
def test_a_full_disk_is_reported_on_stderr(words: tuple[str, ...]) -> None:
    ran = gpu_provision(*words, redirect=">/dev/full")
    assert ran.returncode == 1
    assert ran.stderr == f"error: GP007: the output cannot be written\n  evidence: {os.strerror(28)}\n"


@pytest.mark.parametrize("redirect", [">&-", "2>&-", ">&- 2>&-", "<&-"])
def test_closed_streams_are_no_failure(redirect: str) -> None:
    ran = gpu_provision("schema", redirect=redirect)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_a_reader_that_has_seen_enough_is_no_failure() -> None:
    ran = gpu_provision("schema", redirect="| head -1")
    assert (ran.stdout, ran.stderr) == ("{\n", "")
