"""Health checks, aggregated under one name: what `/healthz` and `/readyz` answer.

A check is a function, plain or `async`, that raises when something is wrong. The reasons go to the
log; the answer says only which checks failed, because anybody may read it.
"""

from __future__ import annotations

import dataclasses
import inspect
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

Check: TypeAlias = Callable[[], Awaitable[object] | object]

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class HealthAnswer:
    """The outcome, and the text that goes over the wire."""

    ok: bool
    text: str


class HealthChecks:
    """Named checks. Without any, the answer is that of `ping`: whoever answers, lives."""

    def __init__(self, name: str, checks: Mapping[str, Check] | None = None) -> None:
        self._name = name
        self._checks: dict[str, Check] = {}
        for check_name, check in (checks or {}).items():
            self.add(check_name, check)

    def add(self, name: str, check: Check) -> None:
        """Add a check. Raises ValueError where the name is taken or would not do in a path."""
        if not name or "/" in name:
            raise ValueError(f"check {name!r}: the name must not be empty nor contain '/'")
        if name in self._checks:
            raise ValueError(f"check {name!r} is there already")
        self._checks[name] = check

    async def run(self, *, exclude: Collection[str] = (), verbose: bool = False) -> HealthAnswer:
        """Run all checks but the excluded ones; a failure is always told check by check."""
        lines, ok = [], True
        for name, check in sorted(self._present().items()):
            if name in exclude:
                lines.append(f"[+]{name} excluded: ok")
                continue
            passed = await self._passes(name, check)
            ok = ok and passed
            lines.append(f"[+]{name} ok" if passed else f"[-]{name} failed: reason withheld")
        lines += _complaint(set(exclude) - self._present().keys())
        lines.append(f"{self._name} check {'passed' if ok else 'failed'}")
        return HealthAnswer(ok, "\n".join(lines) + "\n" if verbose or not ok else "ok")

    async def run_one(self, name: str) -> HealthAnswer | None:
        """Run a single check; None where there is none of that name."""
        check = self._present().get(name)
        if check is None:
            return None
        ok = await self._passes(name, check)
        return HealthAnswer(ok, "ok" if ok else f"{name} failed: reason withheld\n")

    def _present(self) -> Mapping[str, Check]:
        return self._checks or {"ping": _ping}

    async def _passes(self, name: str, check: Check) -> bool:
        try:
            result = check()
            if inspect.isawaitable(result):
                await result
        except Exception as error:  # noqa: BLE001 -- whatever it raises, that is how a check fails
            # Probes come every few seconds, and not to be ready is no fault: one line is enough.
            _log.warning(
                "%s check %s failed: %s", self._name, name, str(error) or type(error).__name__
            )
            return False
        return True


def _ping() -> None:
    """Whoever can run this lives."""


def _complaint(unknown: set[str]) -> list[str]:
    if not unknown:
        return []
    names = ", ".join(f'"{name}"' for name in sorted(unknown))
    return [f"warn: some health checks cannot be excluded: no matches for {names}"]
