"""Replay the field manager's cases on a real API server and compare: conflicts, messages, and owners by apply.

    python -m tests.real.fieldmanager_against_server [KUBECONFIG]

Without a kubeconfig it starts a control plane of its own. A case that the server refuses as invalid, or that needs
a newer server, is counted as not comparable; the exit status tells whether a compared case differs.
"""

from __future__ import annotations

import json
import ssl
import sys
import tempfile
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from gpu_provision.sandbox.apiserver.fieldmanager import ApplyConflict, applied, updated
from gpu_provision.sandbox.apiserver.fieldmanager.fieldset import paths
from tests.real.control_plane import control_plane, missing

Object = dict[str, Any]
CASES = Path(__file__).resolve().parents[1] / "sandbox/apiserver/fieldmanager/cases"
PATHS = {"ConfigMap": "/api/v1/namespaces/default/configmaps", "Service": "/api/v1/namespaces/default/services"}
CONTENT = {"PATCH": "application/apply-patch+yaml", "POST": "application/json", "PUT": "application/json"}


class Server(NamedTuple):
    """An API server, and how to ask it."""

    url: str
    token: str
    trust: ssl.SSLContext

    def ask(self, verb: str, path: str, body: Object | None = None) -> Object:
        """Send a request and return the answer, a Status if it is a refusal."""
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": CONTENT.get(verb, "application/json")}
        data = json.dumps(body).encode() if body is not None else None
        request = urllib.request.Request(self.url + path, data, headers, method=verb)  # noqa: S310 - the kubeconfig's URL
        try:
            with urllib.request.urlopen(request, context=self.trust, timeout=30) as answer:  # noqa: S310 - see above
                found: Object = json.load(answer)
        except urllib.error.HTTPError as refusal:
            found = json.load(refusal)
        return found


def server(kubeconfig: Path) -> Server:
    """Return the server of a kubeconfig that has a token."""
    config = yaml.safe_load(kubeconfig.read_text("utf-8"))
    cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
    return Server(cluster["server"], user["token"], ssl.create_default_context(cafile=cluster["certificate-authority"]))


def real_step(real: Server, path: str, name: str, step: Object) -> Object:
    """Do one step of a case on the server."""
    body = step.get("apply") or step["update"]
    body = {**body, "metadata": {**body["metadata"], "name": name}}
    query = f"?fieldManager={step['manager']}"
    if "apply" in step:
        return real.ask("PATCH", f"{path}/{name}{query}&force={str(step.get('force', False)).lower()}", body)
    exists = real.ask("GET", f"{path}/{name}")["kind"] != "Status"
    return real.ask("PUT", f"{path}/{name}{query}", body) if exists else real.ask("POST", f"{path}{query}", body)


def our_step(live: Object | None, step: Object) -> Object:
    """Do one step of a case here; a conflict gives the server's Status."""
    now = "2026-01-01T00:00:00Z"
    if "update" in step:
        return updated(live, step["update"], manager=step["manager"], now=now)
    try:
        return applied(live, step["apply"], manager=step["manager"], force=step.get("force", False), now=now)
    except ApplyConflict as refusal:
        return {"kind": "Status", "reason": "Conflict", "message": refusal.message()}


def appliers(obj: Object) -> dict[str, list[str]]:
    """Return what each applier owns; the entries of updates also hold what the server defaulted."""
    entries = obj["metadata"].get("managedFields", ())
    return {entry["manager"]: sorted(paths(entry["fieldsV1"])) for entry in entries if entry["operation"] == "Apply"}


def outcome(real: Server, number: int, case: Object) -> str:
    """Replay one case: the same, different, or why it cannot be compared."""
    steps = [*case.get("given", ()), case["when"]]
    kind = (steps[0].get("apply") or steps[0]["update"])["kind"]
    if kind not in PATHS or "live" in case or "newer" in case:
        return "not comparable"
    ours: Object | None = None
    for step in steps:
        theirs, ours = real_step(real, PATHS[kind], f"case-{number}", step), our_step(ours, step)
        if theirs.get("reason") in {"Invalid", "BadRequest", "InternalError"}:
            return "not comparable"
        left, right = (said(answer) for answer in (ours, theirs))
        if left != right:
            return f"different: {case['name']}\n  here:  {left}\n  there: {right}"
    return "same"


def said(answer: Object) -> object:
    """Return what is compared of an answer."""
    return answer["message"] if answer["kind"] == "Status" else appliers(answer)


def compare(kubeconfig: Path) -> bool:
    """Replay every case; print what differs and a summary."""
    real = server(kubeconfig)
    outcomes = [outcome(real, number, case) for number, case in enumerate(all_cases())]
    for line in outcomes:
        if line.startswith("different"):
            print(line)  # noqa: T201 - a script for a reader at a terminal
    print(dict(Counter(line.split(":")[0] for line in outcomes)))  # noqa: T201 - see above
    return not any(line.startswith("different") for line in outcomes)


def all_cases() -> Iterator[Object]:
    """Yield the cases of all files."""
    for file in sorted(CASES.glob("*.yaml")):
        yield from yaml.safe_load(file.read_text("utf-8"))


def main() -> bool:
    """Use the given server, or one of our own."""
    if len(sys.argv) > 1:
        return compare(Path(sys.argv[1]))
    if lacking := missing():
        sys.exit(lacking)
    with tempfile.TemporaryDirectory() as folder, control_plane(Path(folder)) as plane:
        return compare(plane.kubeconfig)


if __name__ == "__main__":
    sys.exit(not main())
