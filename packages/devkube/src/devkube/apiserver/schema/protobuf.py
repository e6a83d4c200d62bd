"""Kubernetes' protobuf, read only: typed clients send it, and take JSON back.

A body is four magic bytes and an `Unknown` that wraps the object. Field numbers come from the
derived table; a field's flags say how JSON shows it. Zero values are left out unless they are
behind a pointer in Go, where the client set zero on purpose.
"""

from __future__ import annotations

import base64
import datetime as dt
import functools
import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from devkube.apiserver import status
from devkube.apiserver.schema.types import read_table
from kubeloop.objects.meta import JsonObject

MEDIA_TYPE = "application/vnd.kubernetes.protobuf"
_MAGIC = b"k8s\x00"
_MACHINERY = "io.k8s.apimachinery.pkg"
_META_KINDS = ("DeleteOptions", "CreateOptions", "UpdateOptions", "PatchOptions")
_DEPTH_LIMIT = 64

Fields = dict[int, tuple[str, str, str]]


class ProtobufReader:
    """Decodes bodies; the table is read when the first one comes."""

    def __init__(self) -> None:
        self._messages: dict[str, Fields] | None = None

    def decode(self, body: bytes) -> JsonObject:
        """Return the object in a body; 400 for what is not one."""
        if not body.startswith(_MAGIC):
            raise status.bad_request(
                "the body is not Kubernetes protobuf: its first bytes are wrong"
            )
        try:
            unknown = self._message(body[len(_MAGIC) :], f"{_MACHINERY}.runtime.Unknown", 0)
            meta = unknown.get("typeMeta") or {}
            raw = base64.b64decode(unknown.get("raw", ""))
            version, kind = meta.get("apiVersion", ""), meta.get("kind", "")
            return {"apiVersion": version, "kind": kind} | self._message(
                raw, _name(version, kind), 0
            )
        except (ValueError, IndexError, KeyError, struct.error, RecursionError) as error:
            raise status.bad_request(f"protobuf cannot be decoded: {error}") from error

    def _fields(self, name: str) -> Fields:
        if self._messages is None:
            table = read_table("protobuf")
            self._messages = {
                message: {number: (field, kind, flags) for number, field, kind, flags in fields}
                for message, fields in table.items()
            }
        return self._messages[name]

    def _message(self, data: bytes, name: str, depth: int) -> JsonObject:
        if depth > _DEPTH_LIMIT:
            raise ValueError("nested too deeply")
        fields = self._fields(name)
        result: JsonObject = {}
        for number, wire in _wire(data):
            if number in fields:
                self._take(result, fields[number], wire, depth)
        return result

    def _take(self, result: JsonObject, field: tuple[str, str, str], wire: Any, depth: int) -> None:
        name, kind, flags = field
        if "m" in flags:
            key, value = self._pair(wire, kind, depth)
            result.setdefault(name, {})[key] = value
            return
        value = self._value(wire, kind, depth)
        if "r" in flags:
            result.setdefault(name, []).append(value)
        elif "i" in flags:
            result.update(value)
        elif value is not None and ("p" in flags or value not in ("", 0, False)):
            result[name] = value

    def _pair(self, wire: Any, kind: str, depth: int) -> tuple[str, Any]:
        parts: dict[int, Any] = dict(_wire(_bytes(wire)))
        key = _bytes(parts.get(1, b"")).decode()
        found = parts.get(2, b"" if kind in ("string", "bytes") or "." in kind else 0)
        value = self._value(found, kind, depth)
        return key, "" if value is None else value

    def _value(self, wire: Any, kind: str, depth: int) -> Any:
        scalar = _SCALARS.get(kind)
        if scalar is not None:
            return scalar(wire)
        value = self._message(_bytes(wire), kind, depth + 1)
        special = _SPECIAL.get(kind)
        if special is not None:
            return special(value)
        return value["items"] if set(value) == {"items"} and kind.endswith("ExtraValue") else value


def _name(version: str, kind: str) -> str:
    if kind in _META_KINDS:
        return f"{_MACHINERY}.apis.meta.v1.{kind}"
    group, _, number = version.rpartition("/")
    package = group.partition(".")[0] or "core"
    return f"io.k8s.api.{package}.{number}.{kind}"


def _wire(data: bytes) -> Iterator[tuple[int, Any]]:
    """Yield (field number, value): whole numbers, bytes, or eight bytes of a double."""
    position = 0
    while position < len(data):
        tag, position = _varint(data, position)
        match tag & 7:
            case 0:
                value, position = _varint(data, position)
                yield tag >> 3, value
            case 1:
                yield tag >> 3, data[position : position + 8]
                position += 8
            case 2:
                size, position = _varint(data, position)
                if position + size > len(data):
                    raise ValueError("a field is longer than its message")
                yield tag >> 3, data[position : position + size]
                position += size
            case 5:
                position += 4
            case kind:
                raise ValueError(f"wire type {kind} is not used by Kubernetes")


def _varint(data: bytes, position: int) -> tuple[int, int]:
    result = 0
    for index in range(10):
        byte = data[position + index]
        result |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return result, position + index + 1
    raise ValueError("a number has more than ten bytes")


def _bytes(wire: Any) -> bytes:
    if not isinstance(wire, bytes):
        raise ValueError("a number where bytes are expected")  # noqa: TRY004 - one error for malformed bodies
    return wire


def _integer(wire: Any, *, bits: int) -> int:
    if not isinstance(wire, int):
        raise ValueError("bytes instead of a number")  # noqa: TRY004 - one error for malformed bodies
    value = wire & (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def _time(value: JsonObject, *, fraction: bool) -> str | None:
    if not value:
        return None
    moment = dt.datetime.fromtimestamp(0, dt.UTC) + dt.timedelta(
        seconds=value.get("seconds", 0), microseconds=value.get("nanos", 0) // 1000
    )
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ" if fraction else "%Y-%m-%dT%H:%M:%SZ")


def _int_or_string(value: JsonObject) -> int | str:
    return str(value.get("strVal", "")) if value.get("type") else int(value.get("intVal", 0))


def _raw(value: JsonObject) -> Any:
    text = value.get("raw") or value.get("Raw")
    return msgspec.json.decode(base64.b64decode(text)) if text else None


_SCALARS: Mapping[str, Callable[[Any], Any]] = {
    "string": lambda wire: _bytes(wire).decode(),
    "bytes": lambda wire: base64.b64encode(_bytes(wire)).decode(),
    "bool": lambda wire: bool(_integer(wire, bits=64)),
    "int32": functools.partial(_integer, bits=32),
    "int64": functools.partial(_integer, bits=64),
    "double": lambda wire: struct.unpack("<d", _bytes(wire))[0],
}
_SPECIAL: Mapping[str, Callable[[JsonObject], Any]] = {
    f"{_MACHINERY}.apis.meta.v1.Time": functools.partial(_time, fraction=False),
    f"{_MACHINERY}.apis.meta.v1.MicroTime": functools.partial(_time, fraction=True),
    f"{_MACHINERY}.api.resource.Quantity": lambda value: value.get("string", "0"),
    f"{_MACHINERY}.util.intstr.IntOrString": _int_or_string,
    f"{_MACHINERY}.runtime.RawExtension": _raw,
    f"{_MACHINERY}.apis.meta.v1.FieldsV1": _raw,
}
