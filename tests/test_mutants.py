"""The list of mutants: tools/mutants.py measures with it whether the tests find faults."""

from __future__ import annotations

import ast

from tests.documents import CHECKOUT
from tools import mutants


def test_a_seed_gives_one_list() -> None:
    """Every package has a few mutants; each parses, is a change, and is placed by its id."""
    listed = mutants.chosen(CHECKOUT, 3, 22)
    assert listed == mutants.chosen(CHECKOUT, 3, 22)
    assert len({one.id for one in listed}) == 22
    assert {one.file.split("/")[1] for one in listed} == set(mutants.PACKAGES)
    for one in listed:
        original = (CHECKOUT / one.file).read_bytes()
        assert ast.dump(ast.parse(one.source(original))) != ast.dump(ast.parse(original))


def test_a_mutant_is_found_after_a_rename() -> None:
    """By function and source line, not by the line's number; code that is gone has no place."""
    (here,) = mutants.Finder("gpu_provision/a.py", b"def f(x):\n    return x\n").found
    (there,) = mutants.Finder("gpu_provision/b.py", b"\n\ndef f(x):\n    return x\n").found
    assert mutants.placed(here.id, [there]) == there
    assert mutants.placed(here.id, mutants.Finder("gpu_provision/b.py", b"def g(y):\n    return y\n").found) is None


def test_types_texts_and_logs_have_no_mutants() -> None:
    """A fault there changes nothing that a test could see."""
    source = b"def f(x: Literal[1] = 1) -> bool:\n    _log.info('%s', 1 < x)\n    raise Wrong(f'{x + 1}', 1)\n"
    assert mutants.Finder("gpu_provision/a.py", source).found == []
