"""Bodies in protobuf, as kubectl's typed clients send them."""

from __future__ import annotations

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


def test_maps_bytes_and_empty_values() -> None:
    """Bytes are base64 in JSON; what is empty and not marked as present is left out."""
    entry = _field(1, b"key") + _field(2, b"value")
    assert decode_protobuf(_body(b"v1", b"Secret", META + _field(2, entry) + _field(3, b""))) == {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "one"},
        "data": {"key": "dmFsdWU="},
    }


def test_zero_replicas_are_kept_and_times_are_text() -> None:
    """A pointer's zero means something; a time is RFC 3339."""
    created = _field(8, _field(1, 1767225600))
    body = _body(b"apps/v1", b"Deployment", _field(1, _field(1, b"one") + created) + _field(2, _field(1, 0)))
    value = decode_protobuf(body)
    assert value["spec"] == {"replicas": 0}
    assert value["metadata"]["creationTimestamp"] == "2026-01-01T00:00:00Z"


def test_inlined_structs_quantities_and_ports() -> None:
    """A volume's source stands beside its name; int-or-string is either."""
    volume = _field(1, b"v") + _field(2, _field(1, _field(1, b"/x")))
    pod = decode_protobuf(_body(b"v1", b"Pod", META + _field(2, _field(1, volume))))
    assert pod["spec"]["volumes"] == [{"name": "v", "hostPath": {"path": "/x"}}]
    ports = _field(1, _field(3, 80) + _field(4, _field(1, 1) + _field(3, b"http")))
    assert decode_protobuf(_body(b"v1", b"Service", META + _field(2, ports)))["spec"]["ports"] == [
        {"port": 80, "targetPort": "http"}
    ]


@pytest.mark.parametrize(
    "body",
    [b"", b"{}", b"k8s\x00", b"k8s\x00\x0a\xff", _body(b"v1", b"Nothing", b""), _body(b"v1", b"Pod", b"\x0a\xff")],
)
def test_what_cannot_be_read_is_refused(body: bytes) -> None:
    """With one sentence and no traceback."""
    with pytest.raises(StatusError, match="the protobuf body cannot be read"):
        decode_protobuf(body)
