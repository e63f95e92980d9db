"""``python -m tools.pages`` writes docs/findings.md and the tables of docs/rbac.md."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path

from gpu_provision.inventory import load
from gpu_provision.model.cluster import Permission
from gpu_provision.model.codes import meanings
from gpu_provision.rbac import permissions as needs
from gpu_provision.rbac.roles import drop_cluster_wide, qualified_name, rules_of

_DOCS = Path(__file__).parents[1] / "docs"
_FINDINGS = """\
# Findings

A finding has a code, says where and what, shows the evidence, and names a fix; lines of progress have no code.
`gpu-provision explain GP501` prints what a code means. Codes are stable: a code keeps its meaning, and a code that is
no longer used is not used again. This page is made by `make docs` from gpu_provision/model/codes.toml.
"""
_AREAS = {
    "GP0": "Command line",
    "GP1": "Inventory",
    "GP2": "Planning",
    "GP3": "Cluster",
    "GP4": "Components",
    "GP5": "Runs and validations",
    "GP6": "Hosts",
    "GP7": "Sandbox",
    "GP8": "Acceptance tests",
}
_ALSO_HOSTS = frozenset({"GP700", "GP707"})
_INVENTORY = "inventories/prod.yaml"
_TABLES = "\n## The permissions for "


def findings() -> str:
    """Return docs/findings.md: a table for each area."""
    parts = [_FINDINGS]
    for area, name in _AREAS.items():
        rows = [f"| {code} | {' | '.join(found)} |" for code, found in meanings().items() if _area(code) == area]
        parts += [f"## {name}", "", "| code | meaning | cause | remedy |", "|---|---|---|---|", *rows, ""]
    return "\n".join(parts)


def _area(code: str) -> str:
    return "GP6" if code in _ALSO_HOSTS else code[:3]


def permission_tables(page: str) -> str:
    """Return docs/rbac.md with its tables as they are now; what stands above them is written by hand."""
    inventory = load(_DOCS.parent / _INVENTORY)
    own = needs.for_own_requests(inventory)
    parts = [
        f"`{_INVENTORY}`\n",
        *_tables(own, ()),
        "### Held because the stack's own roles grant it\n",
        *_tables(needs.stack_permissions(inventory) - own, own),
        "## What `adopt` needs beyond that\n",
        *_tables(needs.additional_for_adopt(inventory) - own, own),
    ]
    return page.partition(_TABLES)[0] + _TABLES + "\n".join(parts)


def _tables(permissions: Collection[Permission], granted: Collection[Permission]) -> Iterator[str]:
    """Yield a table per scope, without what is granted in the whole cluster anyway."""
    everywhere = {one for one in (*permissions, *granted) if not one.namespace}
    for namespace in sorted({one.namespace for one in permissions}):
        here = [one for one in permissions if one.namespace == namespace]
        rules = rules_of(drop_cluster_wide(here, everywhere) if namespace else here)
        yield f"In namespace `{namespace}`:\n" if namespace else "In the whole cluster:\n"
        yield "| verbs | resources | names |\n|---|---|---|"
        for rule in rules:
            resources = ", ".join(qualified_name(rule["apiGroups"][0], resource) for resource in rule["resources"])
            yield f"| {', '.join(rule['verbs'])} | {resources} | {', '.join(rule.get('resourceNames', ())) or 'any'} |"
        yield ""


if __name__ == "__main__":
    (_DOCS / "findings.md").write_text(findings(), encoding="utf-8")
    (_DOCS / "rbac.md").write_text(permission_tables((_DOCS / "rbac.md").read_text(encoding="utf-8")), encoding="utf-8")
