"""Protobuf bodies of kubectl's typed clients."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_provision.sandbox.apiserver.errors import StatusError
from gpu_provision.sandbox.apiserver.request import decode_protobuf


def _field(number: int, value: bytes | int) -> bytes:
    if isinstance(value, int):
        return bytes([number << 3]) + _varint(value)
    return bytes([number << 3 | 2]) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    out = b""
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def _body(version: bytes, kind: bytes, raw: bytes) -> bytes:
    return b"k8s\x00" + _field(1, _field(1, version) + _field(2, kind)) + _field(2, raw)


META = _field(1, _field(1, b"one") + _field(2, b""))
MOUNTED = {"name": "v", "hostPath": {"path": "/x"}}
VOLUME = _field(1, b"v") + _field(2, _field(1, _field(1, b"/x")))
PORTS = _field(1, _field(3, 80) + _field(4, _field(1, 1) + _field(3, b"http")))
CREATED = _field(1, _field(1, b"one") + _field(8, _field(1, 1767225600)))


@pytest.mark.parametrize(
    ("version", "kind", "raw", "value"),
    [
        # bytes are base64 in JSON; what is empty and not marked as present is left out
        (
            b"v1",
            b"Secret",
            _field(2, _field(1, b"key") + _field(2, b"value")) + _field(3, b""),
            {"data": {"key": "dmFsdWU="}},
        ),
        (b"apps/v1", b"Deployment", _field(2, _field(1, 0)), {"spec": {"replicas": 0}}),  # a pointer's zero
        (b"v1", b"Pod", _field(2, _field(1, VOLUME)), {"spec": {"volumes": [MOUNTED]}}),
        (b"v1", b"Service", _field(2, PORTS), {"spec": {"ports": [{"port": 80, "targetPort": "http"}]}}),
    ],
)
def test_a_body_is_the_object_that_its_json_would_be(version: bytes, kind: bytes, raw: bytes, value: Any) -> None:
    found = decode_protobuf(_body(version, kind, META + raw))
    assert found == {"apiVersion": version.decode(), "kind": kind.decode(), "metadata": {"name": "one"}, **value}


def test_times_are_text() -> None:
    found = decode_protobuf(_body(b"v1", b"ConfigMap", CREATED))
    assert found["metadata"] == {"name": "one", "creationTimestamp": "2026-01-01T00:00:00Z"}


@pytest.mark.parametrize(
    "body",
    [b"", b"{}", b"k8s\x00", b"k8s\x00\x0a\xff", _body(b"v1", b"Nothing", b""), _body(b"v1", b"Pod", b"\x0a\xff")],
)
def test_what_cannot_be_read_is_refused(body: bytes) -> None:
    """Without a traceback."""
    with pytest.raises(StatusError, match="the protobuf body cannot be read"):
        decode_protobuf(body)
