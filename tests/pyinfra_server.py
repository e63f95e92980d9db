"""The pyinfra command, in forks of a process that has imported it and all its connectors already.

The arguments, environment, working directory, outputs and exit code are a command's own. A command that has to see
another ``PYTHONPATH``, or a terminal, is a process from its start.
"""

from __future__ import annotations

import os
import socket
import sys

from gpu_provision.sandbox.hosts import isolation_problem
from tests.fork_server import CommandServer, serve_commands


class PyinfraServer(CommandServer):
    """Runs commands of pyinfra."""

    one_output = True

    def __init__(self) -> None:
        super().__init__("tests.pyinfra_server")


def _serve(line: socket.socket) -> None:
    isolation_problem()  # finds out by a process, once, which gevent's would need an event loop for
    import pyinfra_cli.main  # noqa: F401, PLC0415 - only this process may be patched, as its import does
    from pyinfra.api.connectors import get_all_connectors  # noqa: PLC0415

    from gpu_provision.deploys import cluster, hosts  # noqa: F401, PLC0415
    from gpu_provision.hosts import session  # noqa: F401, PLC0415

    get_all_connectors()
    serve_commands(line, _exit_code)


def _exit_code() -> int:
    import gevent  # noqa: PLC0415 - after the patching
    from pyinfra_cli.main import main  # noqa: PLC0415

    os.setsid()  # without a terminal to ask for passwords
    gevent.reinit()
    main()
    return 0


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
