from __future__ import annotations

from typing import Any

import pytest

from gpu_provision.operator.queue import (
    EDIT_SECONDS,
    SETTLE_SECONDS,
    Backoff,
    EditConflictBackoff,
    ReconcileRequest,
    ReconcileScheduler,
)

LATER = 0.5
EDIT = "DaemonSet a/b"


def test_a_stack_that_needs_nothing_is_left_alone_for_ever() -> None:
    scheduler = ReconcileScheduler()
    scheduler.look((), 0.0)
    assert not scheduler.is_due(100.0)
    assert scheduler.wait(100.0, is_running=False) == float("inf")


def test_what_is_needed_for_a_moment_only_is_the_echo_of_our_own_writes() -> None:
    scheduler = ReconcileScheduler()
    scheduler.look({"DaemonSet a/b"}, 0.0)
    assert not scheduler.is_due(0.0)
    assert scheduler.wait(0.0, is_running=False) == SETTLE_SECONDS
    scheduler.look((), LATER / 2)
    scheduler.look({"DaemonSet a/b"}, LATER)
    assert not scheduler.is_due(LATER)


def test_what_lasts_is_due_at_once() -> None:
    scheduler = ReconcileScheduler()
    scheduler.look({"DaemonSet a/b"}, 0.0)
    scheduler.look({"DaemonSet a/b"}, LATER)
    assert scheduler.is_due(LATER)


def test_what_a_run_has_left_undone_is_tried_again_after_a_while() -> None:
    scheduler = ReconcileScheduler()
    scheduler.look({"validation"}, 0.0)
    scheduler.on_finish({"validation"}, 1.0, is_well=False)
    scheduler.look({"validation"}, 2.0)
    assert not scheduler.is_due(2.0)
    assert scheduler.wait(2.0, is_running=False) == 4.0
    scheduler.look({"validation"}, 6.0)
    assert scheduler.is_due(6.0)


def test_what_comes_up_after_a_failed_run_does_not_wait_with_it() -> None:
    scheduler = ReconcileScheduler()
    scheduler.on_finish({"validation"}, 0.0, is_well=False)
    scheduler.look({"validation", "labels"}, 1.0)
    scheduler.look({"validation", "labels"}, 1.0 + LATER)
    assert scheduler.is_due(1.0 + LATER)


def test_what_shows_right_after_a_run_counts_as_left_by_it() -> None:
    """Its last word comes through another watch than ours."""
    scheduler = ReconcileScheduler()
    scheduler.on_finish((), 0.0, is_well=False)
    scheduler.look({"validation"}, SETTLE_SECONDS / 2)
    scheduler.look({"validation"}, LATER * 3)
    assert not scheduler.is_due(LATER * 3)


def test_what_was_left_undone_and_mended_since_is_news_when_it_comes_back() -> None:
    scheduler = ReconcileScheduler()
    scheduler.on_finish({"DaemonSet a/b"}, 0.0, is_well=False)
    scheduler.look((), 1.0)
    scheduler.look({"DaemonSet a/b"}, 2.0)
    scheduler.look({"DaemonSet a/b"}, 2.0 + LATER)
    assert scheduler.is_due(2.0 + LATER)


def test_an_edit_between_two_runs_needs_no_time_to_settle() -> None:
    """It is no echo of ours: it was as declared, and somebody did that."""
    scheduler = ReconcileScheduler()
    scheduler.look({EDIT}, 0.0, edited={EDIT})
    assert not scheduler.is_due(0.0)
    assert scheduler.wait(0.0, is_running=False) == EDIT_SECONDS
    assert scheduler.is_due(EDIT_SECONDS)


def test_a_run_is_told_once_of_each_object_that_somebody_edits_meanwhile() -> None:
    scheduler = ReconcileScheduler()
    scheduler.look({EDIT}, 0.0, edited={EDIT})
    assert not scheduler.new_edits(0.0)
    assert scheduler.new_edits(SETTLE_SECONDS) == {EDIT}
    assert not scheduler.new_edits(SETTLE_SECONDS * 2)
    scheduler.look((), 5.0)
    assert not scheduler.new_edits(5.0)
    scheduler.look({EDIT}, 6.0, edited={EDIT})
    assert scheduler.new_edits(6.0 + LATER) == {EDIT}


