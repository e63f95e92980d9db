"""Checks the configuration of Node Feature Discovery, by which nodes could lose labels that the stack needs.

The rules are those of https://github.com/kubernetes-sigs/node-feature-discovery at v0.19: ``configureCore`` in
pkg/nfd-worker and ``filterFeatureLabel`` in pkg/nfd-master.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from gpu_provision.inventory.checks import CheckContext
from gpu_provision.inventory.document import KeyPath, Problem
from gpu_provision.model.text import join_or

_WORKER: KeyPath = ("nfd", "worker_config")
_MASTER: KeyPath = ("nfd", "master_config")
_PCI: KeyPath = (*_WORKER, "sources", "pci")
_CUSTOM: KeyPath = (*_WORKER, "sources", "custom")

_MAPPINGS: tuple[KeyPath, ...] = ((*_WORKER, "core"), (*_WORKER, "sources"), _PCI, (*_MASTER, "restrictions"))
_LISTS: tuple[KeyPath, ...] = (
    (*_WORKER, "core", "labelSources"),
    (*_WORKER, "core", "featureSources"),
    (*_PCI, "deviceClassWhitelist"),
    (*_PCI, "deviceLabelFields"),
)

_SOURCES = ("kernel", "pci", "system")
"""Sources of the labels of kernels, GPUs and operating systems."""

_OF_WORKER = ("pci-10de.present", "system-os_release.ID", "kernel-version.full")
_ALL_LABELS = (*_OF_WORKER, "gpu.count")  # the last one of GPU Feature Discovery
_FILTERS: dict[KeyPath, tuple[str, ...]] = {
    (*_WORKER, "core", "labelWhiteList"): _OF_WORKER,
    (*_MASTER, "labelWhiteList"): _ALL_LABELS,
}
"""Regular expression of labels that stay -> names of labels that have to stay."""

_SWITCHES: dict[KeyPath, str] = {
    (*_WORKER, "core", "noPublish"): "The worker would report nothing.",
    (*_MASTER, "noPublish"): "The master would label no node.",
    (*_MASTER, "restrictions", "denyNodeFeatureLabels"): "The master would drop the labels of GPU Feature Discovery.",
}
"""Setting that has to be off, and what it does."""

_GPU_CLASSES = ("0300", "0302")
_GPU_LABEL_FIELDS = (["vendor"], ["class", "vendor"])


def check_discovery(context: CheckContext) -> Iterator[Problem]:
    """Yield problems of Node Feature Discovery's configuration by which nodes lose the labels that the stack needs."""
    yield from _check_kinds(context)
    yield from _check_pci(context)
    names = context.mapping_at(_MASTER).get("extraLabelNs")
    if names is not None and not (isinstance(names, list) and "nvidia.com" in names):
        what = "The master would drop the labels of GPU Feature Discovery, which begin with nvidia.com."
        yield context.error("GP188", (*_MASTER, "extraLabelNs"), what, "Add nvidia.com to the list.")
    for path in _LISTS[:2]:
        sources = _value(context, path)
        if isinstance(sources, list) and (missing := [each for each in _SOURCES if each not in _enabled(sources)]):
            what = f"The worker would not report the labels of {join_or(missing).replace(' or ', ' and ')}."
            yield context.error("GP188", path, what, f"Add {', '.join(missing)} to the list, or write [all].")
    for path, labels in _FILTERS.items():
        if lost := _lost(_value(context, path), labels):
            what = f"No label like {lost[0]} would stay, which the stack needs."
            yield context.error("GP188", path, what, f"Let it match {', '.join(labels)}; or remove the line.")
    for path, what in _SWITCHES.items():
        if _value(context, path) is True:
            yield context.error("GP188", path, what, "Remove the line.")


def _value(context: CheckContext, path: KeyPath) -> Any:
    return context.mapping_at(path[:-1]).get(str(path[-1]))


def _check_kinds(context: CheckContext) -> Iterator[Problem]:
    """Yield values of another kind, with which the programs do not start."""
    for path in (each for each in _MAPPINGS if context.document.item(each)):
        if not isinstance(_value(context, path), dict):
            yield context.error("GP188", path, f"{path[-1]} is no mapping of keys to values.", "Write a mapping.")
    for path in (each for each in _LISTS if context.document.item(each)):
        found = _value(context, path)
        is_list = isinstance(found, list)
        if not is_list or (context.is_complete and not all(isinstance(each, str) for each in found)):
            yield context.error("GP188", path, f"{path[-1]} is no list of strings.", "Write a list, such as [a, b].")
    rules = _value(context, _CUSTOM)
    if context.document.item(_CUSTOM) and not (
        isinstance(rules, list) and all(isinstance(each, dict) for each in rules)
    ):
        yield context.error("GP188", _CUSTOM, "custom is no list of rules.", "Write lines that begin with a dash.")


def _check_pci(context: CheckContext) -> Iterator[Problem]:
    classes, fields = (_value(context, (*_PCI, key)) for key in ("deviceClassWhitelist", "deviceLabelFields"))
    is_readable = isinstance(classes, list) and all(isinstance(each, str) for each in classes)
    if is_readable and not all(any(each.startswith(one) for one in classes) for each in _GPU_CLASSES):
        what = "The worker would not report every GPU: their PCI classes are 0300 and 0302."
        yield context.error("GP188", (*_PCI, "deviceClassWhitelist"), what, "Add 0300 and 0302, or 03.")
    if isinstance(fields, list) and all(isinstance(each, str) for each in fields) and fields not in _GPU_LABEL_FIELDS:
        what = "The labels of GPUs would have other names than the stack looks for."
        yield context.error("GP188", (*_PCI, "deviceLabelFields"), what, "Write [vendor] or [class, vendor].")


def _enabled(sources: Iterable[object]) -> set[str]:
    """Return which of the needed sources a list turns on: ``all``, a name, or a name that a dash turns off."""
    enabled: set[str] = set()
    for name in map(str, sources):
        enabled |= {*_SOURCES} if name == "all" else {name}
        enabled.discard(name.removeprefix("-") if name.startswith("-") else "")
    return enabled


def _lost(pattern: object, labels: Iterable[str]) -> list[str]:
    """Return the labels that a regular expression does not match; none for one that only Go can read."""
    try:
        keeps = re.compile(pattern) if isinstance(pattern, str) else None
    except re.error:
        return []
    return [each for each in labels if keeps and not keeps.search(each)]
