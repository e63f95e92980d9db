"""Send the requests of requests.yaml to a server; answers.yaml has the responses of a real one.

    python -m tests.contract.api.replay > tests/contract/api/answers.yaml

writes this file, from its own control plane or from the cluster of GPU_PROVISION_TEST_KUBECONFIG.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

from tests import data_file
from tests.contract.client import JSON, Answer, Object, Server, until
from tests.contract.servers import has_defaults, real

_HERE = Path(__file__).parent
_REQUESTS = data_file.document((_HERE / "requests.yaml").read_text("utf-8"))
_NAMESPACE = "/api/v1/namespaces/contract"
STEPS: list[Object] = _REQUESTS["steps"]
VOLATILE = frozenset(_REQUESTS["volatile"])


def read_answers() -> list[Object]:
    found: list[Object] = data_file.document((_HERE / "answers.yaml").read_text("utf-8"))
    return found


def replay(server: Server) -> list[Object]:
    """Send every request, delete all objects, and return the comparable parts of the responses."""
    answers = []
    for number, step in enumerate(STEPS):
        verb, path = step["do"].split(" ", 1)
        answers.append(_comparable(server.ask(verb, path, step.get("body"), step.get("type", JSON))))
        if number == 0:
            until(lambda: has_defaults(server, "contract"))
    server.delete(_NAMESPACE)
    for path in ("/apis/node.k8s.io/v1/runtimeclasses/nvidia", "/apis/scheduling.k8s.io/v1/priorityclasses/mine"):
        server.delete(path)
    until(lambda: server.is_gone(_NAMESPACE))
    return answers


def _comparable(answer: Answer) -> Object:
    if answer.reason or not isinstance(answer.body, dict):
        text = answer.message if answer.reason else answer.body
        return {"code": answer.code, "reason": answer.reason, "message": text}
    return {"code": answer.code, "object": _normalize(answer.body)}


def _normalize(value: Any) -> Any:
    """Return a value without parts that differ between servers."""
    if isinstance(value, dict):
        return {key: _normalize(part) for key, part in sorted(value.items()) if key not in VOLATILE}
    return [_normalize(part) for part in value] if isinstance(value, list) else value


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, real(Path(folder)) as server:
        sys.stdout.write("# What kube-apiserver v1.20.2 answered to requests.yaml; written by replay.py.\n")
        yaml.safe_dump(replay(server), sys.stdout, sort_keys=False, width=120)


if __name__ == "__main__":
    main()
