"""``python -m tools.words`` names every line of the repository with a word that tools/words.txt refuses."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

_ROOT = Path(__file__).parents[1]
_READ = ("*.md", "*.py", "*.pyi", "*.sh", "*.toml", "*.html", "Makefile", ".ci/*")


def refused() -> re.Pattern[str]:
    """Return the expression for all refused words, in names of functions as well."""
    lines = (_ROOT / "tools" / "words.txt").read_text(encoding="utf-8").splitlines()
    words = "|".join(line for line in lines if line and not line.startswith("#"))
    return re.compile(rf"(?<![^\W_])(?:{words.replace(' ', '[ _]')})(?![^\W_])", re.IGNORECASE)


def found(pattern: re.Pattern[str]) -> Iterator[str]:
    """Yield place and word for each match in the files that git knows."""
    listing = subprocess.run(["git", "ls-files", "-z", "--", *_READ], cwd=_ROOT, capture_output=True, check=True)
    for name in filter(None, listing.stdout.decode().split("\0")):
        for number, line in enumerate((_ROOT / name).read_text(encoding="utf-8").splitlines(), 1):
            for match in pattern.finditer(line):
                yield f"{name}:{number}: {match[0]!r}: use the words of the style guide instead"


if __name__ == "__main__":
    problems = list(found(refused()))
    print("\n".join(problems), end="\n" if problems else "")
    sys.exit(bool(problems))
