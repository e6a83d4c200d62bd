"""Cases by chance from a corpus: the same seed gives the same cases, and a case that fails is kept.

A mutation loop rather than coverage: the grammars are small, the seeds hold their every turn, and a minute is
some ten thousand cases.
"""

from __future__ import annotations

import hashlib
import random
import time
from collections.abc import Callable
from pathlib import Path

_LONGEST = 4096
_SPICE = (
    b"\r\n", b"\n", b"\r", b"\0", b" ", b"\t", b":", b";", b",", b"0", b"5", b"ffffffff", b"-1", b"\xff",
    b"\x80", b"\x7f", b"\x3f\xe1\x1f", b"{", b"}", b'"', b"&a", b"*a", b"!!int", b"%41", b"chunked",
    b"Content-Length: 3\r\n", b"Transfer-Encoding: chunked\r\n", b"Host: b\r\n",
    b"GET /smuggled HTTP/1.1\r\nHost: s\r\n\r\n",
)  # fmt: skip


class Finding(AssertionError):
    """A case that failed; the message says where it is kept and how to play it again."""


class Mutator:
    """Makes cases from a corpus."""

    def __init__(self, corpus: list[bytes], seed: int) -> None:
        assert corpus
        self._corpus = corpus
        self._rng = random.Random(seed)

    def next(self) -> bytes:
        """Return another case."""
        case = bytearray(self._rng.choice(self._corpus))
        for _ in range(self._rng.choice((0, 1, 1, 2, 3, 5))):
            self._change(case)
        case[:1] = bytes([self._rng.randrange(256)])
        return bytes(case[:_LONGEST])

    def _change(self, case: bytearray) -> None:
        rng = self._rng
        at = rng.randrange(1, len(case) + 1) if case else 0
        end = min(len(case), at + rng.choice((1, 1, 2, 4, 9, 32)))
        match rng.randrange(6):
            case 0:
                case[at:at] = rng.choice(_SPICE)
            case 1:
                case[at:end] = rng.choice(_SPICE)
            case 2:
                del case[at:end]
            case 3:
                case[at:at] = case[at:end] * rng.choice((1, 2, 20))
            case 4:
                other = rng.choice(self._corpus)[1:]
                case[at:at] = other[rng.randrange(len(other) + 1) :]
            case _ if at < len(case):
                case[at] ^= 1 << rng.randrange(8)
            case _:
                case += rng.randbytes(4)


def fuzz(
    name: str, target: Callable[[bytes], None], *, folder: Path, seed: int, seconds: float
) -> int:
    """Play cases for some seconds; returns how many. Raises Finding for the first that fails."""
    corpus = [path.read_bytes() for path in sorted((folder / name).iterdir())]
    mutator, count, end = Mutator(corpus, seed), 0, time.monotonic() + seconds
    while time.monotonic() < end:
        case, count = mutator.next(), count + 1
        try:
            target(case)
        except Exception as error:
            kept = folder / name / f"found-{hashlib.sha256(case).hexdigest()[:12]}"
            kept.write_bytes(case)
            raise Finding(
                f"{name}: case {count} of seed {seed} failed: {error!r}. It is kept as {kept}; play it"
                f" again with: pytest tests/fuzz -k {kept.name}"
            ) from error
    return count
