"""Playing a scenario of the table on an environment: installation, play, verdict, result."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

import msgspec

from tests.e2e import evidence, picture, report
from tests.e2e.account import Account, merged
from tests.e2e.environment import Environment
from tests.e2e.report import Result
from tests.e2e.settings import Settings
from tests.e2e.table import Scenario
from tests.e2e.testbed import Unsupported
from tests.e2e.trial import Trial
from tests.history import events
from tests.history.check import check


class Lost(AssertionError):
    """Requests were lost, or none in the run that must lose."""


async def run(
    environment: Environment,
    scenario: Scenario,
    settings: Settings,
    directory: Path,
    *,
    kind: type[Trial] = Trial,
) -> None:
    """Trial a scenario, keep its result, and raise AssertionError where it did not go well.

    A run in which the prober lagged says nothing; it is played again, once.
    """
    result = await _trial(environment, scenario, settings, directory / "first", kind)
    if result.verdict == "invalid":
        result = await _trial(environment, scenario, settings, directory / "second", kind)
    if result.verdict == "passed":
        return
    if result.verdict == "invalid":
        raise Lost(
            f"twice the prober was {result.lag_p99:.1f} s late, or could not send ({result.lost}): the"
            " machine is too busy, and the run says nothing"
        )
    raise Lost(f"{result.title}: {result.verdict}: {result.lost}\n" + "\n".join(result.examples))


def not_here(
    environment: Environment, scenario: Scenario, settings: Settings, why: Unsupported
) -> None:
    """Let the report say that an environment cannot play a scenario, and why."""
    report.keep(settings.output, blank_result(environment, scenario, settings, f"not here: {why}"))


async def _trial(
    environment: Environment,
    scenario: Scenario,
    settings: Settings,
    folder: Path,
    kind: type[Trial],
) -> Result:
    blank = blank_result(environment, scenario, settings, "failed: it did not come to its end")
    try:
        if environment.installed != scenario.installation:
            await environment.install(scenario.installation)
        async with kind(environment, settings.length, _made(folder)) as trial:
            result = await _played(trial, scenario, blank, settings)
    except BaseException:
        # Whatever it did to the installation was not undone.
        environment.installed = None
        report.keep(settings.output, blank)
        raise
    report.keep(settings.output, result)
    return result


async def _played(trial: Trial, scenario: Scenario, blank: Result, settings: Settings) -> Result:
    began = time.monotonic()
    result = blank
    try:
        await scenario.trial(trial)
        account = await trial.account()
        if scenario.picture:
            path = _made(settings.output) / report.PICTURE
            picture.write(path, trial.records, trial.observer.events)
        events.write(
            settings.output / "histories" / f"{report.file_name(blank)}.jsonl", trial.history
        )
        result = _result(blank, trial, account, time.monotonic() - began)
    finally:
        if result.verdict != "passed":
            name = report.file_name(result)
            evidence.keep(settings.output, name, await evidence.gather(trial.environment, trial))
    return result


def blank_result(
    environment: Environment, scenario: Scenario, settings: Settings, verdict: str
) -> Result:
    """Return the result of a scenario that has no figures: it failed, or cannot be played here."""
    return Result(
        environment=environment.name,
        scenario=scenario.name,
        title=scenario.title,
        length=settings.length.name,
        loses=scenario.loses,
        verdict=verdict,
    )


def _result(blank: Result, trial: Trial, account: Account, took: float) -> Result:
    figures = {field.name: getattr(account, field.name) for field in dataclasses.fields(account)}
    return msgspec.structs.replace(
        blank,
        **figures,
        apart_why=merged(trial.windows),
        took=took,
        notes=trial.notes,
        verdict=_verdict(account, trial, loses=blank.loses),
    )


def _verdict(account: Account, trial: Trial, *, loses: bool) -> str:
    if not (account.sent or trial.asked_by_others):
        return "failed: it sent nothing"
    history = trial.history
    if loses:
        seen = account.lost_in_all and check(history)
        return "passed" if seen else "failed: it must lose, and the books and rules show nothing"
    if not account.is_valid:
        return "invalid"
    if account.lost_in_all:
        return "failed"
    broken = check(history)
    return f"failed: {broken[0].rule}: {broken[0].what}" if broken else "passed"


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder
