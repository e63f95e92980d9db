"""A process of its own for pyinfra: request on stdin, events and the result on stdout, as lines of JSON.

pyinfra runs on gevent, which has to change the standard library before anything else uses it. In a process of its
own it cannot get in the way of Kubernetes clients, threads or event loops of whoever called.
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

    request = json.load(sys.stdin)
    from gevent import monkey  # noqa: PLC0415 - only the process that runs this may be patched

    monkey.patch_all()
    from gpu_provision.hosts import session  # noqa: PLC0415 - pyinfra, after the patching

    emit({"result": session.run(request, emit)})


if __name__ == "__main__":
    main()
