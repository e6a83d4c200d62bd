"""What can be said of a token, and who says it."""

from __future__ import annotations

import dataclasses
import math
from typing import Protocol


@dataclasses.dataclass(frozen=True, slots=True)
class Verdict:
    """Whose token it is, or why it is nobody's (`user` is empty then).

    `expires`: when the token ends, in seconds since 1970, where that is known.
    """

    user: str
    why: str = ""
    expires: float = math.inf


class Unverifiable(Exception):
    """Nothing can be said of a token now; the text says why, and what to do about it."""


class Verifier(Protocol):
    """Knows tokens."""

    async def verify(self, token: str) -> Verdict:
        """Judge a token for our audience. Raises Unverifiable."""

    async def ready(self) -> str:
        """Find out whether tokens can be judged, and say how. Raises Unverifiable."""
