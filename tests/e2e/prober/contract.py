"""What prober and app agree on. Imports next to nothing, so that apps start fast."""

from __future__ import annotations

import zlib

# One in two goes over a new connection; of each kind one in two is a POST, and one in two of those
# does not fit a segment.
BODY_SIZES = (0, 512, 0, 20_000)


def body_of(request_id: str, size: int) -> bytes:
    """Return a request's body: its own, so that a mix-up shows."""
    word = f"{request_id} ".encode()
    return (word * (size // len(word) + 1))[:size]


def answer_of(request_id: str, body: bytes) -> bytes:
    """Return what an app must answer."""
    return f"{request_id} {len(body)} {zlib.crc32(body)}\n".encode()
