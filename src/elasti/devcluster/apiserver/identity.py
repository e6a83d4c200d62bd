"""What the server itself puts into metadata: times, uids, generated names."""

from __future__ import annotations

import datetime as dt
import random
import uuid
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kubeloop.aio.clock import Clock

# The alphabet of generated names: no vowels, no 0, 1, 3, so that no word appears by chance.
_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
_NAME_LIMIT = 63
_SUFFIX = 5


class Stamps:
    """Times and identities for new objects; the clock and the randomness are given."""

    def __init__(self, *, clock: Clock, randomness: random.Random | None = None) -> None:
        self._clock = clock
        self._random = randomness or random.SystemRandom()

    def moment(self) -> dt.datetime:
        """Return the present."""
        return self._clock.now()

    def now(self, *, ahead: float = 0.0) -> str:
        """Return the present, or some seconds later, as metadata writes it."""
        return (self._clock.now() + dt.timedelta(seconds=ahead)).strftime("%Y-%m-%dT%H:%M:%SZ")

    def uid(self) -> str:
        """Return a new uid."""
        return str(uuid.UUID(int=self._random.getrandbits(128), version=4))

    def name(self, prefix: str) -> str:
        """Return a name made of a prefix and five random characters."""
        suffix = "".join(self._random.choices(_ALPHABET, k=_SUFFIX))
        return prefix[: _NAME_LIMIT - _SUFFIX] + suffix
