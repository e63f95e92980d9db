"""Send the same requests to the sandbox's API server and to a real kube-apiserver, and tell where they differ.

    python -m tests.real.api_contract [KUBECONFIG]

Without a kubeconfig it starts a control plane of its own. The exit status is 1 if an answer differs that is not
marked as known to differ in ``api_contract.yaml``.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from gpu_provision.sandbox.apiserver import serve
from tests.real.control_plane import control_plane, missing
from tests.real.fieldmanager_against_server import Server, server

CONTRACT = yaml.safe_load((Path(__file__).parent / "api_contract.yaml").read_text("utf-8"))
VOLATILE = tuple(CONTRACT["volatile"])


def _plain(value: Any) -> Any:
    """Return a value without what differs from server to server."""
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in sorted(value.items()) if key not in VOLATILE}
    return [_plain(part) for part in value] if isinstance(value, list) else value


def _summary(code: int, body: Any) -> Any:
    if isinstance(body, dict) and body.get("kind") == "Status":
        return {"code": code, "reason": body.get("reason"), "message": body.get("message"), "status": body["status"]}
    return {"code": code, "object": _plain(body)}


def _differences(here: Any, there: Any, path: str = "") -> list[str]:
    """Return a line for each leaf that differs."""
    if isinstance(here, dict) and isinstance(there, dict):
        keys = sorted({*here, *there})
        return [line for key in keys for line in _differences(here.get(key), there.get(key), f"{path}.{key}")]
    if isinstance(here, list) and isinstance(there, list) and len(here) == len(there):
        pairs = enumerate(zip(here, there, strict=True))
        return [line for index, pair in pairs for line in _differences(*pair, f"{path}[{index}]")]
    return [] if here == there else [f"{path}: sandbox {json.dumps(here)}, real {json.dumps(there)}"]


async def _answers(where: Server) -> list[Any]:
    answers = []
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {where.token}"}) as session:
        for step in CONTRACT["steps"]:
            method, path = step["do"].split(" ", 1)
            body = json.dumps(step["body"]) if "body" in step else None
            headers = {"Content-Type": step.get("type", "application/json")} if body else {}
            async with session.request(method, where.url + path, data=body, headers=headers, ssl=where.trust) as answer:
                text = await answer.text()
                is_json = answer.content_type == "application/json"
                answers.append(_summary(answer.status, json.loads(text) if is_json else text))
    return answers


def _await_account(real: Server) -> None:
    """Wait for the controller that furnishes namespaces."""
    path, deadline = "/api/v1/namespaces/default/serviceaccounts/default", time.monotonic() + 60
    while real.ask("GET", path).get("kind") == "Status" and time.monotonic() < deadline:
        time.sleep(0.2)


async def _compare(real: Server, directory: Path) -> int:
    running = await serve(directory)
    try:
        ours = await _answers(_ours(running))
        theirs = await _answers(real)
    finally:
        await running.close()
    differing = 0
    for step, here, there in zip(CONTRACT["steps"], ours, theirs, strict=True):
        known = step.get("differs")
        same = here["code"] == there["code"] if known else here == there
        if not same:
            differing += 1
            print(step["do"], *_differences(here, there), sep="\n  ")  # noqa: T201 - a program
    known = sum(1 for step in CONTRACT["steps"] if "differs" in step)
    print(f"{len(ours)} requests, {known} of them compared by code only, {differing} differ")  # noqa: T201 - a program
    return differing


def _ours(running: Any) -> Server:
    import ssl  # noqa: PLC0415 - beside its only use

    return Server(running.url, running.tokens.token(), ssl.create_default_context(cafile=str(running.authority)))


def main() -> int:
    """Compare; return the exit status."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        if len(sys.argv) > 1:
            kubeconfig = Path(sys.argv[1])
        elif problem := missing():
            sys.exit(problem)
        else:
            kubeconfig = stack.enter_context(control_plane(directory / "real")).kubeconfig
        real = server(kubeconfig)
        _await_account(real)
        return 1 if asyncio.run(_compare(real, directory / "sandbox")) else 0


if __name__ == "__main__":
    sys.exit(main())
