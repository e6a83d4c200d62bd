"""Playing a scenario of the table on a stage: installation, play, verdict, result."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

import msgspec

from tests.e2e import evidence, picture, report
from tests.e2e.account import Account, merged
from tests.e2e.ground import Unsupported
from tests.e2e.play import Play
from tests.e2e.report import Result
from tests.e2e.settings import Settings
from tests.e2e.stage import Stage
from tests.e2e.table import Scenario


class Lost(AssertionError):
    """Requests were lost, or none in the run that must lose."""


async def run(stage: Stage, scenario: Scenario, settings: Settings, directory: Path) -> None:
    """Play a scenario, keep its result, and raise AssertionError where it did not go well.

    A run in which the prober lagged says nothing; it is played again, once.
    """
    result = await _play(stage, scenario, settings, directory / "first")
    if result.verdict == "invalid":
        result = await _play(stage, scenario, settings, directory / "second")
    if result.verdict == "passed":
        return
    if result.verdict == "invalid":
        raise Lost(
            f"twice the prober was {result.lag_p99:.1f} s late, or could not send ({result.lost}): the"
            " machine is too busy, and the run says nothing"
        )
    raise Lost(f"{result.title}: {result.verdict}: {result.lost}\n" + "\n".join(result.examples))


def not_here(stage: Stage, scenario: Scenario, settings: Settings, why: Unsupported) -> None:
    """Let the report say that a stage cannot play a scenario, and why."""
    report.keep(settings.output, blank_result(stage, scenario, settings, f"not here: {why}"))


async def _play(stage: Stage, scenario: Scenario, settings: Settings, folder: Path) -> Result:
    blank = blank_result(stage, scenario, settings, "failed: it did not come to its end")
    try:
        if stage.installed != scenario.installation:
            await stage.install(scenario.installation)
        async with Play(stage, settings.length, _made(folder)) as play:
            result = await _played(play, scenario, blank, settings)
    except BaseException:
        # Whatever it did to the installation was not undone.
        stage.installed = None
        report.keep(settings.output, blank)
        raise
    report.keep(settings.output, result)
    return result


async def _played(play: Play, scenario: Scenario, blank: Result, settings: Settings) -> Result:
    began = time.monotonic()
    result = blank
    try:
        await scenario.play(play)
        account = await play.account()
        if scenario.picture:
            path = _made(settings.output) / report.PICTURE
            picture.write(path, play.records, play.observer.events)
        result = _result(blank, play, account, time.monotonic() - began)
    finally:
        if result.verdict != "passed":
            name = report.file_name(result)
            evidence.keep(settings.output, name, await evidence.gather(play.stage, play))
    return result


def blank_result(stage: Stage, scenario: Scenario, settings: Settings, verdict: str) -> Result:
    """Return the result of a scenario that has no figures: it failed, or cannot be played here."""
    return Result(
        stage=stage.name,
        scenario=scenario.name,
        title=scenario.title,
        length=settings.length.name,
        loses=scenario.loses,
        verdict=verdict,
    )


def _result(blank: Result, play: Play, account: Account, took: float) -> Result:
    figures = {field.name: getattr(account, field.name) for field in dataclasses.fields(account)}
    return msgspec.structs.replace(
        blank,
        **figures,
        apart_why=merged(play.windows),
        took=took,
        notes=play.notes,
        verdict=_verdict(account, loses=blank.loses),
    )


def _verdict(account: Account, *, loses: bool) -> str:
    if loses:
        return "passed" if account.lost_in_all else "failed: it must lose, and lost nothing"
    if not account.is_valid:
        return "invalid"
    return "failed" if account.lost_in_all else "passed"


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder
