"""What an account needs to take a cluster over, from the inventory alone."""

from __future__ import annotations

from pathlib import Path

from gpu_provision.adopt.runner import required_permissions
from gpu_provision.inventory import load
from gpu_provision.rbac.permissions import for_adopt
from gpu_provision.rbac.roles import grants, rules_of
from tests.adopt.builders import adopted, found


def test_all_that_an_adoption_writes_is_granted(tmp_path: Path) -> None:
    """By whatever names the chart has made it; secrets and rights to escalate are not among it."""
    done = adopted(tmp_path, found())
    granted = for_adopt(load(next(tmp_path.glob("*.yaml"))))
    wanted = set(required_permissions(done))
    assert {one.resource for one in wanted} >= {"clusterroles", "daemonsets", "clusterpolicies", "nodes", "pods"}
    lacking = {
        one
        for one in wanted
        if not any(
            grants(rule, one) for rule in rules_of({each for each in granted if each.namespace in {"", one.namespace}})
        )
    }
    assert sorted(lacking) == []
    assert {one.resource for one in granted} & {"secrets", "pods/exec", "serviceaccounts/token"} == set()
    assert {one.verb for one in granted} & {"escalate", "bind", "impersonate", "*"} == set()
