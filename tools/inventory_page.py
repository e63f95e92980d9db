"""Writes docs/inventory.md from the schema: ``python -m tools.inventory_page > docs/inventory.md``."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

from gpu_provision.inventory.json_schema import resolve_ref, schema

Part = dict[str, Any]

_INTRODUCTION = """# The inventory

One YAML file declares a GPU stack: the cluster, the release, the settings of each component, the pools and the
nodes. `gpu-provision validate` reports its first twenty problems at once. This page is generated from the
JSON Schema that `gpu-provision schema` prints; editors use it through the first line of a file:

    # yaml-language-server: $schema=../gpu_provision/inventory/schema.json

`inventories/sandbox.yaml` is the shortest useful file, `inventories/prod.yaml` a complete commented one.

Rules that hold everywhere:

- Versions are strings. Quote one that YAML would read as a number: `"595.91"`.
- A setting of a pool wins over that of the inventory, and one of a node over that of its pool. Mappings are merged
  key by key, lists are replaced.
- Relative paths begin at the file, `~` is your home directory.
- A default of "release" means: as in the release.

## Values from elsewhere
Values of `env`, and users and passwords of proxies, are secret ([exceptions](security.md#secret-values)): no plan,
record, finding or log shows them. Values of `env` and addresses of proxies need not stand in the file either.
Instead of a string, such a value may be one of

- `{file: secrets/pat}`: a file of this machine, without one newline at its end, 64 KiB at most.
- `{env: GIT_PAT}`: a variable of the command's environment.
- `{secret: {name: git, key: pat}}`, in `env` alone: a Secret in the namespace of the component's pods. Kubernetes
  reads it, and the tool never does.

    driver:
      env:
        GIT_PAT: {secret: {name: git, key: pat}}
        LICENSE: {file: secrets/license}
    proxy:
      https_proxy: {env: HTTPS_PROXY_WITH_PASSWORD}

A value that cannot be read stops every command with GP169, before any change. A value from a file or variable is in
plain text in the pod spec, readable by anyone who can read pods. A value from a Secret is not. A GPUStack accepts only
`{secret: ...}`. A plain string that starts with `file:` is taken literally. [security.md](security.md) has an example
with SOPS, and lists the values that are not hidden.
"""

_EXPANDED_ONCE = ("env", "labels", "resources")
"""Definitions that many sections share and whose inner keys would only repeat what the description says."""

_WITH_SECTION = ("driver", "gdrcopy", "gds", "host_prerequisites", "ssh")
"""Definitions of sections that have a table of their own."""

_FROM_RELEASE = "Default: as in the release"
_LONG = 60  # characters; a digest as an example would only widen the table


def markdown() -> str:
    """Return the reference page: one table per section, every key with its type, default and meaning."""
    parts = [_INTRODUCTION, *_section("Top level", "", schema())]
    for name, part in schema()["properties"].items():
        written = resolve_ref(part)
        if written.get("properties"):
            parts += _section(f"`{name}`", name, written)
    for name, path in (("pool", "pools.<name>"), ("node", "nodes[]")):
        parts += _section(f"`{path}`", path, schema()["$defs"][name])
    return "\n".join(parts) + "\n"


def _section(title: str, path: str, part: Part) -> Iterator[str]:
    yield f"## {title}\n"
    if path:
        yield f"{part['description']}\n"
    yield "| key | type | default | meaning |"
    yield "|---|---|---|---|"
    for key, child, needed in _keys(part, nested=bool(path)):
        yield f"| `{key}` | {_type(child)} | {'required' if needed else _default(child)} | {_meaning(child)} |"
    yield ""


def _keys(part: Part, *, nested: bool, prefix: str = "") -> Iterator[tuple[str, Part, bool]]:
    """Yield the keys of a mapping, and below a section also those of the mappings inside."""
    for key, child in part["properties"].items():
        written = resolve_ref(child)
        yield f"{prefix}{key}", written, key in part.get("required", ())
        is_shared = child.get("$ref", "").rpartition("/")[2] in {*_EXPANDED_ONCE, *_WITH_SECTION}
        if nested and written["type"] == "object" and "properties" in written and not is_shared:
            yield from _keys(written, nested=True, prefix=f"{prefix}{key}.")


def _type(part: Part) -> str:
    if "enum" in part:
        return ", ".join(f"`{each}`" for each in part["enum"])
    kinds = [part["type"]] if isinstance(part["type"], str) else part["type"]
    if kinds == ["array"]:
        return f"list of {_type(resolve_ref(part['items']))}"
    names = {"object": "mapping", "boolean": "true, false"}
    return " or ".join(names.get(kind, kind) for kind in kinds)


def _default(part: Part) -> str:
    if "default" in part:
        return f"`{json.dumps(part['default'])}`"
    return "release" if _FROM_RELEASE in part["description"] else ""


def _meaning(part: Part) -> str:
    text = part["description"].replace("|", "\\|").replace(f" {_FROM_RELEASE}.", "")
    examples = ", ".join(f"`{json.dumps(each)}`" for each in part.get("examples", ()) if len(str(each)) < _LONG)
    return f"{text} Example: {examples}" if examples else text


if __name__ == "__main__":
    sys.stdout.write(markdown())
