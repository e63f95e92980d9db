"""A process of its own for pyinfra: it talks with the process that started it in lines of JSON.

pyinfra runs on gevent, which has to change the standard library before anything else uses it. In a process of its
own it cannot get in the way of Kubernetes clients, threads or event loops of the caller. What is said is in
gpu_provision.hosts.worker_protocol.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any


def main() -> None:
    """Serve one request."""
    lines = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever else is printed must not mix with the answer

    def emit(message: dict[str, Any]) -> None:
        lines.write(f"{json.dumps(message)}\n")
        lines.flush()

    request = json.loads(sys.stdin.readline())
    from gevent import monkey  # noqa: PLC0415 - only the process that runs this may be patched

    monkey.patch_all()
    import gevent  # noqa: PLC0415 - after the patching, as all below
    from gevent.fileobject import FileObject  # noqa: PLC0415

    from gpu_provision.hosts import session  # noqa: PLC0415
    from gpu_provision.hosts.remote_maintenance import AskingGuard  # noqa: PLC0415

    guard = AskingGuard(emit)
    gevent.spawn(guard.hear, FileObject(sys.stdin.fileno(), "r", close=False))
    emit({"result": session.run(request, emit, guard if request["guarded"] else None)})


if __name__ == "__main__":
    main()
