"""JSON from and to an API server, by the type that the caller chose for the objects.

`codec_for(kind)` chooses once: `dict` (everything, as JSON gives it), `LazyObject` (metadata now,
the rest on demand), `PartialObjectMetadata`, or any msgspec Struct with a `metadata` field. Fields
that a Struct does not name are skipped over at some 1 GB/s, never built; this is what makes a slim
Struct ten times cheaper than a dictionary.

One object that a Struct cannot take would fail its whole list, and every list after it. A Struct with
a class method `salvaged(data, error)` is asked for what can be made of such an object instead.

Watch events are decoded in one pass. The envelope's `type` may only be one of the three kinds of
change; any other fails at the first bytes, and only then is the line looked at again.
"""

from __future__ import annotations

import functools
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeAlias, TypeVar, cast

import msgspec

from kubeloop.objects.lazy import LazyObject, parse_lazy
from kubeloop.objects.list_watch import (
    ADDED,
    BOOKMARK,
    DELETED,
    MALFORMED,
    MODIFIED,
    NO_TYPE,
    AnyEvent,
    DecodeError,
    EventEnvelope,
    ItemType,
    ListEnvelope,
    Page,
    WatchEvent,
    check_is_list,
)
from kubeloop.objects.meta import JsonObject, MetaAccess, PartialObjectMetadata, access_for

T = TypeVar("T")
S = TypeVar("S")
Buffer: TypeAlias = bytes | bytearray | memoryview
Line: TypeAlias = bytes | memoryview

_EXCERPT = 120
_CLOSING_BRACE = 0x7D


# Deeper than any schema of Kubernetes. A server takes ten times what the decoder does.
_DEEPEST = 200
_NESTING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)|[\[{]|([\]}])', re.DOTALL)
_PLAIN_CHANGE = re.compile(rb'\{"type":"(ADDED|MODIFIED|DELETED)","object":')


class Codec(ABC, Generic[T]):
    """Decodes and encodes objects of one representation. Stateless; share it freely.

    Every method that decodes raises `DecodeError`. What it returns never refers to the bytes that
    came in, so callers may reuse their buffers at once.
    """

    def __init__(self, access: MetaAccess, *, projection: str = "") -> None:
        self.access = access
        # The projection to request instead of whole objects; empty for whole objects.
        self.projection = projection

    @abstractmethod
    def decode(self, data: Buffer) -> T:
        """Decode one object."""

    @abstractmethod
    def encode(self, obj: T) -> bytes:
        """Encode one object."""

    @abstractmethod
    def decode_items(self, data: Buffer, of: ItemType = NO_TYPE) -> list[T]:
        """Decode a JSON array of objects, each `of` the type that its list gives."""

    @abstractmethod
    def decode_page(self, body: Buffer) -> Page[T]:
        """Decode one list response. A `Table`, or anything that is not a list, is refused."""

    @abstractmethod
    def _change(self, line: Line) -> WatchEvent[T]:
        """Decode an ADDED, MODIFIED or DELETED event; raises one of MALFORMED for others."""

    def without_managed_fields(self) -> Codec[T]:
        """Return a codec whose objects come without metadata.managedFields; here they do already."""
        return self

    def decode_event(self, line: Line) -> WatchEvent[T]:
        """Decode one line of a watch, of any type."""
        try:
            return self._change(line)
        except MALFORMED as error:
            return self._other_event(line, error)

    def decode_events(self, lines: Sequence[Line]) -> list[WatchEvent[T]]:
        """Decode many lines; the same as `decode_event` of each."""
        change = self._change
        events: list[WatchEvent[T]] = []
        for line in lines:
            try:
                events.append(change(line))
            except MALFORMED as error:
                events.append(self._other_event(line, error))
        return events

    def _other_event(self, line: Line, error: Exception) -> WatchEvent[T]:
        try:
            event = _decode_any_event(line)
            match event.type:
                case "ADDED" | "MODIFIED" | "DELETED":
                    raise _undecodable(line, error) from error
                case "BOOKMARK":
                    return WatchEvent(BOOKMARK, _decode_partial(event.object))
                case other:
                    return WatchEvent(other, _decode_any(event.object))
        except MALFORMED as malformed:
            raise _undecodable(line, malformed) from malformed


