"""Text from elsewhere, made safe to print: control characters become visible instead of steering a terminal.

Logs, conditions, Events, leases, names and files may hold anything. The functions stand where text leaves the tool: on
a terminal, in a log, in a page. JSON needs neither, as its escapes are exact.
"""

from __future__ import annotations

import re

_HOSTILE = re.compile(
    "["
    "\x00-\x08\x0b-\x1f"  # C0, but for tab and newline
    "\x7f-\x9f"  # DEL and C1: U+009B begins an escape sequence as ESC [ does
    "\u2028\u2029"  # separators of lines and paragraphs
    "\u202a-\u202e\u2066-\u2069"  # what turns the direction of writing
    "\ud800-\udfff\ufffe\uffff"  # no characters: neither UTF-8 nor XML has them
    "]"
)


def visible(text: str) -> str:
    r"""Return a text with each control character as its escape, such as ``\x1b``; newlines and tabs stay."""
    return _HOSTILE.sub(_escaped, text.replace("\r\n", "\n"))


def one_line(text: str) -> str:
    r"""Return a text as `visible` does, newlines as ``\n`` as well: a name cannot forge a second line."""
    return visible(text).replace("\n", r"\n")


def _escaped(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()
