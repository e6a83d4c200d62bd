"""Bodies in Kubernetes' protobuf, as typed clients send them."""

from __future__ import annotations

import pytest
from tests.apiserver.harness import CONFIG_MAPS

from devkube.apiserver.schema.protobuf import MEDIA_TYPE, ProtobufReader
from devkube.apiserver.status import StatusError


def varint(number: int) -> bytes:
    out = bytearray()
    while True:
        number, low = number >> 7, number & 0x7F
        out.append(low | (0x80 if number else 0))
        if not number:
            return bytes(out)


def field(number: int, value: bytes | str | int) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value & (1 << 64) - 1)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def wrapped(version: str, kind: str, raw: bytes) -> bytes:
    meta = field(1, version) + field(2, kind)
    return b"k8s\x00" + field(1, meta) + field(2, raw)


META = (
    field(1, "c")
    + field(3, "")
    + field(7, 0)
    + field(11, field(1, "k") + field(2, "v"))
    + field(8, b"")
)


async def test_an_object_is_made_from_protobuf(kube):
    raw = field(1, META) + field(2, field(1, "a") + field(2, "b"))
    body = wrapped("v1", "ConfigMap", raw)
    made = await kube.send("POST", CONFIG_MAPS, body, kind=MEDIA_TYPE)
    assert made.code == 201, made
    assert made["data"] == {"a": "b"}
    assert made["metadata"]["labels"] == {"k": "v"}


def test_zero_counts_if_it_is_behind_a_pointer_and_inlined_parts_are_merged():
    reader = ProtobufReader()
    spec = field(1, 0) + field(5, 0)
    found = reader.decode(wrapped("apps/v1", "Deployment", field(2, spec)))
    assert found["spec"] == {"replicas": 0}
    handler = field(2, field(1, "/x") + field(2, field(1, 0) + field(2, 80)))
    probe = field(1, handler) + field(2, 3)
    container = field(1, "c") + field(11, probe)
    pod = reader.decode(wrapped("v1", "Pod", field(2, field(2, container))))
    assert pod["spec"]["containers"][0]["readinessProbe"] == {
        "httpGet": {"path": "/x", "port": 80},
        "initialDelaySeconds": 3,
    }


def test_times_quantities_and_negative_numbers():
    reader = ProtobufReader()
    lease = field(4, field(1, 1700000000) + field(2, 5000)) + field(2, -1)
    found = reader.decode(wrapped("coordination.k8s.io/v1", "Lease", field(2, lease)))
    assert found["spec"] == {"renewTime": "2023-11-14T22:13:20.000005Z", "leaseDurationSeconds": -1}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"k8s\x00\xff\xff",
        wrapped("v1", "Nothing", b""),
        wrapped("v1", "ConfigMap", b"\x0a\xff\x01"),
        wrapped("v1", "ConfigMap", field(1, 5)),
        wrapped("v1", "ConfigMap", b"\x0b"),
    ],
)
def test_malformed_bodies_are_refused(body):
    with pytest.raises(StatusError) as caught:
        ProtobufReader().decode(body)
    assert caught.value.code == 400
