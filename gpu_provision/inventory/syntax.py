"""Says what is wrong with YAML that cannot be parsed, for people who do not read parser jargon."""

from __future__ import annotations

import re

import yaml

from gpu_provision.inventory.source import Source
from gpu_provision.model.findings import Finding

_ENV = re.compile(r"\benv[\"']?\s*:")
# The scanner's and parser's problems (libyaml's and PyYAML's wording, which differ), as begins of their text.
_PROBLEMS = (
    (
        "mapping values are not allowed",
        "A colon stands where none can be.",
        "Put a text that holds ': ' in quotes, and look whether this line, or the one above, is indented rightly.",
    ),
    (
        "did not find expected key",
        "The line does not fit the block around it.",
        "Look at the indentation: keys of one mapping begin in the same column.",
    ),
    (
        "expected <block end>",
        "The line does not fit the block around it.",
        "Look at the indentation: keys of one mapping begin in the same column.",
    ),
    (
        "did not find expected '-' indicator",
        "The line does not fit the list around it.",
        "Look at the indentation: the dashes of one list stand in the same column.",
    ),
    ("could not find expected ':'", "A key has no colon.", "Write a colon and a space behind it."),
    (
        "found unexpected end of stream",
        "A quotation mark is never closed.",
        "Close it; look for where the text should end.",
    ),
    (
        "did not find expected ',' or",
        "A bracket is never closed, or a comma is missing.",
        "Close it, or write the list as lines that begin with a dash.",
    ),
    (
        "expected ',' or",
        "A bracket is never closed, or a comma is missing.",
        "Close it, or write the list as lines that begin with a dash.",
    ),
    (
        "did not find expected node content",
        "A value is missing here.",
        "Write the value, or remove the comma or bracket.",
    ),
    (
        "found character",
        "A character stands where a value should begin.",
        "Put texts that begin with a special character such as @, % or ` in quotes.",
    ),
    (
        "found undefined tag handle",
        "A tag with an unknown prefix stands here.",
        "Put texts that begin with an exclamation mark in quotes.",
    ),
    (
        "found unknown escape character",
        "A backslash stands in a text in double quotes.",
        "Write it twice, or use single quotes.",
    ),
    (
        "block sequence entries are not allowed",
        "A list begins where none can be.",
        "Begin the list in a line of its own.",
    ),
    (
        "while scanning an alias",
        "A text begins with an asterisk, which is how YAML marks aliases.",
        "Put it in quotes.",
    ),
    (
        "while scanning an anchor",
        "A text begins with an ampersand, which is how YAML marks anchors.",
        "Put it in quotes.",
    ),
)  # fmt: skip  (one problem, its meaning and its remedy: a table)
_SHOWN_WHERE_IT_BEGINS = (
    "could not find expected ':'",
    "did not find expected ',' or",
    "expected ',' or",
    "found unexpected end of stream",
)
_OTHERWISE = ("The file is not valid YAML.", "Compare with the lines around it.")


def syntax_finding(source: Source, error: yaml.YAMLError) -> Finding:
    """Return the one finding for a file that is not YAML."""
    mark = _mark(error)
    number = min(mark.line + 1 if mark else 1, source.text.count("\n") + 1)
    lines = source.text.splitlines()
    line = lines[number - 1] if number <= len(lines) else ""
    where = f"{source.name}:{number}:{mark.column + 1}" if mark else f"{source.name}:{number}"
    what, fix = _explain(error, line)
    return Finding(code="GP106", where=where, what=what, evidence=_shown(lines[:number]), fix=fix)


def _mark(error: yaml.YAMLError) -> yaml.Mark | None:
    """Return where to look: what is never closed is best shown where it begins."""
    problem, context = (getattr(error, name, None) for name in ("problem_mark", "context_mark"))
    text = str(getattr(error, "problem", ""))
    unclosed = text.startswith(_SHOWN_WHERE_IT_BEGINS)
    mark: yaml.Mark | None = (context or problem) if unclosed else (problem or context)
    return mark


def _explain(error: yaml.YAMLError, line: str) -> tuple[str, str]:
    if "\t" in line[: len(line) - len(line.lstrip())]:
        return "The line is indented with a tab, which YAML forbids.", "Indent with spaces."
    texts = [str(getattr(error, part, None) or "") for part in ("context", "problem")]
    for begin, what, fix in _PROBLEMS:
        if any(text.startswith(begin) for text in texts):
            return what, fix
    return _OTHERWISE


def _shown(lines: list[str]) -> str:
    """Return the last line, unless it may hold a secret, with tabs made visible."""
    from gpu_provision.inventory.secrets import may_hold_secret  # noqa: PLC0415  only broken files need it

    line = lines[-1] if lines else ""
    if may_hold_secret(line) or _is_in_env(lines):
        return ""
    return line.strip(" ").replace("\t", "\\t")[:100]


def _is_in_env(lines: list[str]) -> bool:
    """Return whether the last line stands below a key ``env`` or has one; a file that is no YAML has no better path."""
    depth = None
    for line in reversed(lines):
        indent = len(line) - len(line.lstrip())
        if not line.strip() or (depth is not None and indent >= depth):
            continue
        if _ENV.search(line):
            return True
        depth = indent
    return False
