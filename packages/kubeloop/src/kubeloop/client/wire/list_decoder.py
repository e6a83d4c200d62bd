"""A list decoded while it arrives, in batches of whole items.

API servers answer an initial list in one body however large. Decoding it whole blocks the loop for
as long as it takes and holds body and objects at the same time. So the body is cut between two
items whenever enough of it is there, and the part before the cut is decoded and dropped.

Where to cut is guessed, and the decoder itself proves the guess: items up to the cut, put in
brackets, are an array in well-formed JSON only if the cut lies between two items, since no proper
beginning of an object is an object. Guesses come from the first item: all items of a list begin
with the same keys. If the guesses fail, a slow scanner that understands strings and nesting finds
the cut. What is left at the end is decoded as a list of its own: the envelope's beginning, the last
items, the envelope's end. So the list's metadata may stand before the items or after.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from kubeloop.objects.list_watch import MALFORMED, NO_TYPE, DecodeError, ListEnvelope, Page

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kubeloop.objects.codec import Codec
    from kubeloop.objects.list_watch import ItemType

T = TypeVar("T")

BATCH = 256 * 1024
_GUESSES = 3

_ITEMS = re.compile(rb'"items"\s*:\s*\[')
# The start of all items of a list: their type, if it is there, and the first key after it.
_ITEM_HEAD = re.compile(rb'\[(\{(?:"(?:apiVersion|kind)":"[^"\\]*",){0,2}"[^"\\]*":\{?)')
# A string that does not end here comes out as a lone quote.
_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|["\[\]{},]', re.DOTALL)

_decode_envelope = msgspec.json.Decoder(ListEnvelope[Any]).decode


class PageDecoder(Generic[T]):
    """Takes the pieces of one list response; `finish` returns the page. Raises `DecodeError`."""

    def __init__(self, codec: Codec[T], *, batch: int = BATCH) -> None:
        self._codec = codec
        self._batch = batch
        self._threshold = batch
        self._pending: list[bytes] = []
        self._pending_size = 0
        # The envelope up to, not including, the bracket that opens the items.
        self._head: bytes | None = None
        self._of: ItemType = NO_TYPE
        self._separator: bytes | None = None
        self._items: list[T] = []

    def feed(self, data: bytes) -> None:
        """Take bytes; decodes what is complete once a batch of them is there."""
        self._pending.append(data)
        self._pending_size += len(data)
        if self._pending_size >= self._threshold:
            self._decode_batch(b"".join(self._pending))

    def finish(self) -> Page[T]:
        """Decode what is left and return the whole page."""
        rest = b"".join((self._head or b"", *self._pending))
        self._pending.clear()
        last = self._codec.decode_page(rest)
        self._items += last.items
        return Page(self._items, last.resource_version, last.continue_token, last.remaining)

    def _decode_batch(self, text: bytes) -> None:
        if self._head is None:
            text = self._take_head(text)
        cut = self._decode_to_cut(text) if self._head is not None else 0
        rest = b"[" + text[cut + 1 :] if cut else text
        self._pending = [rest]
        self._pending_size = len(rest)
        # Without progress wait for twice as much, so that one huge item is not read again and again.
        self._threshold = len(rest) + self._batch if cut else 2 * len(rest)

    def _take_head(self, text: bytes) -> bytes:
        for found in _ITEMS.finditer(text):
            start = found.end() - 1
            if (envelope := _opened_list(text[:start])) is not None:
                self._head, self._of = text[:start], envelope.item_type
                return text[start:]
        return text

    def _decode_to_cut(self, text: bytes) -> int:
        """Decode items up to a comma between two of them; return its place, 0 if absent."""
        for cut in self._guesses(text):
            try:
                self._items += self._decode(text, cut)
            except DecodeError:
                continue
            return cut
        if cut := last_top_comma(text):
            self._items += self._decode(text, cut)
        return cut

    def _decode(self, text: bytes, cut: int) -> list[T]:
        return self._codec.decode_items(text[:cut] + b"]", self._of)

    def _guesses(self, text: bytes) -> Iterator[int]:
        if self._separator is None:
            head = _ITEM_HEAD.match(text)
            self._separator = b"}," + head[1] if head else b""
        end = len(text)
        for _ in range(_GUESSES if self._separator else 0):
            end = text.rfind(self._separator, 0, end)
            if end < 0:
                return
            yield end + 1


def _opened_list(head: bytes) -> ListEnvelope[Any] | None:
    """Return the envelope that `head` begins, if what it ends with is the list's `items`."""
    try:
        envelope = _decode_envelope(head + b"[]}")
    except MALFORMED:
        return None
    return envelope if envelope.items == [] else None


def last_top_comma(text: bytes) -> int:
    """Return the place of the last comma between two elements of an unfinished array, else 0."""
    depth = last = 0
    for token in _TOKEN.finditer(text):
        match token[0]:
            case b"{" | b"[":
                depth += 1
            case b"}" | b"]":
                depth -= 1
                if depth == 0:
                    break
            case b",":
                if depth == 1:
                    last = token.start()
            case b'"':
                break
    return last
