"""The kubelet's device plugin interface, v1beta1: its messages, declared without a compiler, and its methods."""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory  # type: ignore[import-untyped]  # stubs are a package of their own

PACKAGE = "v1beta1"
REGISTRATION, PLUGIN = f"{PACKAGE}.Registration", f"{PACKAGE}.DevicePlugin"
VERSION = PACKAGE

_STRINGS = "map<string, string>"
_MESSAGES = {
    "Empty": (),
    "DevicePluginOptions": (),
    "RegisterRequest": (("string", "version", 1), ("string", "endpoint", 2), ("string", "resource_name", 3)),
    "Device": (("string", "ID", 1), ("string", "health", 2)),
    "ListAndWatchResponse": (("repeated Device", "devices", 1),),
    "ContainerAllocateRequest": (("repeated string", "devicesIDs", 1),),
    "AllocateRequest": (("repeated ContainerAllocateRequest", "container_requests", 1),),
    "DeviceSpec": (("string", "container_path", 1), ("string", "host_path", 2), ("string", "permissions", 3)),
    "Mount": (("string", "container_path", 1), ("string", "host_path", 2)),
    "ContainerAllocateResponse": (
        (_STRINGS, "envs", 1),
        ("repeated Mount", "mounts", 2),
        ("repeated DeviceSpec", "devices", 3),
    ),
    "AllocateResponse": (("repeated ContainerAllocateResponse", "container_responses", 1),),
}
"""Message -> its fields: type, name and number as the interface's own definition has them, as far as they are used."""

METHODS = {
    "GetDevicePluginOptions": ("Empty", "DevicePluginOptions"),
    "ListAndWatch": ("Empty", "ListAndWatchResponse"),
    "Allocate": ("AllocateRequest", "AllocateResponse"),
}
"""Method of a plugin -> message asked with, message answered with; ListAndWatch answers with a stream."""

_Field = descriptor_pb2.FieldDescriptorProto


def _file() -> descriptor_pb2.FileDescriptorProto:
    declared = descriptor_pb2.FileDescriptorProto(name="deviceplugin.proto", package=PACKAGE, syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = declared.message_type.add(name=name)
        for kind, field, number in fields:
            _add(message, kind, field, number)
    return declared


def _add(message: descriptor_pb2.DescriptorProto, kind: str, name: str, number: int) -> None:
    repeated = kind == _STRINGS or kind.startswith("repeated ")
    label = _Field.LABEL_REPEATED if repeated else _Field.LABEL_OPTIONAL
    field = message.field.add(name=name, number=number, label=label)
    if kind == _STRINGS:
        kind = f"{message.name}.{_map_entry(message, name)}"
    kind = kind.removeprefix("repeated ")
    if kind == "string":
        field.type = _Field.TYPE_STRING
    else:
        field.type, field.type_name = _Field.TYPE_MESSAGE, f".{PACKAGE}.{kind}"


def _map_entry(message: descriptor_pb2.DescriptorProto, name: str) -> str:
    entry = message.nested_type.add(name=f"{name.capitalize()}Entry")
    entry.options.map_entry = True
    _add(entry, "string", "key", 1)
    _add(entry, "string", "value", 2)
    return str(entry.name)


_pool = descriptor_pool.DescriptorPool()
_pool.Add(_file())


def message(name: str) -> Any:
    return message_factory.GetMessageClass(_pool.FindMessageTypeByName(f"{PACKAGE}.{name}"))
