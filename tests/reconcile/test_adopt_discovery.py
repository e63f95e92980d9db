"""What an account needs to take a cluster over, from the inventory alone."""

from __future__ import annotations

from pathlib import Path

from gpu_provision.inventory import load
from gpu_provision.planning.rbac import grants, rules_of
from gpu_provision.reconcile import adopt_discovery
from gpu_provision.reconcile.adopt_run import permissions
from tests.adopt.builders import adopted, found


def test_all_that_an_adoption_writes_is_granted(tmp_path: Path) -> None:
    """By whatever names the chart has made it; secrets and rights to escalate are not among it."""
    done = adopted(tmp_path, found())
    granted = adopt_discovery.everything(load(next(tmp_path.glob("*.yaml"))))
    wanted = set(permissions(done))
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
