"""docs/rbac.md: ``python -m gpu_provision.output.rbac_page inventories/prod.yaml > docs/rbac.md`` writes it."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator
from pathlib import Path

from gpu_provision.inventory import load
from gpu_provision.model.cluster import Permission
from gpu_provision.planning.rbac import qualified_name, rules_of, without_granted
from gpu_provision.reconcile import adopt_discovery
from gpu_provision.reconcile import permissions as needs

_HEAD = """\
# Least privilege

No run needs an administrator. `gpu-provision rbac` prints, from an inventory alone, the RBAC objects that an account
needs to run every command on it; an administrator applies them once, and again after edits that add components:

    gpu-provision rbac -i prod --service-account ci:gpu-provision | kubectl apply -f -

`--user`, `--group` and `--service-account` name who gets the rights and may be repeated; without any, roles are printed
and no bindings. `--read-only` prints what `status`, `plan`, `drift` and `history` need instead, `--destroy` what
`destroy` needs ([removal.md](removal.md)), `--adopt` what `adopt` needs ([adopting.md](adopting.md)): that is a lot, so
take it back afterwards. `--operator` prints what `apply` needs where a controller looks after the stack
([operator.md](operator.md)). `--json` prints the same objects as a list.

What is printed, in an order in which it can be applied:

- the stack's namespaces, bare: a Role cannot be there before its namespace. The run gives them their labels, so that
  the account needs no right to create namespaces;
- a ClusterRole `gpu-provision-<inventory>` for what has no namespace, and for lists: members of an earlier inventory
  may be in any namespace, and one list for the whole cluster keeps the number of requests independent of its size;
- a Role of that name in each of the stack's namespaces, for everything that is written there.

There is no wildcard, no `escalate`, no `bind` and no `impersonate`. Secrets can be read only if the inventory names
them, by name: GP210 reports a missing one. The roles are no members of the stack: no run changes or removes them,
and the account cannot change its own rights.

## How exact it is

- Objects are named wherever RBAC can restrict to names: everything that is written outside the stack's namespaces but
  nodes, and most of what is written inside. Lists and watches cannot be restricted to names. Creating can, since
  objects are applied on the server's side: the name is in the request. The lock and validation pods are created by
  requests that carry no name.
- Nodes are not named: their labels are patched, also those of nodes that join later and of nodes that left the
  inventory. RBAC cannot restrict a patch to labels.
- DaemonSets in the stack's namespaces are not named: their names can hold what only the cluster knows, such as a node's
  operating system.
- Removing what an earlier inventory declared: in the stack's namespaces that is any object of the kinds that the stack
  has; elsewhere the objects that components of this inventory can have, also of those that are off. What had another
  name then (a renamed runtime class, another namespace of Node Feature Discovery) is named in the refusal, and is an
  administrator's to remove.
- Components come with Roles and ClusterRoles of their own. Kubernetes lets nobody grant what they do not hold, so the
  account holds their rules, too, and needs no right to escalate. They are listed apart below. Who has `escalate` and
  `bind` on those roles, as administrators do, need not hold them.

A test runs everything that the tool does under these roles, with RBAC enforced, and compares: each verb on each
resource, and each name, is used by some request.

Inventories with `connect: kubernetes` need more: helper pods, and processes in them (docs/hosts-without-ssh.md). Their
rights are printed for such inventories alone. So are those of inventories with `reboot: if-required`: reading nodes and
pods, and creating evictions in any namespace, which end pods as far as their budgets allow.

An account with these rights can run privileged pods on every GPU node, as installing drivers demands. Keep its
credentials as you would an administrator's; what the roles add is that a mistake stays within the stack.

## When a permission is missing

A run that has something to write asks the API server first what its user may do (one SelfSubjectRulesReview per
namespace and one for the cluster; a SelfSubjectAccessReview for each permission that no rule grants, where an
authorizer cannot list its rules). What is missing is one finding, GP310, with everything that is missing, the user's
name, and the command for an administrator; exit code 1. Nothing was written then, not even the lock. A run without
changes asks nothing.

A user who may only read gets a plan, too. It is then this tool's own comparison without the server's dry run, which
needs the right to write; a warning, GP311, says so. Who may not even read is told everything that is missing for
reading at once.
"""


def page(path: Path, shown: str) -> str:
    """Return the page for the inventory at ``path``, which the page calls ``shown``. Raises InvalidInventory."""
    inventory = load(path)
    own = needs.own(inventory)
    parts = [
        _HEAD,
        f"## The rights for {shown}\n",
        *_tables(own, ()),
        "### Held because the stack's own roles grant it\n",
        *_tables(needs.passed_on(inventory) - own, own),
        "## What `adopt` needs beyond that\n",
        *_tables(frozenset(adopt_discovery.beyond(inventory)) - own, own),
    ]
    return "\n".join(parts)


def _tables(permissions: Collection[Permission], granted: Collection[Permission]) -> Iterator[str]:
    """Yield a table per scope, without what is granted in the whole cluster anyway."""
    everywhere = {one for one in (*permissions, *granted) if not one.namespace}
    for namespace in sorted({one.namespace for one in permissions}):
        here = [one for one in permissions if one.namespace == namespace]
        rules = rules_of(without_granted(here, everywhere) if namespace else here)
        yield f"In namespace `{namespace}`:\n" if namespace else "In the whole cluster:\n"
        yield "| verbs | resources | names |\n|---|---|---|"
        for rule in rules:
            yield _row(rule["apiGroups"][0], rule["resources"], rule["verbs"], rule.get("resourceNames", ()))
        yield ""


def _row(group: str, resources: Collection[str], verbs: Collection[str], names: Collection[str]) -> str:
    found = ", ".join(qualified_name(group, resource) for resource in resources)
    return f"| {', '.join(verbs)} | {found} | {', '.join(names) or 'any'} |"


if __name__ == "__main__":
    sys.stdout.write(page(Path(sys.argv[1]), f"`{sys.argv[1]}`"))