def test_what_became_wanted_during_a_run_is_no_edit() -> None:
    """The run itself makes it."""
    scheduler = ReconcileScheduler()
    scheduler.look({"DaemonSet new/group"}, 0.0)
    assert not scheduler.new_edits(10.0)
    assert scheduler.wait(0.0, is_running=True) == float("inf")


def test_a_run_is_asked_to_end_as_soon_as_an_edit_has_settled() -> None:
    scheduler = ReconcileScheduler()
    scheduler.look({EDIT}, 0.0, edited={EDIT})
    assert scheduler.wait(0.0, is_running=True) == SETTLE_SECONDS
    assert scheduler.wait(SETTLE_SECONDS, is_running=True) >= 1.0, "a run that cannot end yet is not asked all the time"


def test_a_run_that_was_cut_short_for_an_edit_is_followed_at_once() -> None:
    """It has failed at nothing: neither the edit nor the rest waits."""
    scheduler = ReconcileScheduler()
    scheduler.look({"driver of t4-1"}, 0.0)
    scheduler.on_start(1.0)
    scheduler.look({"driver of t4-1", EDIT}, 2.0, edited={EDIT})
    scheduler.look({"driver of t4-1", EDIT}, 2.0 + SETTLE_SECONDS, edited={EDIT})
    scheduler.on_preempt()
    assert scheduler.is_due(2.0 + SETTLE_SECONDS)
    assert scheduler.wait(2.0 + SETTLE_SECONDS, is_running=False) == 0.0


@pytest.mark.parametrize("is_well", [True, False])
def test_an_edit_in_the_last_moment_of_a_run_is_not_left_undone_by_it(*, is_well: bool) -> None:
    """However long the pause is that a stack that fails makes."""
    scheduler = ReconcileScheduler()
    scheduler.look({"validation"}, 0.0)
    scheduler.on_start(0.0)
    scheduler.look({"validation", EDIT}, 9.9, edited={EDIT})
    scheduler.on_finish({"validation", EDIT}, 10.0, is_well=is_well)
    assert scheduler.undone == {"validation"}
    scheduler.look({"validation", EDIT}, 10.1, edited={EDIT})
    assert scheduler.is_due(10.1)


def test_an_edit_that_a_run_could_not_undo_waits_with_the_rest() -> None:
    """Somebody else holds the field: that is a conflict, and told."""
    scheduler = ReconcileScheduler()
    scheduler.look({EDIT}, 0.0, edited={EDIT})
    scheduler.on_start(1.0)
    scheduler.on_finish({EDIT}, 2.0, is_well=False)
    scheduler.look({EDIT}, 3.0, edited={EDIT})
    assert not scheduler.is_due(3.0)


def test_what_came_up_while_a_run_succeeded_does_not_wait() -> None:
    """A node joined when it was nearly over."""
    scheduler = ReconcileScheduler()
    scheduler.look({"labels"}, 0.0)
    scheduler.on_start(1.0)
    scheduler.look({"labels of another"}, 4.0)
    scheduler.on_finish({"labels of another"}, 5.0, is_well=True)
    scheduler.look({"labels of another"}, 5.1)
    scheduler.look({"labels of another"}, 5.0 + LATER)
    assert scheduler.is_due(5.0 + LATER)


def test_what_a_run_leaves_although_it_succeeded_is_no_reason_for_one_after_the_other() -> None:
    scheduler = ReconcileScheduler()
    scheduler.look({"labels"}, 0.0)
    scheduler.on_start(1.0)
    scheduler.on_finish({"labels"}, 2.0, is_well=True)
    scheduler.look({"labels"}, 3.0)
    assert not scheduler.is_due(3.0)