class _StructCodec(Codec[T]):
    """Objects as msgspec Structs with a `metadata` field."""

    def __init__(self, kind: type[T]) -> None:
        partial = issubclass(kind, PartialObjectMetadata)
        super().__init__(access_for(kind), projection="PartialObjectMetadata" if partial else "")
        self._one = msgspec.json.Decoder(kind)
        self._many: msgspec.json.Decoder[list[T]] = _decoder(list, kind)
        self._event: msgspec.json.Decoder[EventEnvelope[T]] = _decoder(EventEnvelope, kind)
        self._list: msgspec.json.Decoder[ListEnvelope[T]] = _decoder(ListEnvelope, kind)
        self._salvage: Callable[[bytes, str], T] | None = getattr(kind, "salvaged", None)

    def decode(self, data: Buffer) -> T:
        return _shallow(self._one.decode, data) if self._salvage is None else self._rescued(data)

    def encode(self, obj: T) -> bytes:
        return msgspec.json.encode(obj)

    def decode_items(self, data: Buffer, of: ItemType = NO_TYPE) -> list[T]:
        try:
            return _shallow(self._many.decode, data)
        except DecodeError:
            if self._salvage is None:
                raise
            return [self._rescued(raw) for raw in _shallow(_decode_raws, data)]

    def decode_page(self, body: Buffer) -> Page[T]:
        try:
            envelope = _shallow(self._list.decode, body)
        except DecodeError:
            if self._salvage is None:
                raise
            raws = _shallow(_decode_raw_list, body)
            return _page(raws, [self._rescued(raw) for raw in raws.items or ()])
        return _page(envelope, envelope.items or [])

    def _change(self, line: Line) -> WatchEvent[T]:
        change = self._event.decode(line)
        return WatchEvent(change.type, change.object)

    def _other_event(self, line: Line, error: Exception) -> WatchEvent[T]:
        if isinstance(error, RecursionError):
            return self.decode_events([without_depths(line)])[0]
        try:
            return super()._other_event(line, error)
        except DecodeError:
            if self._salvage is None:
                raise
            change = _shallow(_decode_raw_change, line)
            return WatchEvent(change.type, self._rescued(change.object))

    def _rescued(self, data: Buffer | msgspec.Raw) -> T:
        """Decode an object, or have made of it what can be made. Raises DecodeError."""
        assert self._salvage is not None
        try:
            return self._one.decode(data)
        except msgspec.ValidationError as error:
            try:
                return self._salvage(without_depths(data), str(error))
            except MALFORMED:
                raise _undecodable(bytes(data), error) from error
        except RecursionError:
            return self._rescued(without_depths(data))
        except MALFORMED as error:
            raise _undecodable(bytes(data), error) from error

    def decode_events(self, lines: Sequence[Line]) -> list[WatchEvent[T]]:
        # The same as the inherited one without two calls for each event.
        decode = self._event.decode
        events: list[WatchEvent[T]] = []
        for line in lines:
            try:
                change = decode(line)
            except MALFORMED as error:
                events.append(self._other_event(line, error))
            else:
                events.append(WatchEvent(change.type, change.object))
        return events


class _RawCodec(Codec[T]):
    """Objects made from their own bytes by a function: dictionaries and `LazyObject`s."""

    def __init__(
        self,
        *,
        access: MetaAccess,
        parse: Callable[[bytes, ItemType], T],
        unparse: Callable[[T], bytes],
    ) -> None:
        super().__init__(access)
        self._parse = parse
        self._unparse = unparse

    def decode(self, data: Buffer) -> T:
        return self._items([data], NO_TYPE)[0]

    def encode(self, obj: T) -> bytes:
        return self._unparse(obj)

    def decode_items(self, data: Buffer, of: ItemType = NO_TYPE) -> list[T]:
        return self._items(_checked(_decode_raws, data), of)

    def decode_page(self, body: Buffer) -> Page[T]:
        envelope = _checked(_decode_raw_list, body)
        return _page(envelope, self._items(envelope.items or [], envelope.item_type))

    def _items(self, raws: Sequence[Buffer | msgspec.Raw], of: ItemType) -> list[T]:
        parse = self._parse
        try:
            return [parse(bytes(raw), of) for raw in raws]
        except MALFORMED as error:
            raise DecodeError(f"cannot decode an object: {error}") from error

    def _change(self, line: Line) -> WatchEvent[T]:
        plain = _PLAIN_CHANGE.match(line)
        if plain is None or line[-1] != _CLOSING_BRACE:
            return self._odd_change(line)
        try:
            obj = self._parse(bytes(line[plain.end() : -1]), NO_TYPE)
        except MALFORMED:
            return self._odd_change(line)
        return WatchEvent(_CHANGES[plain[1]], obj)

    def _odd_change(self, line: Line) -> WatchEvent[T]:
        """Decode what no known server writes and JSON allows: other orders, spaces, more keys."""
        change = _decode_raw_change(line)
        return WatchEvent(change.type, self._parse(bytes(change.object), NO_TYPE))


