"""CustomResourceDefinitions of the tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests import data_file
from tests.contract.client import Object, Server, until

GROUP = "contract.example.org"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
VERSION = data_file.document(Path(__file__).with_name("definition.yaml").read_text("utf-8"))


def definition(plural: str, **version: Any) -> Object:
    kind = plural.removesuffix("s").capitalize()
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {"plural": plural, "singular": kind.lower(), "kind": kind, "shortNames": [kind[:3].lower()]},
            "versions": [{**VERSION, **version}],
        },
    }


def is_established(server: Server, name: str) -> bool:
    conditions = server.get(f"{DEFINITIONS}/{name}").get("status", {}).get("conditions")
    return any(one["type"] == "Established" and one["status"] == "True" for one in conditions or ())


def establish(server: Server, body: Object) -> str:
    """Create a definition and return the path of its resources, below their namespace."""
    server.make(DEFINITIONS, body)
    name = body["metadata"]["name"]
    until(lambda: is_established(server, name))
    plural = str(body["spec"]["names"]["plural"])
    until(lambda: server.ask("GET", f"/apis/{GROUP}/v1/{plural}").code == 200)
    return plural
