"""The worker process for pyinfra; gpu_provision.hosts.runner starts it and answers its questions.

pyinfra runs on gevent, which has to patch the standard library before any other import. A separate process protects
Kubernetes clients, threads and event loops of the caller. `multiprocessing` with spawn would import the caller's
program in this process.
"""

from __future__ import annotations

import os
import sys


def main(descriptor: int) -> None:
    """Run the host phase that the parent requests at this end of a socket pair."""
    from gevent import monkey  # noqa: PLC0415 - only the process that runs this may be patched

    monkey.patch_all()
    from multiprocessing.connection import Connection  # noqa: PLC0415 - after the patching, as all below

    from gpu_provision.hosts import session  # noqa: PLC0415

    os.set_inheritable(descriptor, False)  # noqa: FBT003 - so that the connection ends with this process
    session.serve(Connection(descriptor))


if __name__ == "__main__":
    main(int(sys.argv[1]))