class _DictCodec(_RawCodec["JsonObject"]):
    """Dictionaries, whole."""

    def __init__(self) -> None:
        super().__init__(access=access_for(dict), parse=_parse_dict, unparse=msgspec.json.encode)

    def without_managed_fields(self) -> Codec[JsonObject]:
        return codec_for(dict, managed_fields=False)


def codec_for(kind: type[T], *, managed_fields: bool = True) -> Codec[T]:
    """Choose the codec for objects of type `kind`.

    `managed_fields=False` makes dictionaries come without metadata.managedFields, decoded for some
    two thirds of the price; the other representations never have them. Raises TypeError for any
    other class.
    """
    if issubclass(kind, dict):
        trimmed = _RawCodec(
            access=access_for(dict), parse=_parse_trimmed_dict, unparse=msgspec.json.encode
        )
        return cast("Codec[T]", _DictCodec() if managed_fields else trimmed)
    if issubclass(kind, LazyObject):
        lazy = _RawCodec(access=access_for(kind), parse=parse_lazy, unparse=_encode_lazy)
        return cast("Codec[T]", lazy)
    if not issubclass(kind, msgspec.Struct) or "metadata" not in kind.__struct_fields__:
        raise TypeError(
            f"{kind!r} is not dict, LazyObject or a msgspec Struct with a metadata field"
        )
    return cast("Codec[T]", _struct_codec(kind))


@functools.cache
def _struct_codec(kind: type[Any]) -> Codec[Any]:
    # Decoders of a large kind, such as a Deployment with all its fields, take milliseconds to make.
    return _StructCodec(kind)


def _parse_dict(data: bytes, of: ItemType) -> JsonObject:
    obj: JsonObject = _decode_dict(data)
    if of.kind and "kind" not in obj:
        obj["apiVersion"], obj["kind"] = of
    return obj


def _parse_trimmed_dict(data: bytes, of: ItemType) -> JsonObject:
    try:
        return parse_lazy(data, of).to_dict()
    except msgspec.ValidationError:
        # Metadata of other types than Kubernetes'; a dictionary can hold them all the same.
        obj = _parse_dict(data, of)
    if isinstance(metadata := obj.get("metadata"), dict):
        metadata.pop("managedFields", None)
    return obj


def _encode_lazy(obj: LazyObject) -> bytes:
    return msgspec.json.encode(obj.to_dict())


def _decoder(shape: Any, kind: type[T]) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(shape[kind])


def _page(envelope: ListEnvelope[Any], items: list[T]) -> Page[T]:
    check_is_list(envelope)
    meta = envelope.metadata
    return Page(items, meta.resource_version, meta.continue_token, meta.remaining_item_count)


def _checked(decode: Callable[[Buffer], S], data: Buffer) -> S:
    try:
        return decode(data)
    except MALFORMED as error:
        raise _undecodable(data, error) from error


def _shallow(decode: Callable[[Buffer], S], data: Buffer) -> S:
    """Decode what a Struct does not name, however deep it is. Raises DecodeError."""
    try:
        return decode(data)
    except RecursionError:
        return _checked(decode, without_depths(data))
    except MALFORMED as error:
        raise _undecodable(data, error) from error


def without_depths(data: Buffer | msgspec.Raw) -> bytes:
    """Return JSON with null for what is nested more deeply than any schema.

    A decoder descends also into what it skips, and one such object would make a whole list unreadable.
    """
    text, kept, depth, start = bytes(data), [], 0, 0
    for token in _NESTING.finditer(text):
        if token[1]:
            depth -= 1
            if depth == _DEEPEST:
                start = token.end()
        elif token[0] in b"[{":
            if depth == _DEEPEST:
                kept.append(text[start : token.start()] + b"null")
            depth += 1
    return b"".join((*kept, text[start:]))


def _undecodable(data: Buffer, error: Exception) -> DecodeError:
    return DecodeError(f"{error}; the {len(data)} bytes begin with {bytes(data[:_EXCERPT])!r}")


_CHANGES = {b"ADDED": ADDED, b"MODIFIED": MODIFIED, b"DELETED": DELETED}

_decode_any_event = msgspec.json.Decoder(AnyEvent).decode
_decode_partial = msgspec.json.Decoder(PartialObjectMetadata).decode
_decode_dict = msgspec.json.Decoder(dict[str, Any]).decode
_decode_any = msgspec.json.Decoder().decode
_decode_raws = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_raw_list = msgspec.json.Decoder(ListEnvelope[msgspec.Raw]).decode
_decode_raw_change = msgspec.json.Decoder(EventEnvelope[msgspec.Raw]).decode
