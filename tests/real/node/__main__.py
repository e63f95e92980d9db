"""Runs a node in the foreground, to look around on it: ``python -m tests.real.node FOLDER``, as root."""

from __future__ import annotations

import contextlib
import shlex
import signal
import sys
from pathlib import Path

from tests.real.node.nodes import missing, ready_node


def main(arguments: list[str]) -> int:
    usage = "usage: python -m tests.real.node FOLDER; the folder is made"
    folder = Path(*arguments[:1]).absolute()
    if problem := usage if len(arguments) != 1 or folder.exists() else missing():
        sys.stderr.write(f"{problem}\n")
        return 2
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with contextlib.suppress(KeyboardInterrupt), ready_node(folder) as user:
        network, kubeconfig = shlex.join(user.machine.network), user.machine.kubeconfig
        lines = [
            f"{network} gpu-provision apply -i {user.inventory}",
            f"{network} kubectl --kubeconfig {kubeconfig} get pods -A",
            f"{shlex.join(user.machine.login)} bash        # on the node; its logs are in {folder}/log",
        ]
        sys.stdout.write("".join(f"{line}\n" for line in lines))
        sys.stdout.flush()
        signal.pause()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
