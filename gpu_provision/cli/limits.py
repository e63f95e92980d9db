"""``--limit``: which hosts a person means. Pure but for ``@FILE``."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

from gpu_provision.cli import codes
from gpu_provision.model.findings import Finding, UsageError
from gpu_provision.model.inventory import Inventory, Node


def limited(inventory: Inventory, option: str | None) -> tuple[str, ...]:
    """Return the names of the nodes that the option means, in the inventory's order; none for no option.

    A word is a node's name, a pattern such as ``gpu-0*``, a group (``nodes``, ``gpu``, ``pool_<name>``), or
    ``@FILE`` with one of these a line. Raises UsageError naming every word that matches no node.
    """
    if option is None:
        return ()
    words = list(_words(option))
    wanted = {node.name for word in words for node in inventory.nodes if _means(inventory, word, node)}
    problems = [_unmatched(word, inventory) for word in words if not _any(inventory, word)]
    if problems or not words:
        raise UsageError(*(problems or [_unmatched(option, inventory)]))
    return tuple(node.name for node in inventory.nodes if node.name in wanted)


def _words(option: str) -> Iterator[str]:
    for word in filter(None, (part.strip() for part in option.split(","))):
        if word.startswith("@"):
            yield from _listed(Path(word[1:]))
        else:
            yield word


def _listed(path: Path) -> list[str]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            Finding(
                code=codes.NOTHING_MATCHES,
                where=f"--limit @{path}",
                what="the file cannot be read",
                evidence=getattr(error, "strerror", "") or "not UTF-8",
                fix="name a file with one host a line",
            )
        ) from error
    return [line.strip() for line in lines if line.strip() and not line.startswith("#")]


def _any(inventory: Inventory, word: str) -> bool:
    return any(_means(inventory, word, node) for node in inventory.nodes)


def _means(inventory: Inventory, word: str, node: Node) -> bool:
    in_gpu_group = word == "gpu" and inventory.pool_of(node).gpu is not None
    in_group = in_gpu_group or word in {"nodes", f"pool_{node.pool}"}
    return in_group or fnmatchcase(node.name, word)


def _unmatched(word: str, inventory: Inventory) -> Finding:
    near = difflib.get_close_matches(word, [node.name for node in inventory.nodes], n=1)
    return Finding(
        code=codes.NOTHING_MATCHES,
        where=f"--limit {word}",
        what="no host of this inventory matches",
        fix=f"--limit {near[0]}" if near else "name a node, a pattern such as 'gpu-0*', or pool_<name>",
    )
