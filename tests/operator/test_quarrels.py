"""An object that is edited again and again is left alone for longer each time."""

from __future__ import annotations

from gpu_provision.operator.quarrels import Quarrels

NAME = "DaemonSet a/b"


def after_repairs(number: int, *, at: float = 0.0) -> Quarrels:
    quarrels = Quarrels()
    for _ in range(number):
        quarrels.look((), {NAME}, at)
        quarrels.look({NAME}, (), at)
    return quarrels


def test_the_first_edits_are_undone_at_once() -> None:
    """Somebody tries something, and tries again."""
    assert Quarrels().patience(NAME) == 0.0
    assert after_repairs(2).patience(NAME) == 0.0


def test_then_each_takes_twice_as_long_up_to_a_minute() -> None:
    """Two programs that want it otherwise go on for ever."""
    assert [after_repairs(number).patience(NAME) for number in (3, 4, 5, 12)] == [1.0, 2.0, 4.0, 60.0]


def test_an_object_that_is_left_alone_for_a_while_is_repaired_at_once_again() -> None:
    quarrels = after_repairs(9)
    quarrels.look((), (), 60.0)
    assert quarrels.patience(NAME) == 60.0
    quarrels.look((), (), 120.0)
    assert quarrels.patience(NAME) == 0.0


def test_an_edit_that_lasts_is_not_forgotten_however_long_it_has_to_wait() -> None:
    quarrels = after_repairs(9)
    quarrels.look((), {NAME}, 500.0)
    assert quarrels.patience(NAME) == 60.0


def test_what_was_gone_before_anybody_did_something_is_no_repair() -> None:
    quarrels = after_repairs(2)
    quarrels.look((), {NAME}, 0.0)
    quarrels.look((), (), 0.0)
    assert quarrels.patience(NAME) == 0.0


def test_objects_are_told_apart() -> None:
    assert after_repairs(9).patience("DaemonSet a/c") == 0.0
