"""What released capacity costs, at the prices of a file or of OpenCost. Pure."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

HOUR, GIB = 3600.0, float(2**30)
_RATES = ("cpuCoreHour", "memoryGiBHour")
_LONGEST_CURRENCY = 8
_IDLE = "__idle__"


class Rates(NamedTuple):
    """The price of a core for an hour, and of a GiB for an hour."""

    cpu_core_hour: float
    memory_gib_hour: float


@dataclasses.dataclass(frozen=True, slots=True)
class Prices:
    """Rates, those of namespaces if they are known; `idle`: what unused capacity of the same time cost."""

    rates: Rates
    currency: str = ""
    namespaces: Mapping[str, Rates] = dataclasses.field(default_factory=dict)
    idle: float | None = None

    def cost(self, namespace: str, core_hours: float, gib_hours: float) -> float:
        """Return the cost of released capacity."""
        rates = self.namespaces.get(namespace, self.rates)
        return core_hours * rates.cpu_core_hour + gib_hours * rates.memory_gib_hour


def prices_of(document: Any) -> Prices:
    """Read the document of a prices file. Raises ValueError with each field, its value and a remedy."""
    document = document if isinstance(document, dict) else {}
    wrong = [
        f"{name}: {_shown(document, name)} is not a price; write a number of 0 or more, such as 0.03"
        for name in _RATES
        if not _is_price(document.get(name))
    ]
    currency = document.get("currency")
    if not isinstance(currency, str) or not 0 < len(currency.strip()) <= _LONGEST_CURRENCY:
        wrong.append(
            f"currency: {_shown(document, 'currency')} is not a currency; write one such as EUR"
        )
    wrong += [
        f"{name}: the field is unknown; remove it, or write one of {', '.join(_RATES)}, currency"
        for name in document
        if name not in (*_RATES, "currency")
    ]
    if wrong:
        raise ValueError("\n".join(wrong))
    return Prices(Rates(*(float(document[name]) for name in _RATES)), str(currency).strip())


def _is_price(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and value >= 0 and math.isfinite(value)


def _shown(document: Mapping[str, Any], name: str) -> str:
    return repr(document[name])[:40] if name in document else "(nothing)"


class Allocation(msgspec.Struct, rename="camel", gc=False):
    """The part of one of OpenCost's allocations that has prices in it."""

    cpu_cost: float = 0.0
    cpu_core_hours: float = 0.0
    ram_cost: float = 0.0
    ram_byte_hours: float = 0.0

    def __add__(self, other: Allocation) -> Allocation:
        """Return the sum of two: of a namespace in two steps of time, or of two namespaces."""
        both = zip(msgspec.structs.astuple(self), msgspec.structs.astuple(other), strict=True)
        return Allocation(*map(sum, both))

    def rates(self) -> Rates | None:
        """Return what an hour cost; None if that cannot be known from it."""
        figures = msgspec.structs.astuple(self)
        if not all(map(_is_price, figures)) or not (self.cpu_core_hours and self.ram_byte_hours):
            return None
        return Rates(self.cpu_cost / self.cpu_core_hours, self.ram_cost * GIB / self.ram_byte_hours)


class AllocationAnswer(msgspec.Struct, gc=False):
    """OpenCost's answer: for each step of time, allocations by namespace."""

    data: tuple[dict[str, Allocation] | None, ...] | None = None


def opencost_prices(body: bytes) -> Prices:
    """Read OpenCost's answer for namespaces, with idle. Raises ValueError with a sentence."""
    try:
        answer = msgspec.json.decode(body, type=AllocationAnswer)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise ValueError("its answer is not a list of allocations") from None
    found: dict[str, Allocation] = {}
    for step in answer.data or ():
        for name, one in (step or {}).items():
            found[name] = found.get(name, Allocation()) + one
    idle = [one.cpu_cost + one.ram_cost for name, one in found.items() if name.endswith(_IDLE)]
    priced = {
        name: (one, rates)
        for name, one in found.items()
        if not name.endswith("__") and (rates := one.rates()) is not None
    }
    # A namespace whose targets all slept has no cost of its own: it gets the average of the others.
    average = sum((one for one, _ in priced.values()), Allocation()).rates()
    if average is None:
        raise ValueError("its answer has no namespace with a cost of CPU and memory in this time")
    known = sum(idle) if idle and math.isfinite(sum(idle)) else None
    return Prices(average, "", {name: rates for name, (_, rates) in priced.items()}, known)
