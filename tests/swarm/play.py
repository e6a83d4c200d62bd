"""Plays seeds, judges them, and shrinks what fails."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import logging
import sys
import warnings
from collections.abc import Iterator, Sequence

from tests.history.check import check
from tests.swarm.books import Books
from tests.swarm.drawing import Features, draw, features
from tests.swarm.faults import DISTURBS_NOT, HINDERS_NOT, KINDS, Fault
from tests.swarm.loop import Stuck, SwarmLoop, run
from tests.swarm.programs import in_memory
from tests.swarm.world import World

SECONDS = 100.0
# So many objects more than at the last collection: a run leaves about a tenth of it.
_GARBAGE = 200_000


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a run showed."""

    seed: int
    faults: tuple[Fault, ...]
    problems: tuple[str, ...]
    trace: tuple[str, ...]
    digest: str
    requests: int
    turns: int


def play(seed: int, faults: Sequence[Fault] | None = None, like: Features | None = None) -> Outcome:
    """Play a seed, with its own faults or with some of them."""
    with no_cleanup():
        return _play(seed, faults, like)


@contextlib.contextmanager
def no_cleanup() -> Iterator[None]:
    """Collect nothing while a run goes on: a coroutine of a killed program does its cleanup when it is collected.

    Whoever plays many seeds does so within it, too: then the collector runs after several of them.
    """
    if not gc.isenabled():
        yield
        if gc.get_count()[0] > _GARBAGE:
            gc.collect()
        return
    told, sys.unraisablehook = sys.unraisablehook, lambda _: None
    logging.disable(logging.CRITICAL)
    gc.disable()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # of coroutines that were never awaited
            yield
            gc.collect()
    finally:
        gc.enable()
        logging.disable(logging.NOTSET)
        sys.unraisablehook = told


def _play(seed: int, faults: Sequence[Fault] | None, like: Features | None) -> Outcome:
    like = like or features(seed)
    chosen = draw(seed, SECONDS) if faults is None else list(faults)
    books, worlds, errors = Books(), [], list[str]()

    async def main(loop: SwarmLoop) -> None:
        loop.set_exception_handler(lambda _loop, context: errors.append(_told(context)))
        with in_memory(seed, loop, books, like.scrape):
            world = World(loop, books, like)
            worlds.append(world)
            await world.play(chosen, SECONDS, lambda w, fault: _apply(w, fault))

    def _apply(world: World, fault: Fault) -> None:
        if not world.faults_over:
            books.say(world.loop.now, f"fault: {fault}")
            KINDS[fault.kind](world, fault)
            world.note_fault(
                hinders=fault.kind not in HINDERS_NOT, disturbs=fault.kind not in DISTURBS_NOT
            )
            world.moment("a fault", "")

    turns = 0
    try:
        turns = run(seed, main).turns
    except Stuck as error:
        errors.append(str(error))
    world = worlds[0]
    problems = [f"{one.at:.2f} {one.rule}: {one.what}" for one in check(books.events)]
    problems += world.programs.crashes + world.problems + errors
    requests = sum('"event":"call"' in line for line in books.trace)
    return Outcome(
        seed,
        tuple(chosen),
        tuple(problems),
        tuple(books.trace),
        books.digest(),
        requests,
        turns,
    )


def _told(context: dict[str, object]) -> str:
    error = context.get("exception")
    return f"{context.get('message')}: {type(error).__name__}: {error}"


def shrink(outcome: Outcome) -> Outcome:
    """Return a failure of the same seed with as few of its faults as still fail."""
    faults = list(outcome.faults)
    index = 0
    while index < len(faults):
        fewer = faults[:index] + faults[index + 1 :]
        again = play(outcome.seed, fewer)
        if again.problems:
            faults, outcome = fewer, again
        else:
            index += 1
    return outcome
