from __future__ import annotations

from tests.contract.page import NOT_ASKED, PAGE, SANDBOX, Outcomes, page, read_cells, row_of, rows


def test_the_page_lists_the_tests_that_exist() -> None:
    """After a change of tests: python -m tests.contract.page."""
    listed = read_cells(PAGE.read_text("utf-8"))[SANDBOX]
    assert [*listed] == rows()


def test_no_test_of_the_page_failed() -> None:
    assert "**fails**" not in PAGE.read_text("utf-8")


def test_a_run_writes_what_it_asked() -> None:
    """Other cells stay; new tests are marked as not run."""
    first, *others = rows()
    seen = Outcomes()
    seen.add(first, "passed")
    seen.add(first, "skipped")
    before = page({"real 1.20": seen}, "")
    after = read_cells(page({SANDBOX: Outcomes(dict.fromkeys(others, seen.counts[first]))}, before))
    assert [*after] == [SANDBOX, "real 1.20"]
    assert after["real 1.20"][first] == "yes (1), not in 1"
    assert after["real 1.20"][others[0]] == after[SANDBOX][first] == NOT_ASKED


def test_a_test_names_its_row_and_its_server() -> None:
    nodeid = "tests/contract/api/test_lists.py::test_a_list_has_a_version[real-x-y]"
    assert row_of(nodeid) == (("api/lists", "a list has a version"), "real")
    assert row_of("tests/contract/api/test_answers.py::test_every_request_has_an_answer_on_record") is None
    case = "tests/contract/api/test_cases.py::test_a_server_answers_as_the_case_says[sandbox-pods/a log - or none #2]"
    assert row_of(case) == (("api/pods", "a log - or none"), "sandbox")
