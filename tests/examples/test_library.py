"""docs/library.md is a session: its programs are those of examples/library, and print what the page shows."""

from __future__ import annotations

import doctest
import re
import runpy
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_provision import check
from gpu_provision.hosts import runner
from tests.documents import CHECKOUT, Reader
from tests.hosts.warm import Forge

PAGE = (CHECKOUT / "docs" / "library.md").read_text(encoding="utf-8")
EXAMPLES = CHECKOUT / "examples" / "library"
_STEP = re.compile(
    r"\]\(\.\./examples/library/(?P<file>\w+\.py)\).*?```python\n(?P<code>.*?)```\n+```text\n(?P<output>.*?)```",
    re.DOTALL,
)
STEPS = [found.groupdict() for found in _STEP.finditer(PAGE)]
_ALIKE = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A copy of the repository with a fresh sandbox, as this process' folder and environment."""
    reader, forge = Reader(tmp_path_factory.mktemp("reader")), Forge()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in reader.environment.items():
            patch.setenv(name, value)
        patch.chdir(reader.checkout)
        patch.setattr(runner, "_worker", forge.worker)
        yield reader.checkout
    forge.close()
    reader.close()


def test_the_page_has_every_example_once() -> None:
    assert sorted(step["file"] for step in STEPS) == sorted(path.name for path in EXAMPLES.iterdir() if path.is_file())


def test_the_pages_own_inventory_is_valid(tmp_path: Path) -> None:
    path = tmp_path / "lab.yaml"
    path.write_text(PAGE.partition("```yaml\n")[2].partition("```")[0], encoding="utf-8")
    assert check(path).all == ()


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step["file"])
def test_an_example_is_short_and_prints_what_the_page_shows(
    step: dict[str, str], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The steps build on one another, in the order of the page; ``...`` stands for what differs from run to run."""
    program = folder / "examples" / "library" / step["file"]
    text = program.read_text(encoding="utf-8")
    assert text.partition('"""\n\n')[2] == step["code"]
    assert len(text.splitlines()) <= 15
    runpy.run_path(str(program), run_name="__main__")
    printed = capsys.readouterr().out
    assert doctest.OutputChecker().check_output(step["output"], printed, _ALIKE), printed
