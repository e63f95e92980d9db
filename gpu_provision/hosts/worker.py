"""A process of its own for pyinfra; gpu_provision.hosts.runner starts it and answers its questions.

pyinfra runs on gevent, which has to change the standard library before anything else uses it. In a process of its
own it cannot get in the way of Kubernetes clients, threads or event loops of the caller. `multiprocessing` with spawn
would start it, too, but import the caller's program here.
"""

from __future__ import annotations

import os
import sys


def main(descriptor: int) -> None:
    """Run the one host phase that the parent asks for at this end of a socket pair."""
    from gevent import monkey  # noqa: PLC0415 - only the process that runs this may be patched

    monkey.patch_all()
    from multiprocessing.connection import Connection  # noqa: PLC0415 - after the patching, as all below

    from gpu_provision.hosts import session  # noqa: PLC0415

    os.set_inheritable(descriptor, False)  # noqa: FBT003 - this process alone holds it, so that its end is seen
    session.serve(Connection(descriptor))


if __name__ == "__main__":
    main(int(sys.argv[1]))
