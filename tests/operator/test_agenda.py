from __future__ import annotations

from gpu_provision.operator.agenda import EDIT_SECONDS, SETTLE_SECONDS, Agenda

LATER = 0.5


def test_a_stack_that_needs_nothing_is_left_alone_for_ever() -> None:
    agenda = Agenda()
    agenda.look((), 0.0)
    assert not agenda.is_due(100.0)
    assert agenda.wait(100.0, is_running=False) == float("inf")


def test_what_is_needed_for_a_moment_only_is_the_echo_of_our_own_writes() -> None:
    agenda = Agenda()
    agenda.look({"DaemonSet a/b"}, 0.0)
    assert not agenda.is_due(0.0)
    assert agenda.wait(0.0, is_running=False) == SETTLE_SECONDS
    agenda.look((), LATER / 2)
    agenda.look({"DaemonSet a/b"}, LATER)
    assert not agenda.is_due(LATER)


def test_what_lasts_is_due_at_once() -> None:
    agenda = Agenda()
    agenda.look({"DaemonSet a/b"}, 0.0)
    agenda.look({"DaemonSet a/b"}, LATER)
    assert agenda.is_due(LATER)


def test_what_a_run_has_left_undone_is_tried_again_after_a_while() -> None:
    agenda = Agenda()
    agenda.look({"validation"}, 0.0)
    agenda.ran({"validation"}, 1.0, is_well=False)
    agenda.look({"validation"}, 2.0)
    assert not agenda.is_due(2.0)
    assert agenda.wait(2.0, is_running=False) == 4.0
    agenda.look({"validation"}, 6.0)
    assert agenda.is_due(6.0)


def test_what_comes_up_after_a_failed_run_does_not_wait_with_it() -> None:
    agenda = Agenda()
    agenda.ran({"validation"}, 0.0, is_well=False)
    agenda.look({"validation", "labels"}, 1.0)
    agenda.look({"validation", "labels"}, 1.0 + LATER)
    assert agenda.is_due(1.0 + LATER)


def test_what_shows_right_after_a_run_counts_as_left_by_it() -> None:
    """Its last word comes through another watch than ours."""
    agenda = Agenda()
    agenda.ran((), 0.0, is_well=False)
    agenda.look({"validation"}, SETTLE_SECONDS / 2)
    agenda.look({"validation"}, LATER * 3)
    assert not agenda.is_due(LATER * 3)


def test_what_was_left_undone_and_mended_since_is_news_when_it_comes_back() -> None:
    agenda = Agenda()
    agenda.ran({"DaemonSet a/b"}, 0.0, is_well=False)
    agenda.look((), 1.0)
    agenda.look({"DaemonSet a/b"}, 2.0)
    agenda.look({"DaemonSet a/b"}, 2.0 + LATER)
    assert agenda.is_due(2.0 + LATER)


def test_a_run_is_told_once_of_each_object_that_somebody_edits_meanwhile() -> None:
    agenda = Agenda()
    agenda.look({"DaemonSet a/b"}, 0.0)
    assert not agenda.is_edited({"DaemonSet a/b"}, 0.0)
    assert agenda.is_edited({"DaemonSet a/b"}, EDIT_SECONDS)
    assert not agenda.is_edited({"DaemonSet a/b"}, EDIT_SECONDS * 2)
    agenda.look((), 5.0)
    assert not agenda.is_edited((), 5.0)
    agenda.look({"DaemonSet a/b"}, 6.0)
    assert agenda.is_edited({"DaemonSet a/b"}, 6.0 + EDIT_SECONDS)


def test_while_a_run_goes_on_nobody_asks_more_often_than_edits_need() -> None:
    agenda = Agenda()
    agenda.look({"DaemonSet a/b"}, 0.0)
    assert agenda.wait(0.0, is_running=True) == EDIT_SECONDS
