"""Parses YAML events into values with lines, and explains syntax errors in plain English."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import yaml
from yaml.constructor import ConstructorError, SafeConstructor
from yaml.resolver import Resolver

from gpu_provision.inventory.document import (
    Document,
    Problem,
    Source,
    SourceError,
    YamlNode,
    format_path,
    quote_unprintable,
    to_plain,
)
from gpu_provision.inventory.redaction import HIDDEN, may_hold_secret, redact
from gpu_provision.model.findings import Finding

_Event = Any  # yaml.Event, whose marks the stubs call optional although parsing always sets them

MAX_DEPTH = 24  # the schema needs 7
MAX_VALUES = 200_000  # aliases written out; 1,000 nodes have about 10,000
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # C is ten times faster; not every wheel has it
_CORE_TAGS = {f"tag:yaml.org,2002:{name}" for name in ("str", "int", "float", "bool", "null", "map", "seq")}
_MERGE = "<<"
_RESOLVER: Any = Resolver()
# No setting is a date, but a version or a name may look like one. The others are oddities of YAML 1.1.
_AS_TEXT = {f"tag:yaml.org,2002:{name}" for name in ("str", "timestamp", "value", "merge")}


def parse(source: Source) -> tuple[Document, list[Problem]]:
    """Return the document and problems of its YAML. Raises SourceError if there is no document."""
    composer = _Composer(source)
    try:
        root = composer.document()
    except yaml.YAMLError as error:
        raise SourceError(syntax_finding(source, error)) from error
    return Document(source.name, root, to_plain(root)), composer.problems


def parse_documents(source: Source) -> tuple[list[Document], list[Problem]]:
    """Return the documents of a stream, such as Kubernetes resources, and problems of its YAML. Raises SourceError."""
    composer = _Composer(source)
    try:
        roots = list(composer.documents())
    except yaml.YAMLError as error:
        raise SourceError(syntax_finding(source, error)) from error
    return [Document(source.name, root, to_plain(root)) for root in roots], composer.problems


class _Composer:
    """Builds items from events. One per document."""

    def __init__(self, source: Source) -> None:
        self.name = source.name
        self.problems: list[Problem] = []
        self._events: Iterator[_Event] = yaml.parse(source.text, Loader=_LOADER)
        self._constructor = SafeConstructor()
        self._anchors: dict[str, YamlNode | None] = {}  # None while the anchored value is not complete
        self._path: list[str | int] = []  # to the value that is being read

    def document(self) -> YamlNode:
        """Return the top-level mapping."""
        next(self._events)  # the stream's start
        if isinstance(next(self._events), yaml.StreamEndEvent):
            self._stop("GP105", 1, "The file is empty, or holds comments only.", fix=_START)
        root = self._item(next(self._events), depth=0)
        next(self._events)  # the document's end
        following: _Event = next(self._events)
        if not isinstance(following, yaml.StreamEndEvent):
            line = following.start_mark.line + 1
            what = "A second document begins here; an inventory is one document."
            self._stop("GP107", line, what, fix="Remove the line --- or split the file.")
        if root.value is None:
            self._stop("GP105", root.line, "The file holds no values.", fix=_START)
        if not isinstance(root.value, dict):
            kind = "a list" if isinstance(root.value, list) else "a single value"
            what = f"The top level is {kind}; an inventory is a mapping of keys to values."
            self._stop("GP108", root.line, what, evidence=root.raw[:80], fix=_START)
        return root

    def documents(self) -> Iterator[YamlNode]:
        """Yield the top-level value of each document."""
        next(self._events)  # the stream's start
        while not isinstance(next(self._events), yaml.StreamEndEvent):
            self._anchors.clear()
            yield self._item(next(self._events), depth=0)
            next(self._events)  # the document's end

    def _item(self, event: _Event, *, depth: int) -> YamlNode:
        line = event.start_mark.line + 1
        if depth > MAX_DEPTH:
            what = f"Values are nested more than {MAX_DEPTH} levels deep."
            self._stop("GP113", line, what, fix="An inventory needs at most 7 levels.")
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event, line)
        anchor = getattr(event, "anchor", None)
        if anchor:
            self._anchors[anchor] = None
        tag = getattr(event, "tag", None)
        if tag and tag not in _CORE_TAGS and tag != "!":
            short = tag.replace("tag:yaml.org,2002:", "!!")
            self._find("GP111", line, f"The tag {short} is not allowed here.", fix="Remove the tag.")
        if isinstance(event, yaml.MappingStartEvent):
            item = self._mapping(line, depth)
        elif isinstance(event, yaml.SequenceStartEvent):
            item = self._sequence(line, depth)
        else:
            item = self._scalar(event, line)
        if item.size > MAX_VALUES:
            what = f"With its aliases written out, this value would hold more than {MAX_VALUES:,} values."
            self._stop("GP110", line, what, fix="Remove the nested aliases.")
        if anchor:
            self._anchors[anchor] = item
        return item

    def _alias(self, event: _Event, line: int) -> YamlNode:
        name = str(event.anchor)
        if name not in self._anchors:
            what = f"*{name} refers to an anchor &{name} that does not exist above it."
            self._stop("GP110", line, what, fix=f"Define &{name} first, or write the value out.")
        item = self._anchors[name]
        if item is None:
            what = f"*{name} stands inside the value that it names, so it would contain itself."
            self._stop("GP110", line, what, fix="Write the value out.")
        return item

    def _mapping(self, line: int, depth: int) -> YamlNode:
        item = YamlNode({}, line)
        merged: list[YamlNode] = []
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            key_line = event.start_mark.line + 1
            key = self._key(event, key_line, depth, item)
            child = self._child(next(self._events), key or "", depth)
            item.size += child.size
            if key == _MERGE:
                merged += self._merge_bases(child, key_line)
            elif key is None:
                continue
            elif key in item.value:
                what = (
                    f"The key {quote_unprintable(key)} appears twice in this mapping, first in line {item.lines[key]}."
                )
                self._find("GP109", key_line, what, fix="Remove one of them.")
            else:
                item.value[key], item.lines[key] = child, key_line
        for base in merged:
            for key, child in base.value.items():
                item.value.setdefault(key, child)
                item.lines.setdefault(key, base.lines[key])
        return item

    def _sequence(self, line: int, depth: int) -> YamlNode:
        item = YamlNode([], line)
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            child = self._child(event, len(item.value), depth)
            item.value.append(child)
            item.size += child.size
        return item

    def _child(self, event: _Event, step: str | int, depth: int) -> YamlNode:
        self._path.append(step)
        item = self._item(event, depth=depth + 1)
        self._path.pop()
        return item

    def _key(self, event: _Event, line: int, depth: int, holder: YamlNode) -> str | None:
        """Return the key of a mapping, with a finding if it is no text; None if it is no scalar."""
        key = self._item(event, depth=depth + 1)
        if isinstance(key.value, str):
            return key.value
        if isinstance(key.value, (dict, list)):
            fix = "Keys are plain words; put a string with braces in quotes."
            self._find("GP122", line, "A key is a list or a mapping.", fix=fix)
            return None
        words = {True: "true", False: "false", None: "null"}
        word = words[key.value] if key.value is None or isinstance(key.value, bool) else "a number"
        what = f"The key {key.raw} is read as {word}, not as a string."
        self._find("GP127", line, what, evidence=key.raw, fix=f'Quote it: "{key.raw}"')
        self.problems[-1] = replace(self.problems[-1], holder=tuple(self._path))
        holder.misread.add(key.raw)
        return key.raw

    def _merge_bases(self, child: YamlNode, line: int) -> list[YamlNode]:
        bases = child.value if isinstance(child.value, list) else [child]
        if all(isinstance(base.value, dict) for base in bases):
            return list(bases)
        what = "<<: merges the keys of another mapping, but this value is not a mapping."
        self._find("GP110", line, what, fix="Write <<: *name, where &name marks a mapping.")
        return []

    def _scalar(self, event: _Event, line: int) -> YamlNode:
        is_plain = event.style in (None, "")
        tag = event.tag if event.tag in _CORE_TAGS else None
        tag = tag or _RESOLVER.resolve(yaml.ScalarNode, event.value, (is_plain and not event.tag, not is_plain))
        item = YamlNode(event.value, line, event.value)
        if tag in _AS_TEXT:
            return item
        node = yaml.ScalarNode(tag, event.value, event.start_mark, event.end_mark, event.style)
        try:
            value = self._constructor.construct_object(node)
        except (ConstructorError, ValueError, KeyError, ArithmeticError):
            kind = str(tag).rpartition(":")[2]
            self._find("GP122", line, f"The tag !!{kind} does not fit this value.", fix="Remove the tag.")
            return item
        is_no_amount = isinstance(value, float) and not math.isfinite(value)  # .inf and .nan
        item.value = event.value if is_no_amount else value
        if is_plain and type(value) is int and str(value) != event.value:
            self._report_misread(item)
        return item

    def _report_misread(self, item: YamlNode) -> None:
        if redact(tuple(self._path), item.raw) == HIDDEN:
            return  # a secret has to be a text: the schema check reports it without showing it
        decimal = item.raw.replace("_", "").lstrip("+0") or "0"
        fix = f'Write {item.value} if you mean that number, or quote it: "{item.raw}"'
        if item.raw.startswith("0") and decimal.isdecimal():
            fix = f"Write {decimal} without the leading zero."
        what = f"YAML reads {item.raw} as the number {item.value}."
        self._find("GP112", item.line, what, evidence=item.raw, fix=fix)

    def _find(self, code: str, line: int, what: str, *, evidence: str = "", fix: str = "") -> None:
        where = f"{self.name}:{line} {format_path(tuple(self._path))}".rstrip()
        finding = partial(Finding, code=code, where=where, what=what, evidence=evidence, fix=fix)
        self.problems.append(Problem(line=line, finding=finding))

    def _stop(self, code: str, line: int, what: str, *, evidence: str = "", fix: str = "") -> NoReturn:
        where = f"{self.name}:{line}"
        raise SourceError(Finding(code=code, where=where, what=what, evidence=evidence, fix=fix))


_START = "Begin with: name: my-stack, then cluster: {context: my-cluster}."

_ENV = re.compile(r"\benv[\"']?\s*:")
_OTHERWISE = {"what": "The file is not valid YAML.", "fix": "Compare with the lines around it."}


def syntax_finding(source: Source, error: yaml.YAMLError) -> Finding:
    """Return the finding for a file that is not YAML."""
    import tomllib  # noqa: PLC0415  only mistakes need it

    texts = [str(getattr(error, part, None) or "") for part in ("context", "problem")]
    table = tomllib.loads(Path(__file__).with_name("syntax_errors.toml").read_text(encoding="utf-8"))["errors"]
    known = (entry for entry in table if any(text.startswith(tuple(entry["problems"])) for text in texts))
    cause = next(known, _OTHERWISE)
    problem, context = (getattr(error, name, None) for name in ("problem_mark", "context_mark"))
    mark: yaml.Mark | None = (context or problem) if cause.get("is_unclosed") else (problem or context)
    number = min(mark.line + 1 if mark else 1, source.text.count("\n") + 1)
    lines = source.text.splitlines()
    line = lines[number - 1] if number <= len(lines) else ""
    where = f"{source.name}:{number}:{mark.column + 1}" if mark else f"{source.name}:{number}"
    what, fix = cause["what"], cause["fix"]
    if "\t" in line[: len(line) - len(line.lstrip())]:
        what, fix = "The line is indented with a tab, which YAML forbids.", "Indent with spaces."
    return Finding(code="GP106", where=where, what=what, evidence=_evidence(lines[:number]), fix=fix)


def _evidence(lines: list[str]) -> str:
    """Return the last line, unless it may hold a secret, with tabs made visible."""
    line = lines[-1] if lines else ""
    if may_hold_secret(line) or _is_in_env(lines):
        return ""
    return line.strip(" ").replace("\t", "\\t")[:100]


def _is_in_env(lines: list[str]) -> bool:
    """Return whether the last line has a key ``env`` or is below one, judged by indentation."""
    depth = None
    for line in reversed(lines):
        indent = len(line) - len(line.lstrip())
        if not line.strip() or (depth is not None and indent >= depth):
            continue
        if _ENV.search(line):
            return True
        depth = indent
    return False