def test_an_object_that_is_edited_again_and_again_waits_ever_longer() -> None:
    scheduler, now = ReconcileScheduler(), 0.0
    for _ in range(5):
        scheduler.look({EDIT}, now, edited={EDIT})
        now += 100.0
        scheduler.look((), now)
    scheduler.look({EDIT}, now, edited={EDIT})
    assert scheduler.wait(now, is_running=False) == 4.0
    assert scheduler.wait(now, is_running=True) == 4.0


def test_nothing_has_to_wait_before_something_has_failed() -> None:
    assert Backoff().left(100.0) == 0.0


def test_each_failure_doubles_the_time_until_the_next_try_up_to_a_bound() -> None:
    backoff, waits = Backoff(), []
    for _ in range(9):
        backoff.failed(100.0)
        waits.append(backoff.left(100.0))
    assert waits == [5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 600.0, 600.0]


def test_time_passes() -> None:
    backoff = Backoff()
    backoff.failed(100.0)
    assert backoff.left(103.0) == 2.0
    assert backoff.left(106.0) == 0.0


def test_a_success_forgets_all_failures() -> None:
    backoff = Backoff()
    backoff.failed(100.0)
    backoff.succeeded()
    assert backoff.left(100.0) == 0.0
    backoff.failed(100.0)
    assert backoff.left(100.0) == 5.0


NAME = "DaemonSet a/b"


def after_repairs(number: int, *, at: float = 0.0) -> EditConflictBackoff:
    quarrels = EditConflictBackoff()
    for _ in range(number):
        quarrels.look((), {NAME}, at)
        quarrels.look({NAME}, (), at)
    return quarrels


def test_the_first_edits_are_undone_at_once() -> None:
    """Somebody tries something, and tries again."""
    assert EditConflictBackoff().delay(NAME) == 0.0
    assert after_repairs(2).delay(NAME) == 0.0


def test_then_each_takes_twice_as_long_up_to_a_minute() -> None:
    """Two programs that want it otherwise go on for ever."""
    assert [after_repairs(number).delay(NAME) for number in (3, 4, 5, 12)] == [1.0, 2.0, 4.0, 60.0]


def test_an_object_that_is_left_alone_for_a_while_is_repaired_at_once_again() -> None:
    quarrels = after_repairs(9)
    quarrels.look((), (), 60.0)
    assert quarrels.delay(NAME) == 60.0
    quarrels.look((), (), 120.0)
    assert quarrels.delay(NAME) == 0.0


def test_an_edit_that_lasts_is_not_forgotten_however_long_it_has_to_wait() -> None:
    quarrels = after_repairs(9)
    quarrels.look((), {NAME}, 500.0)
    assert quarrels.delay(NAME) == 60.0


def test_what_was_gone_before_anybody_did_something_is_no_repair() -> None:
    quarrels = after_repairs(2)
    quarrels.look((), {NAME}, 0.0)
    quarrels.look((), (), 0.0)
    assert quarrels.delay(NAME) == 0.0


def test_objects_are_told_apart() -> None:
    assert after_repairs(9).delay("DaemonSet a/c") == 0.0


def request(**metadata: Any) -> ReconcileRequest:
    return ReconcileRequest({"metadata": {"name": "prod", "uid": "u", "generation": 1, **metadata}, "spec": {}})


GOING = {"deletionTimestamp": "2026-11-22T09:00:00Z"}
KEEP = {"annotations": {"gpu-provision.io/on-delete": "keep"}}


def test_a_stack_that_is_deleted_takes_what_it_has_installed_along_unless_it_says_otherwise() -> None:
    """By an annotation that kubectl can set."""
    assert not request(**GOING).is_released
    assert not request(annotations={"gpu-provision.io/on-delete": "remove"}).is_released
    assert request(**GOING, **KEEP).is_released


def test_the_annotation_counts_also_while_a_removal_waits() -> None:
    """And breaks no run off while nobody deletes the stack."""
    assert request().is_equivalent(request(**KEEP))
    assert not request(**GOING).is_equivalent(request(**GOING, **KEEP))
