"""Workers of the host phase that begin at once: forks of a process that has imported pyinfra already.

A hundred runs would each import it again, at more cost than what they are about. Environment, working directory and
pipes are a run's own, as ever. What is about the start itself takes the fixture ``cold_worker``.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import select
import signal
import socket
import sys
import traceback
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from gpu_provision.sandbox.hosts import isolation_problem
from tests.fork_server import MAX_REQUEST_BYTES, ForkServer, bury

# Before gevent has its own, which wait for an event loop.
_fork, _close = os.fork, os.close


class Worker:
    """A fork, with as much of `subprocess.Popen` as the host phase uses."""

    def __init__(self, pid: int) -> None:
        self._process = os.pidfd_open(pid)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._process, signal.SIGKILL)

    def wait(self) -> int:
        select.select([self._process], [], [])
        return -1

    def close(self) -> None:
        self.kill()
        self.wait()
        os.close(self._process)


class Forge(ForkServer):
    def __init__(self) -> None:
        super().__init__("tests.hosts.warm")

    @contextlib.contextmanager
    def worker(self, output: Any) -> Iterator[tuple[Worker, Connection]]:
        """Make a worker with this process' environment and folder; it ends with the block, however that ends."""
        request = {"environment": dict(os.environ), "folder": str(Path.cwd())}
        connection, other_end = multiprocessing.Pipe()
        line = self.line
        with connection, other_end:
            with self.asking():
                socket.send_fds(line, [json.dumps(request).encode()], [output.fileno(), other_end.fileno()])
                pid = int(line.recv(MAX_REQUEST_BYTES))
            other_end.close()
            with contextlib.closing(Worker(pid)) as made:
                yield made, connection

    def asking(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()


def _serve(line: socket.socket) -> None:
    isolation_problem()  # finds out by a process, once, which gevent's would need an event loop for
    from gevent import monkey  # noqa: PLC0415 - only this process may be patched

    monkey.patch_all()
    import gevent.fileobject  # noqa: F401, PLC0415 - this and what follows takes a worker its time
    from pyinfra.api.connectors import get_all_connectors  # noqa: PLC0415

    from gpu_provision.hosts import session  # noqa: F401, PLC0415
    from gpu_provision.sandbox import fleet_file  # noqa: F401, PLC0415

    get_all_connectors()
    while True:
        asked, files, _, _ = socket.recv_fds(line, MAX_REQUEST_BYTES, 2)
        bury()
        if not asked:
            return
        if not (pid := _fork()):
            line.close()
            _work(json.loads(asked), files)
        for file in files:
            _close(file)
        line.send(str(pid).encode())


def _work(request: dict[str, Any], files: list[int]) -> None:
    status = 1
    try:
        output, connection = files
        for number in (1, 2):
            os.dup2(output, number)
        _close(output)
        os.environ.clear()
        os.environ.update(request["environment"])
        os.chdir(request["folder"])
        import gevent  # noqa: PLC0415 - after the patching, as below

        from gpu_provision.hosts import worker  # noqa: PLC0415

        gevent.reinit()
        worker.main(connection)
        status = 0
    except BaseException:  # noqa: BLE001 - as the interpreter does
        traceback.print_exc()
    finally:
        os._exit(status)


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
