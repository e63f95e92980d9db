"""The nodes and components that --limit and --target select, and releases by name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from gpu_provision import releases
from gpu_provision.model import codes
from gpu_provision.model.findings import Finding, UsageError
from gpu_provision.model.inventory import Inventory, Node
from gpu_provision.releases import Release

Words = str | Iterable[str]
"""Words, or one text with commas between them."""


def split_words(words: Words) -> tuple[str, ...]:
    """Return the words one by one, without the commas."""
    texts = [words] if isinstance(words, str) else words
    return tuple(word.strip() for text in texts for word in text.split(",") if word.strip())


def find_release(name: str, where: str) -> Release:
    """Return the release of this name. Raises UsageError for another one."""
    try:
        return releases.release(name)
    except releases.UnknownReleaseError as error:
        fix = f"name one of {', '.join(releases.names()[-5:])}"
        raise UsageError(Finding(code=codes.USAGE, where=f"{where} {name}", what=str(error), fix=fix)) from error


def select_nodes(inventory: Inventory, limit: Words | None) -> tuple[str, ...]:
    """Return the names of the selected nodes, in the inventory's order; none for None, which is all.

    A word is a node's name, a pattern such as ``gpu-0*``, a group (``nodes``, ``gpu``, ``pool_<name>``), or
    ``@FILE`` with one of these a line. Raises UsageError naming every word that matches no node, or for no word:
    an empty list is not all nodes.
    """
    if limit is None:
        return ()
    words = _require_words(_expand_files(split_words(limit)), "--limit")
    names = [node.name for node in inventory.nodes]
    if unknown := [word for word in words if not any(_matches(inventory, word, node) for node in inventory.nodes)]:
        what, fix = "no host of this inventory matches", "name a node, a pattern such as 'gpu-0*', or pool_<name>"
        raise UsageError(*(_no_match("--limit", word, what, names, fix) for word in unknown))
    return tuple(node.name for node in inventory.nodes if any(_matches(inventory, word, node) for word in words))


def select_components(targets: Words | None, components: Iterable[str]) -> frozenset[str]:
    """Return the targets as component names, none for None, which is all; dashes count as underscores.

    Raises UsageError for a word that names no component, or for no word.
    """
    if targets is None:
        return frozenset()
    names = tuple(components)
    wanted = {target.replace("-", "_") for target in _require_words(split_words(targets), "--target")}
    if unknown := sorted(wanted - set(names)):
        what, fix = "there is no such component, or it is off in this inventory", f"one of {', '.join(names)}"
        raise UsageError(*(_no_match("--target", word, what, names, fix) for word in unknown))
    return frozenset(wanted)


def _require_words(words: Iterable[str], option: str) -> tuple[str, ...]:
    """Return the words. Raises UsageError if there is none."""
    if required := tuple(words):
        return required
    what, fix = "it names nothing, which is not all", "leave it out for all, or name what is meant"
    raise UsageError(Finding(code=codes.NOTHING_MATCHES, where=option, what=what, fix=fix))


def _no_match(option: str, word: str, what: str, names: Sequence[str], fix: str) -> Finding:
    """Return a finding for a word without a match; its fix is the nearest name."""
    near = difflib.get_close_matches(word, names, n=1)
    where = f"{option} {word}"
    return Finding(code=codes.NOTHING_MATCHES, where=where, what=what, fix=f"{option} {near[0]}" if near else fix)


def _expand_files(words: Iterable[str]) -> Iterator[str]:
    """Yield words, and for ``@FILE`` the lines of the file."""
    for word in words:
        if not word.startswith("@"):
            yield word
            continue
        try:
            lines = Path(word[1:]).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            seen, fix = getattr(error, "strerror", "") or "not UTF-8", "name a file with one host a line"
            where, what = f"--limit {word}", "the file cannot be read"
            problem = Finding(code=codes.NOTHING_MATCHES, where=where, what=what, evidence=seen, fix=fix)
            raise UsageError(problem) from error
        yield from (line.strip() for line in lines if line.strip() and not line.startswith("#"))


def _matches(inventory: Inventory, word: str, node: Node) -> bool:
    in_gpu_group = word == "gpu" and inventory.pool_of(node).gpu is not None
    in_group = in_gpu_group or word in {"nodes", f"pool_{node.pool}"}
    return in_group or fnmatchcase(node.name, word)
