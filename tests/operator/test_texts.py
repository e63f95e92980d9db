from __future__ import annotations

from gpu_provision.operator.texts import as_many_as_fit, cut


def test_a_long_text_ends_in_a_sign_that_there_is_more() -> None:
    assert cut("abcdef", 4) == "abc…"
    assert cut("abcd", 4) == "abcd"


def test_sentences_are_left_out_as_a_whole_and_counted() -> None:
    found = as_many_as_fit(["a" * 30] * 9, 100)
    assert found == f"{'a' * 30}; {'a' * 30}; and 7 more"
    assert as_many_as_fit(["a", "b"], 100) == "a; b"


def test_a_sentence_that_is_too_long_by_itself_is_told_in_part() -> None:
    found = as_many_as_fit(["a" * 300, "b"], 100)
    assert len(found) <= 100
    assert found.endswith("…; and 1 more")
