"""Which permissions are lacking, by the word of the server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from gpu_provision.kube.access_review import find_missing_permissions
from gpu_provision.kube.client import Cluster, GrantedRules
from gpu_provision.model.cluster import Permission
from gpu_provision.model.findings import Finding, Refused

LIST, GET = Permission("list", "", "nodes"), Permission("get", "", "pods/log", "here")
RULE = {"apiGroups": [""], "resources": ["nodes"], "verbs": ["list"]}


class Fake:
    """Answers questions about rights; what it has no answer to is refused."""

    def __init__(
        self, rules: Mapping[str, GrantedRules], allowed: tuple[Permission, ...] = (), *, mute: bool = False
    ) -> None:
        """``mute`` refuses every question about a single permission."""
        self._rules, self._allowed, self._mute = rules, allowed, mute
        self.asked: list[object] = []

    def rules(self, namespace: str) -> GrantedRules:
        """Answer for a namespace."""
        self.asked.append(namespace)
        if namespace not in self._rules:
            raise Refused(Finding(code="GP303", what="no"))
        return self._rules[namespace]

    def can_i(self, wanted: Permission) -> bool:
        """Answer for one permission."""
        self.asked.append(wanted)
        if self._mute:
            raise Refused(Finding(code="GP303", what="no"))
        return wanted in self._allowed


def asked(fake: Fake, *wanted: Permission) -> tuple[Permission, ...]:
    return find_missing_permissions(cast("Cluster", fake), wanted)


def granted(*rules: dict[str, Any], incomplete: bool = False) -> GrantedRules:
    return GrantedRules(rules, incomplete)


def test_one_question_per_namespace_answers_for_all_permissions() -> None:
    fake = Fake({"": granted(RULE), "here": granted(RULE)})
    assert asked(fake, LIST, LIST, GET, GET._replace(verb="list")) == (GET, GET._replace(verb="list"))
    assert fake.asked == ["", "here"]


def test_no_question_is_about_a_namespace_that_does_not_exist() -> None:
    fake = Fake({"": granted(RULE)})
    listing = GET._replace(resource="nodes", verb="list")
    assert find_missing_permissions(cast("Cluster", fake), [listing, GET], namespaces={"there"}) == (GET,)
    assert fake.asked == [""]


def test_what_holds_in_a_namespace_does_not_hold_everywhere() -> None:
    assert asked(Fake({"": granted(), "here": granted(RULE)}), LIST) == (LIST,)


def test_incomplete_authorizer_is_asked_about_the_rest() -> None:
    """A webhook, such as those of managed clusters."""
    other = Permission("delete", "", "nodes")
    fake = Fake({"": granted(RULE, incomplete=True)}, (GET,))
    assert asked(fake, LIST, other) == (other,)
    assert fake.asked == ["", other]


def test_a_server_that_lists_no_rules_is_asked_about_each() -> None:
    assert asked(Fake({}, (LIST,)), LIST, GET) == (GET,)


def test_who_cannot_be_asked_at_all_is_believed_to_allow() -> None:
    """The request itself will tell."""
    assert asked(Fake({}, mute=True), LIST, GET) == ()
