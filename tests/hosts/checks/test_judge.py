"""What is said about a machine, and what is not; see cases.yaml."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpu_provision.hosts.checks.findings import drop_reported_by_cluster, unknown_codes
from gpu_provision.hosts.checks.judge import check_host
from gpu_provision.model.codes import HOST_UNREAD, OS_DIFFERS, OTHER_SYSTEM, PREFLIGHT
from gpu_provision.model.findings import Finding
from tests.hosts.checks.cases import Case, cases
from tests.hosts.checks.table import PAGE, page

CASES = cases()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.case)
def test_case_finds_what_it_says_and_nothing_else(case: Case) -> None:
    found = check_host(case.subject)
    assert sorted(f"{finding.code} {finding.severity.value}" for finding in found) == sorted(case.finds)
    if found:
        named = next(finding for finding in found if finding.code == case.finds[0].split()[0])
        assert case.evidence in named.evidence
        assert case.fix in named.fix
    for finding in found:
        assert finding.where == "t4-1"
        assert all((finding.evidence, finding.consequence, finding.fix))
        assert "secret" not in str(finding)


def test_every_code_is_provoked_by_a_case() -> None:
    """None is documented without a case; an unread host is the run's own finding."""
    provoked = {each.split()[0] for case in CASES for each in case.finds}
    assert provoked == PREFLIGHT - {HOST_UNREAD}


def test_unknown_codes_are_reported() -> None:
    """A mistyped code would override nothing."""
    assert unknown_codes(["GP610", "GP699", "GP101"]) == ("GP699", "GP101")


def test_what_the_cluster_says_of_a_node_is_not_said_of_its_host() -> None:
    of_host = Finding(code=OTHER_SYSTEM, where="t4-1", what="the host runs ubuntu22.04")
    others = (replace(of_host, where="t4-10"), replace(of_host, code=HOST_UNREAD))
    said = Finding(code=OS_DIFFERS, where="Nodes t4-1, t4-2", what="the node runs ubuntu22.04")
    assert drop_reported_by_cluster((of_host, *others), (said,)) == others
    assert drop_reported_by_cluster((of_host,), ()) == (of_host,)
    many = replace(said, where="Nodes t4-1, t4-2 and 37 more", what="the nodes run ubuntu22.04")
    assert drop_reported_by_cluster((of_host, *others), (many,)) == others[1:]


def test_the_page_is_up_to_date() -> None:
    """Else: python -m tests.hosts.checks.table."""
    text = PAGE.read_text(encoding="utf-8")
    assert page(text) == text
