"""How long scenarios are: short for a job that must end soon, full for the figures.

`ELASTI_E2E=full make e2e` loads every scenario for a minute and more; without it each is shortened, and
the report says which length it shows. `ELASTI_E2E_OUTPUT` is where the report goes (`build/e2e`).
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# `tests` is one namespace over four directories: a program of the tests needs them all.
PYTHONPATH = os.pathsep.join(
    (str(ROOT), *(str(ROOT / "packages" / name) for name in ("kubeloop", "devkube", "elasti")))
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Length:
    """The measures of one run; times in seconds."""

    name: str
    rate: float
    load: float
    """How long traffic flows in a scenario, at least."""
    cycles: int
    moments: int
    """How many moments around the cooldown are tried."""
    outage: float
    held: int
    services: int


SHORT = Length(
    name="short",
    rate=200,
    load=12,
    cycles=3,
    moments=4,
    outage=10,
    held=2_500,
    services=100,
)
FULL = Length(
    name="full",
    rate=200,
    load=60,
    cycles=20,
    moments=20,
    outage=30,
    held=10_000,
    services=100,
)


@dataclasses.dataclass(frozen=True, slots=True)
class Settings:
    """What the environment says."""

    length: Length
    output: Path

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> Settings:
        """Read the variables. Raises ValueError naming the one that cannot be used."""
        name = environ.get("ELASTI_E2E") or SHORT.name
        lengths = {length.name: length for length in (SHORT, FULL)}
        if name not in lengths:
            raise ValueError(f"ELASTI_E2E: {name!r} is neither 'short' nor 'full'")
        return cls(lengths[name], Path(environ.get("ELASTI_E2E_OUTPUT") or ROOT / "build" / "e2e"))


def current() -> Settings:
    """Return the settings of this process."""
    return Settings.from_environ(os.environ)
