"""HPACK without a table (RFC 7541): fields that we add, and the status that we read.

A literal without indexing changes no table, so it may be appended to any header block, and a block of such literals
means the same to every decoder. `StatusReader` finds the `:status` of each block without decoding the other
fields: it skips them, and counts how many enter the table, since an entry's index is the number of later entries.
Evicted entries need not be known: nothing can refer to them.
"""

from __future__ import annotations

from hpack import HPACKDecodingError
from hpack.huffman_table import decode_huffman

_STATUS_NAME = 8
# The static table's, from index 8.
_STATUSES = (200, 204, 206, 304, 400, 404, 500)
_STATIC = 61
# Servers rarely put more than one status into the table.
_REMEMBERED = 64


def literal(name: bytes, value: bytes, *, never_indexed: bool = False) -> bytes:
    """Encode a field without indexing."""
    return (b"\x10" if never_indexed else b"\x00") + _string(name) + _string(value)


def status_field(status: int) -> bytes:
    """Encode a `:status`."""
    if status == _STATUSES[0]:
        return bytes((0x80 | _STATUS_NAME,))
    return bytes((_STATUS_NAME,)) + _string(b"%d" % status)


class StatusReader:
    """Reads the status of one direction's header blocks. It must see all of them, in order."""

    __slots__ = ("_entered", "_known")

    def __init__(self) -> None:
        self._entered = 0
        # Table entries that are a status, by the count of entries up to them.
        self._known: dict[int, int] = {}

    def read(self, block: bytes) -> int | None:
        """Return the block's status, or None. Raises ValueError for a malformed block."""
        try:
            return self._walk(block)
        except (IndexError, HPACKDecodingError) as error:
            raise ValueError(f"malformed header block: {error}") from error

    def _walk(self, block: bytes) -> int | None:
        status, at, size = None, 0, len(block)
        while at < size:
            first = block[at]
            if first & 0x80:
                index, at = _integer(block, at, 0x7F)
                found = self._status_of(index)
            elif first & 0xE0 == 0x20:
                _, at = _integer(block, at, 0x1F)
                continue
            else:
                found, at = self._literal(block, at, enters=bool(first & 0x40))
            if status is None:
                status = found
        if at > size:
            raise ValueError("a header block is truncated")
        return status

    def _literal(self, block: bytes, at: int, *, enters: bool) -> tuple[int | None, int]:
        index, at = _integer(block, at, 0x3F if enters else 0x0F)
        if index:
            is_status = self._status_of(index) is not None
        else:
            start, at, coded = _string_span(block, at)
            is_status = _is_status(block[start:at], coded=coded)
        start, at, coded = _string_span(block, at)
        status = _status_number(block[start:at], coded=coded) if is_status else None
        if enters:
            self._enter(status)
        return status, at

    def _enter(self, status: int | None) -> None:
        self._entered += 1
        if status is not None:
            self._known[self._entered] = status
            if len(self._known) > _REMEMBERED:
                del self._known[next(iter(self._known))]

    def _status_of(self, index: int) -> int | None:
        """Return the status at an index of the tables."""
        if index > _STATIC:
            return self._known.get(self._entered - (index - _STATIC - 1))
        if _STATUS_NAME <= index < _STATUS_NAME + len(_STATUSES):
            return _STATUSES[index - _STATUS_NAME]
        return None


def _integer(block: bytes, at: int, mask: int) -> tuple[int, int]:
    """Decode an integer (RFC 7541, 5.1). Returns it and where it ends."""
    value = block[at] & mask
    at += 1
    if value < mask:
        return value, at
    shift = 0
    while True:
        byte = block[at]
        at += 1
        value += (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 28:
            raise ValueError("an integer is too long")


def _string_span(block: bytes, at: int) -> tuple[int, int, bool]:
    """Return where a string starts and ends, and whether it is Huffman-coded."""
    coded = block[at] >= 0x80
    size, start = _integer(block, at, 0x7F)
    return start, start + size, coded


def _is_status(name: bytes, *, coded: bool) -> bool:
    return (decode_huffman(name) if coded else name) == b":status"


def _status_number(value: bytes, *, coded: bool) -> int:
    digits = bytes(decode_huffman(value)) if coded else value
    if len(digits) != 3 or not digits.isdigit():
        raise ValueError("a status does not have three digits")
    return int(digits)


def _string(value: bytes) -> bytes:
    """Encode a string without Huffman coding (RFC 7541, 5.1 and 5.2)."""
    size = len(value)
    if size < 127:
        return bytes((size,)) + value
    size, digits = size - 127, [127]
    while size >= 128:
        digits.append(size % 128 + 128)
        size //= 128
    return bytes((*digits, size)) + value
