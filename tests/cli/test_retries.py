"""What a reader of the command line sees of an API server that answers badly."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.cli.harness import SANDBOX
from tests.cluster.conftest import kubeconfig

_MAIN = "from gpu_provision.cli import main; main()"


class _Overloaded(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        """Ask the client to come back in a minute."""
        self.send_response(503)
        self.send_header("Retry-After", "50")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Keep quiet."""


@pytest.fixture
def overloaded(tmp_path: Path) -> Iterator[Path]:
    """Give the kubeconfig of a server that is overloaded."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Overloaded) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        yield kubeconfig(tmp_path, f"http://127.0.0.1:{server.server_port}")
        server.shutdown()


def start(path: Path, *options: str, **environment: str) -> subprocess.Popen[str]:
    """Start ``gpu-provision status`` on the server of a kubeconfig."""
    inventory = path.with_name("inventory.yaml")
    inventory.write_text(SANDBOX.read_text().replace("sandbox: default", f"kubeconfig: {path}"))
    words = (sys.executable, "-c", _MAIN, "status", "-i", str(inventory), *options)
    return subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **environment}
    )


def test_an_interrupt_ends_retries_at_once(overloaded: Path) -> None:
    run = start(overloaded)
    assert run.stderr is not None
    said = run.stderr.readline()
    # The first requests are sent at the same time: any of them may be answered first.
    assert said.startswith("the API server answered 503 once; trying for another 60 s (GET ")
    run.send_signal(signal.SIGINT)
    out, rest = run.communicate(timeout=300)
    assert run.returncode == 130
    assert "Traceback" not in out + rest


@pytest.mark.parametrize("way", ["option", "environment"])
def test_the_api_timeout_bounds_the_retries(overloaded: Path, way: str) -> None:
    options, environment = (("--api-timeout", "1"), {}) if way == "option" else ((), {"GPU_PROVISION_API_TIMEOUT": "1"})
    run = start(overloaded, "--json", *options, **environment)
    out, _ = run.communicate(timeout=300)
    assert run.returncode == 69
    assert json.loads(out)
    assert "the API server is starting, ending or overloaded (503)" in out


@pytest.mark.parametrize("text", ["soon", "0", "-1", "1.5", "٣", "1\n"])
def test_an_api_timeout_that_is_no_number_is_a_usage_error(overloaded: Path, text: str) -> None:
    run = start(overloaded, GPU_PROVISION_API_TIMEOUT=text)
    _, said = run.communicate(timeout=300)
    assert run.returncode == 64
    assert "GP314" in said
