"""Resource quantities: `100m`, `1.5Gi`, `1e3`; exact, comparable, with Kubernetes' canonical text.

The amount is a whole number of nanos, the finest unit that Kubernetes knows; what is finer is
rounded away from zero, so that a little never becomes nothing. Two quantities are equal when their
amounts are, whatever their notation.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import re
from collections.abc import Mapping
from fractions import Fraction

_NANO = 10**9
_QUANTITY = re.compile(
    r"([+-]?)([0-9]+(?:\.[0-9]*)?|\.[0-9]+)"
    r"(?:([numkMGTPE]|[KMGTPE]i)|[eE]([+-]?[0-9]{1,3}))?\Z"
)
_DECIMAL: Mapping[str, int] = {
    "n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18,
}  # fmt: skip
_BINARY: Mapping[str, int] = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}
_DECIMAL_SUFFIX = {power: suffix for suffix, power in _DECIMAL.items()}
_BINARY_SUFFIX = {power: suffix for suffix, power in _BINARY.items()}
_LARGEST_BINARY = 2**63 - 1


class Notation(enum.Enum):
    """How a quantity was written, which is how its canonical text is written."""

    DECIMAL = "1500m"
    BINARY = "1536Mi"
    EXPONENT = "15e2"


@functools.total_ordering
@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Quantity:
    """An exact amount. `str()` is the canonical text, `int()` rounds away from zero."""

    nanos: int
    notation: Notation = Notation.DECIMAL

    @classmethod
    def parse(cls, text: str | float) -> Quantity:
        """Read a quantity; JSON numbers are taken too. Raises ValueError that says what is legal."""
        match = _QUANTITY.match(str(text))
        if match is None:
            raise ValueError(
                f"quantity {text!r} is not a number with an optional suffix: n u m k M G T P E,"
                " Ki Mi Gi Ti Pi Ei, or an exponent as in 1e3"
            )
        sign, digits, suffix, exponent = match.groups()
        notation, factor = _scale(suffix or "", exponent)
        amount = _round_up(Fraction(digits) * factor * _NANO)
        if notation is Notation.BINARY:
            amount = min(amount, _LARGEST_BINARY * _NANO)
        return cls(-amount if sign == "-" else amount, notation)

    def __str__(self) -> str:
        whole, rest = divmod(self.nanos, _NANO)
        if self.notation is Notation.BINARY and not rest and abs(whole) >= 1024:
            return _binary_text(whole)
        return _decimal_text(self.nanos, exponent=self.notation is Notation.EXPONENT)

    def __int__(self) -> int:
        whole = _round_up(Fraction(abs(self.nanos), _NANO))
        return whole if self.nanos >= 0 else -whole

    def __float__(self) -> float:
        return self.nanos / _NANO

    def __bool__(self) -> bool:
        return self.nanos != 0

    def __eq__(self, other: object) -> bool:
        return self.nanos == other.nanos if isinstance(other, Quantity) else NotImplemented

    def __lt__(self, other: Quantity) -> bool:
        return self.nanos < other.nanos

    def __hash__(self) -> int:
        return hash(self.nanos)

    def __add__(self, other: Quantity) -> Quantity:
        return Quantity(self.nanos + other.nanos, self.notation)

    def __sub__(self, other: Quantity) -> Quantity:
        return Quantity(self.nanos - other.nanos, self.notation)

    def __neg__(self) -> Quantity:
        return Quantity(-self.nanos, self.notation)


def _scale(suffix: str, exponent: str | None) -> tuple[Notation, Fraction]:
    if exponent is not None:
        return Notation.EXPONENT, Fraction(10) ** int(exponent)
    if suffix in _BINARY:
        return Notation.BINARY, Fraction(1024 ** _BINARY[suffix])
    return Notation.DECIMAL, Fraction(10) ** _DECIMAL[suffix]


def _round_up(amount: Fraction) -> int:
    return -(-amount.numerator // amount.denominator)


def _binary_text(whole: int) -> str:
    power = 0
    while power < max(_BINARY_SUFFIX) and whole % 1024 == 0:
        whole, power = whole // 1024, power + 1
    return f"{whole}{_BINARY_SUFFIX.get(power, '')}"


def _decimal_text(nanos: int, *, exponent: bool) -> str:
    if not nanos:
        return "0"
    power, limit = -9, 999 if exponent else max(_DECIMAL_SUFFIX)
    while power < limit and nanos % 1000 == 0:
        nanos, power = nanos // 1000, power + 3
    if exponent:
        return f"{nanos}e{power}" if power else str(nanos)
    return f"{nanos}{_DECIMAL_SUFFIX[power]}"
