"""``gpu-provision releases``: the known releases, and what changes from one to another."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import click

from gpu_provision import releases as catalogue
from gpu_provision.api.selection import find_release
from gpu_provision.cli import options
from gpu_provision.cli.output import Output
from gpu_provision.model.operand_specs import Image
from gpu_provision.model.text import pluralize
from gpu_provision.output.findings import document
from gpu_provision.output.text import PLAIN, Style, table
from gpu_provision.releases import Release, ReleaseDifference

_LISTED = ("driver", "toolkit", "device_plugin", "mig_manager", "dcgm_exporter", "nfd")  # columns of the list
_COLORS = {"new": "green", "gone": "red", "updated": "yellow", "": ""}


@click.command()
@click.argument("name", required=False, shell_complete=options.complete_releases)
@click.argument("other", required=False, shell_complete=options.complete_releases, metavar="[NAME]")
@options.output_options
def releases(*, name: str | None, other: str | None, out: Output) -> None:
    """List the known releases, the newest first; makes no API calls.

    With a NAME, shows the components of that release, and what changed since the release before it. With two, shows
    what changes from the first to the second.

    \b
    gpu-provision releases 26.7.0
    gpu-provision releases 25.10.1 26.7.0
    """  # noqa: D301 - \b is click's mark for text that keeps its lines
    if not name:
        known = [catalogue.release(each) for each in reversed(catalogue.names())]
        out.result(document("releases", releases=[_entry(each) for each in known]), list_text(known, out.style))
        older = catalogue.older_names()
        out.hint(f"{older[0]} to {older[-1]} are known, too, but too old to be installed.")
        return
    first = find_release(name, "releases")
    other_release = find_release(other, "releases") if other else None
    before, after = (first, other_release) if other_release else (catalogue.previous(first.name), first)
    differences = catalogue.compare(before or after, after)
    compared = [_entry(each) for each in (before, after) if each]
    changes = [_change(each) for each in differences if each.is_change]
    text = comparison_text(before, after, differences, out.style)
    out.result(document("releases", releases=compared, image_changes=changes), text)


def _entry(release: Release) -> dict[str, object]:
    return {
        "name": release.name,
        "kubernetes": release.kubernetes,
        "default": release.name == catalogue.DEFAULT,
        "images": {key: image.reference for key, image in release.images.items() if image.version},
    }


def _change(difference: ReleaseDifference) -> dict[str, str]:
    before, after = difference.before, difference.after
    return {
        "component": difference.component,
        "before": before.reference if before else "",
        "after": after.reference if after else "",
    }


def list_text(known: Iterable[Release], style: Style = PLAIN) -> str:
    """Return a table of releases with the versions of some components."""
    rows = [
        (
            f"{release.name} (default)" if release.name == catalogue.DEFAULT else release.name,
            f">= {release.kubernetes}",
            *(release.image(key).version for key in _LISTED),
        )
        for release in known
    ]
    return table(("RELEASE", "KUBERNETES", *(key.replace("_", " ").upper() for key in _LISTED)), rows, style)


def comparison_text(
    before: Release | None, after: Release, differences: Iterable[ReleaseDifference], style: Style = PLAIN
) -> str:
    """Return a table of the images of two releases; of one alone if there is none before it."""
    listed, rows = list(differences), list[tuple[str, ...]]()
    if before is None:
        rows = [(each.component, each.after.reference) for each in listed if each.after]
        return table(("COMPONENT", after.name), rows, style)
    for each in listed:
        word = "" if not each.is_change else "new" if not each.before else "gone" if not each.after else "updated"
        is_renamed = each.before and each.after and replace(each.before, version="") != replace(each.after, version="")
        old, new = (_cell(image, whole=bool(is_renamed)) for image in (each.before, each.after))
        rows.append((each.component, style.paint(_COLORS[word], word), old, new))
    number = sum(each.is_change for each in listed)
    summary = f"{number} of {pluralize(len(listed), 'image')} differ." if number else "All images are the same."
    return f"{table(('COMPONENT', 'CHANGE', before.name, after.name), rows, style)}\n{summary}"


def _cell(image: Image | None, *, whole: bool) -> str:
    """Return the version of an image, or its whole name where the two differ in more."""
    if image is None:
        return "-"
    return image.reference if whole else image.version
