"""Nodes whose kind of processor has no image of a component."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from gpu_provision.model.cluster import Target
from gpu_provision.model.findings import Finding, Severity
from gpu_provision.model.text import MAX_NODES, join_limited, nodes_at
from gpu_provision.releases import platforms


class UsedImage(NamedTuple):
    """An image that a node runs, and the section of the inventory that chooses it."""

    target: Target
    key: str
    image: str


def architecture_of(target: Target) -> str:
    """Return the kind of processor that a node reports, such as ``arm64``; empty if it is unknown."""
    return target.facts.architecture if target.facts else ""


def other_than_amd64(targets: Iterable[Target]) -> Iterator[Target]:
    """Yield the nodes that report another kind of processor than amd64, for which all images exist."""
    return (each for each in targets if architecture_of(each) not in {"", platforms.BUILT_FOR_ALL})


def problems(images: Iterable[UsedImage]) -> Iterator[Finding]:
    """Yield a finding for each image that is known not to exist for nodes that run it.

    It is a warning if the image is not in NVIDIA's registry: the user may have built it.
    """
    lacking: dict[tuple[str, str, str], list[str]] = {}
    for target, key, image in images:
        architecture = architecture_of(target)
        if platforms.why_absent(image, architecture):
            lacking.setdefault((key, image, architecture), []).append(target.name)
    for (key, image, architecture), names in lacking.items():
        nodes = join_limited(names, MAX_NODES)
        yield Finding(
            code="GP422",
            what=f"{nodes} {'is' if len(names) == 1 else 'are'} {architecture}, and NVIDIA has no such image {image}",
            where=nodes_at(names, MAX_NODES),
            evidence=f"source: {platforms.why_absent(image, architecture)}",
            consequence='its containers fail with "no match for platform" or "exec format error"',
            fix=remedy(key, image, architecture),
            severity=Severity.ERROR if platforms.is_of_nvidia(image) else Severity.WARNING,
        )


def remedy(key: str, image: str, architecture: str) -> str:
    """Return what a user does about an image that lacks an architecture."""
    name, _, tag = image.rpartition(":")
    if not key.endswith(".driver"):
        return f"set {key}.version to a tag of {name} for {architecture}"
    if re.match(r"\d+-", tag):  # a precompiled one
        return f"set {key}.use_precompiled: false, and {key}.version to a whole version"
    own = f"build the image for {architecture}, and set {key}.repository"
    return f"install the driver on these hosts and set {key}.enabled: false; or {own}"
