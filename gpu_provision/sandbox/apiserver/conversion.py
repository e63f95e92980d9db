"""Objects between the version that they are stored in and the version that a path serves."""

from __future__ import annotations

from gpu_provision.sandbox.api import Object
from gpu_provision.sandbox.apiserver.resources import ResourceInfo
from gpu_provision.sandbox.apiserver.store import Item

EVENTS = "/events"
# core/v1 Event -> events.k8s.io/v1 Event; what is not named here has the same name in both.
_EVENT_FIELDS = {
    "involvedObject": "regarding",
    "message": "note",
    "source": "deprecatedSource",
    "firstTimestamp": "deprecatedFirstTimestamp",
    "lastTimestamp": "deprecatedLastTimestamp",
    "count": "deprecatedCount",
    "reportingComponent": "reportingController",
}
_EVENT_FIELDS_BACK = {new: old for old, new in _EVENT_FIELDS.items()}


def stored(obj: Object, info: ResourceInfo) -> Object:
    """Return an object of a served version as it is kept; may return ``obj`` itself."""
    if info.storage == EVENTS and info.group:
        return _renamed(obj, _EVENT_FIELDS_BACK, "v1")
    return obj


def served(item: Item, info: ResourceInfo) -> Item:
    """Return an item as a path of ``info`` shows it; the same item if nothing is to be done."""
    if item.object["apiVersion"] == info.api_version:
        return item
    if info.storage == EVENTS:
        return Item(_renamed(item.object, _EVENT_FIELDS, info.api_version), item.version)
    return Item({**item.object, "apiVersion": info.api_version}, item.version)


def _renamed(obj: Object, names: dict[str, str], api_version: str) -> Object:
    renamed = {names.get(key, key): value for key, value in obj.items()}
    renamed["apiVersion"] = api_version
    return renamed
