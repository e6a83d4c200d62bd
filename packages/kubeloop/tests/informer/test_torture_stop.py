"""A stop at every await point: the whole life of an informer, cancelled after each turn of the loop."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from typing import Any

import pytest
from tests.informer.support import EXACT, make_informer

from kubeloop.client.errors import Status
from kubeloop.informer import InformerStopped
from kubeloop.testing.fake_errors import api_error
from kubeloop.testing.fake_source import FakeSource
from kubeloop.testing.virtual_time import VirtualTimeLoop

CALLBACK = 0.3


class SteppedLoop(VirtualTimeLoop):
    """Calls a function at the beginning of given turns."""

    def __init__(self) -> None:
        super().__init__()
        self.turns = 0
        self.at: tuple[int, ...] = ()
        self.call: Any = None

    def _run_once(self) -> None:
        self.turns += 1
        if self.turns in self.at:
            self.call()
        super()._run_once()  # type: ignore[misc]  # asyncio's own hook; there is no public one


@dataclasses.dataclass
class Outcome:
    """What one run left behind."""

    turns: int
    waiters: list[bool] = dataclasses.field(default_factory=list)
    synced: bool = False
    took: float = 0.0
    leftovers: list[str] = dataclasses.field(default_factory=list)
    complaints: list[Any] = dataclasses.field(default_factory=list)
    open_streams: int = 0
    closes: list[int] = dataclasses.field(default_factory=list)


def make_source(*, streaming: bool) -> FakeSource[Any]:
    source = FakeSource[Any](
        latency=0.05, supports_watch_list=streaming, watch_cache=False, batch=1, version=1
    )
    for number in range(5):
        source.create(f"pod-{number}")
    source.fail_lists(api_error(500))
    source.fail_watches(api_error(429, "TooManyRequests"))
    return source


async def scenario(
    loop: SteppedLoop, outcome: Outcome, *, streaming: bool, stop_at: tuple[int, ...]
):
    """List in pages, stream, watch, fail, rest, relist, notify, join late, resync; then be stopped."""
    source = make_source(streaming=streaming)
    options = dataclasses.replace(EXACT, page_size=2, watch_list=streaming)
    informer = make_informer(source, options=options, resync=1.0, on_error=lambda _: None)

    async def slow(note):
        await asyncio.sleep(CALLBACK)

    def failing(note):
        raise ValueError("some handlers fail")

    handles = [informer.add_handler(on_event=slow), informer.add_handler(on_event=failing)]
    task = asyncio.create_task(informer.run())
    waiters = [
        asyncio.create_task(informer.wait_synced()),
        *(asyncio.create_task(handle.wait_synced()) for handle in handles),
    ]
    stopped: list[float] = []

    def stop() -> None:
        stopped.append(loop.time())
        task.cancel()

    loop.call, loop.at, loop.turns = stop, stop_at, 0
    driver = asyncio.create_task(drive(source, informer))
    if not stop_at:
        await driver
        stop()
    ended, _ = await asyncio.wait({task}, timeout=100)
    assert ended, "run() does not end"
    informer.close()  # its owner's part, where run() never began
    outcome.took = loop.time() - stopped[0]
    outcome.waiters = [await waiter for waiter in waiters]
    outcome.synced = informer.has_synced
    driver.cancel()
    await asyncio.wait({driver})
    outcome.open_streams = len(source.open_streams)
    outcome.closes = [stream.closes for stream in source.streams]


async def drive(source: FakeSource[Any], informer: Any) -> None:
    await informer.wait_synced()
    with contextlib.suppress(InformerStopped):
        late = informer.add_handler(on_event=lambda note: None)
        source.update("pod-0", n=1)
        await asyncio.sleep(3)
        source.drop_watches()
        source.create("new")
        await asyncio.sleep(1)
        await informer.remove_handler(late, drain=True)
        source.delete("pod-1")
        source.compact()
        source.send_error(Status(code=410, reason="Expired"))
        await asyncio.sleep(10)
        informer.add_handler(on_event=lambda note: None)
        await asyncio.sleep(0.5)


def run(*, streaming: bool, stop_at: tuple[int, ...]) -> Outcome:
    loop = SteppedLoop()
    outcome = Outcome(0)
    loop.set_exception_handler(lambda _loop, context: outcome.complaints.append(context))
    try:
        loop.run_until_complete(scenario(loop, outcome, streaming=streaming, stop_at=stop_at))
        outcome.turns = loop.turns
        outcome.leftovers = [task.get_name() for task in asyncio.all_tasks(loop)]
    finally:
        loop.close()
    return outcome


@pytest.mark.spec("X17", "R11", "R38", "R76", "R77", "I24")
@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("impatient", [False, True])
def test_x17_a_stop_at_every_await_point(streaming, impatient, caplog):
    caplog.set_level("CRITICAL")
    whole = run(streaming=streaming, stop_at=())
    assert whole.synced
    assert len(whole.closes) >= 3
    assert whole.turns > 150
    synced = unsynced = 0
    for turn in range(1, whole.turns):
        outcome = run(streaming=streaming, stop_at=(turn, turn + 2) if impatient else (turn,))
        # The running callback is waited for, and nothing else.
        assert outcome.took <= CALLBACK + 0.001, f"turn {turn}"
        assert outcome.leftovers == [], f"turn {turn}"
        assert outcome.complaints == [], f"turn {turn}"
        assert outcome.open_streams == 0, f"turn {turn}"
        assert set(outcome.closes) <= {1}, f"turn {turn}"
        assert outcome.waiters[0] == outcome.synced, f"turn {turn}"
        synced += outcome.synced
        unsynced += not outcome.synced
    assert min(synced, unsynced) > 5, "both sides of the sync were hit"
