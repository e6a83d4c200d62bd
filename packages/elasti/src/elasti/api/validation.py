"""Validation of what a schema cannot check, with messages for people. Pure.

An object that passed the API server's schema may still ask for the impossible: a cron expression
that never fires, an unknown time zone, a pattern that does not compile. `problems()` finds all of
it at once; the operator puts it into a condition and goes on.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
from collections.abc import Iterator

from elasti.api.parsing import parse_duration
from elasti.api.triggers.registry import read_metadata, trigger_type
from elasti.api.types import (
    AUTOSCALER_KINDS,
    ENGAGE_SETTLE_REMEDY,
    LONGEST_ENGAGE_SETTLE,
    ElastiService,
    ElastiServiceSpec,
    EnabledPeriod,
    IgnoreRule,
    ProbeResponse,
)
from elasti.safe_regex import ExpressionCompiler
from kubeloop.objects.quantities import Quantity

# Any moment will do: the expression is only parsed.
_SOME_TIME = dt.datetime(2030, 1, 1, tzinfo=dt.UTC)
_CRON_FIELDS = 5
_LONGEST_PERIOD = 366 * 24 * 3600.0
LEAST_CPU = Quantity.parse("1m")
"""What a dozing container requests at least."""


@dataclasses.dataclass(frozen=True, slots=True)
class SpecProblem:
    """One field that cannot be used, and what to write instead."""

    field: str
    message: str

    def __str__(self) -> str:
        return f"{self.field}: {self.message}"


def problems_of(service: ElastiService) -> list[SpecProblem]:
    """Return everything that is wrong with an object, also with one that could not be read whole."""
    if service.unreadable:
        field, _, message = service.unreadable.partition(": ")
        return [SpecProblem(field, message)]
    return problems(service.spec)


def problems(spec: ElastiServiceSpec) -> list[SpecProblem]:
    """Return everything that is wrong with a spec, in the order of its fields."""
    return [
        *_trigger_problems(spec),
        *_autoscaler_problems(spec),
        *(_period_problems(spec.enabled_period) if spec.enabled_period else ()),
        *_probe_problems(spec.probe_response),
        *_ignore_problems(spec.wake.ignore.rules),
        *_doze_problems(spec.sleep.doze.cpu),
        *_handover_problems(spec.handover.engage_settle),
    ]


def _trigger_problems(spec: ElastiServiceSpec) -> Iterator[SpecProblem]:
    for index, trigger in enumerate(spec.triggers):
        field = f"spec.triggers[{index}].type"
        try:
            trigger_type(trigger.type)
            field = f"spec.triggers[{index}].metadata"
            read_metadata(trigger.type, trigger.metadata)
        except ValueError as error:
            yield SpecProblem(field, str(error))


def _autoscaler_problems(spec: ElastiServiceSpec) -> Iterator[SpecProblem]:
    if spec.autoscaler is not None and spec.autoscaler.type not in AUTOSCALER_KINDS:
        known = ", ".join(sorted(AUTOSCALER_KINDS))
        message = f"{spec.autoscaler.type!r} is not an autoscaler; write one of {known}"
        yield SpecProblem("spec.autoscaler.type", message)


def _period_problems(period: EnabledPeriod) -> Iterator[SpecProblem]:
    import zoneinfo  # noqa: PLC0415 -- with cronsim 1.5 MiB, and most ElastiServices have no period

    if complaint := _schedule_complaint(period.schedule):
        yield SpecProblem("spec.enabledPeriod.schedule", complaint)
    if complaint := _duration_complaint(period.duration):
        yield SpecProblem("spec.enabledPeriod.duration", complaint)
    try:
        zoneinfo.ZoneInfo(period.timezone)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        yield SpecProblem(
            "spec.enabledPeriod.timezone",
            f"{period.timezone!r} is not a known time zone; write an IANA name like 'Europe/Berlin'",
        )


def _duration_complaint(text: str) -> str | None:
    try:
        seconds = parse_duration(text)
    except ValueError as error:
        return str(error)
    if seconds <= 0:
        return f"{text!r} must be above zero"
    if seconds > _LONGEST_PERIOD:
        return f"{text!r} is too long; write at most 8784h, which is a year"
    return None


def _schedule_complaint(schedule: str) -> str | None:
    from cronsim import CronSim, CronSimError  # noqa: PLC0415 -- as above

    if len(schedule.split()) != _CRON_FIELDS:
        return f"{schedule!r} must have five fields, like '0 9 * * 1-5' (minute hour day month weekday)"
    try:
        CronSim(schedule, _SOME_TIME)
    except CronSimError as error:
        return f"{schedule!r} is not a cron expression ({error}); write it like '0 9 * * 1-5'"
    return None


def _probe_problems(rules: tuple[ProbeResponse, ...]) -> Iterator[SpecProblem]:
    expressions = ExpressionCompiler()
    for index, rule in enumerate(rules):
        where = f"spec.probeResponse[{index}]"
        patterns = [(f"{where}.path", rule.path.type, rule.path.value)]
        patterns += [(f"{where}.headers", item.type, item.value) for item in rule.headers]
        patterns += [(f"{where}.queryParams", item.type, item.value) for item in rule.query_params]
        for field, kind, value in patterns:
            if kind != "RegularExpression":
                continue
            try:
                expressions.compile(value)
            except ValueError as error:
                yield SpecProblem(f"{field}.value", str(error))


def _ignore_problems(rules: tuple[IgnoreRule, ...]) -> Iterator[SpecProblem]:
    expressions = ExpressionCompiler()
    for index, rule in enumerate(rules):
        for place, expression in enumerate(rule.user_agents):
            try:
                expressions.compile(expression)
            except ValueError as error:
                yield SpecProblem(
                    f"spec.wake.ignore.rules[{index}].userAgents[{place}]", str(error)
                )


def _doze_problems(cpu: str) -> Iterator[SpecProblem]:
    with contextlib.suppress(ValueError):
        if Quantity.parse(cpu) >= LEAST_CPU:
            return
    message = f"{cpu!r} is not a CPU request of at least {LEAST_CPU}; write one such as 1m"
    yield SpecProblem("spec.sleep.doze.cpu", message)


def _handover_problems(settle: int | str) -> Iterator[SpecProblem]:
    if settle != "Auto" and not (isinstance(settle, int) and 1 <= settle <= LONGEST_ENGAGE_SETTLE):
        message = f"{settle!r} is not a settle; {ENGAGE_SETTLE_REMEDY}"
        yield SpecProblem("spec.handover.engageSettle", message)
