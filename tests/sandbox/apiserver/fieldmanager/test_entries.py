"""The entries of managedFields."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_provision.sandbox.apiserver.fieldmanager.entries import APPLY, UPDATE, decoded, encoded, owner

ENTRY: dict[str, Any] = {
    "apiVersion": "v1",
    "fieldsType": "FieldsV1",
    "fieldsV1": {"f:a": {}},
    "manager": "m",
    "operation": "Update",
    "subresource": "status",
    "time": "2026-01-01T00:00:00Z",
}


def test_what_is_read_is_written_again() -> None:
    """An entry keeps every part of it."""
    assert encoded(decoded([ENTRY])) == [ENTRY]


@pytest.mark.parametrize(
    "change",
    [{"operation": "Other"}, {"apiVersion": ""}, {"fieldsType": "FieldsV2"}, {"fieldsV1": ["f:a"]}],
)
def test_one_entry_that_is_not_understood_spoils_the_list(change: dict[str, Any]) -> None:
    """The server then starts from nothing; so do we."""
    assert decoded([ENTRY, {**ENTRY, "manager": "n", **change}]) == {}


def test_entries_are_in_the_servers_order() -> None:
    """Apply before Update, then by time, then by manager."""
    entries = [
        {**ENTRY, "manager": manager, "operation": operation, "time": time}
        for manager, operation, time in (
            ("b", "Update", "2"),
            ("c", "Update", "1"),
            ("a", "Update", "2"),
            ("z", "Apply", "3"),
        )
    ]
    assert [entry["manager"] for entry in encoded(decoded(entries))] == ["z", "c", "a", "b"]


def test_an_applier_is_the_same_in_every_version_and_an_updater_is_not() -> None:
    """So an Apply entry is replaced when the version changes."""
    assert owner("m", APPLY, "v1", "") == owner("m", APPLY, "v2", "")
    assert owner("m", UPDATE, "v1", "") != owner("m", UPDATE, "v2", "")
    assert owner("", UPDATE, "v1", "").manager == "unknown"
