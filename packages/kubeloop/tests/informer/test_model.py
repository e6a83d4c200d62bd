"""Random writers and faults against the fake server: at rest, store and handlers agree with the server."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.informer.support import EXACT, Recorder, make_informer

from kubeloop.client.errors import Status, TransportError
from kubeloop.informer import Added, Updated
from kubeloop.objects.meta import DICT_ACCESS
from kubeloop.testing.fake_errors import api_error, gone
from kubeloop.testing.fake_source import FakeSource
from kubeloop.testing.virtual_time import VirtualTimeLoop

NAMES = "abcdefgh"

servers = st.fixed_dictionaries(
    {
        "supports_watch_list": st.booleans(),
        "watch_cache": st.booleans(),
        "gone_as_event": st.booleans(),
        "bookmark_every": st.sampled_from([0.0, 5.0, 60.0]),
        "latency": st.sampled_from([0.0, 0.05]),
        "batch": st.sampled_from([0, 1, 3]),
    }
)
behaviours = st.fixed_dictionaries(
    {
        "page_size": st.sampled_from([0, 1, 3]),
        "resync": st.sampled_from([0.0, 2.0]),
        "label_selector": st.sampled_from(["", "app=web"]),
        "notify_unchanged": st.booleans(),
    }
)
names = st.sampled_from(NAMES)
steps = st.one_of(
    st.tuples(st.just("create"), names, st.booleans()),
    st.tuples(st.just("update"), names, st.booleans()),
    st.tuples(st.just("delete"), names),
    st.tuples(st.just("recreate"), names),
    st.tuples(st.just("wait"), st.sampled_from([0.0, 0.01, 0.3, 1.1, 7.0, 40.0, 400.0])),
    st.tuples(st.just("drop"), st.booleans()),
    st.tuples(st.just("break"), st.booleans()),
    st.tuples(st.just("error"), st.sampled_from([410, 429, 500, 503])),
    st.tuples(st.just("compact")),
    st.tuples(st.just("refuse"), st.sampled_from([0.5, 5.0])),
    st.tuples(st.just("fail list"), st.sampled_from([410, 429, 500])),
    st.tuples(st.just("fail watch"), st.sampled_from([410, 429, 500])),
    st.tuples(st.just("repeat")),
    st.tuples(st.just("stall")),
    st.tuples(st.just("expire tokens")),
    st.tuples(st.just("restore"), st.integers(1, 6)),
    st.tuples(st.just("join")),
    st.tuples(st.just("leave"), st.booleans()),
)


class Simulation:
    """A server, an informer and its handlers, and the steps that happen to them."""

    def __init__(self, server: dict[str, Any], behaviour: dict[str, Any]) -> None:
        behaviour = dict(behaviour)
        resync, notify = behaviour.pop("resync"), behaviour.pop("notify_unchanged")
        self.source = FakeSource[Any](version=1, **server)
        options = dataclasses.replace(EXACT, watch_list=True, **behaviour)
        self.web_only = bool(behaviour["label_selector"])
        self.informer = make_informer(
            self.source,
            options=options,
            resync=resync,
            notify_unchanged=notify,
            on_error=lambda _: None,
            indexers={"app": lambda obj: obj["metadata"]["labels"].values()},
        )
        self.handlers: list[tuple[Any, Recorder]] = []
        self.counter = 0
        self.restored = False

    async def step(self, what: str, *arguments: Any) -> None:
        source = self.source
        match what, *arguments:
            case "create" | "update", name, web:
                self._write(name, web=web)
            case "delete", name:
                if source.key(name) in source.objects:
                    source.delete(name)
            case "recreate", name:
                if source.key(name) in source.objects:
                    source.delete(name)
                    self._write(name, web=True)
            case "wait", seconds:
                await asyncio.sleep(seconds)
            case "drop", lose:
                source.drop_watches(lose_pending=lose)
            case "break", lose:
                source.drop_watches(TransportError("reset by peer"), lose_pending=lose)
            case "error", code:
                source.send_error(Status(code=code))
            case ("compact",):
                source.compact()
            case "refuse", seconds:
                source.refuse_connections()
                await asyncio.sleep(seconds)
                source.refuse_connections(refuse=False)
            case "fail list", code:
                source.fail_lists(gone("x") if code == 410 else api_error(code))
            case "fail watch", code:
                source.fail_watches(gone("x") if code == 410 else api_error(code))
            case ("repeat",):
                for obj in source.objects.values():
                    if not self.web_only or obj["metadata"]["labels"]["app"] == "web":
                        source.send("MODIFIED", copy.deepcopy(obj))
            case ("stall",):
                source.stall_watches()
            case ("expire tokens",):
                source.expire_tokens()
            case "restore", back:
                await self._restore(back)
            case ("join",):
                self.join()
            case "leave", drain:
                if len(self.handlers) > 1:
                    handle, _ = self.handlers.pop()
                    await self.informer.remove_handler(handle, drain=drain)

    def _write(self, name: str, *, web: bool) -> None:
        self.counter += 1
        labels = {"app": "web" if web else "db"}
        if self.source.key(name) in self.source.objects:
            self.source.update(name, labels=labels, n=self.counter)
        else:
            self.source.create(name, labels=labels, n=self.counter)

    async def _restore(self, back: int) -> None:
        """Go back in time; as with etcd, somebody sees to it that clients notice before it is late."""
        version = max(self.source.version - back, self.source._compacted, 1)
        if version == self.source.version:
            return
        self.restored = True
        self.source.restore(version)
        self.source.compact()
        self.source.bump(1000)
        self.source.compact()

    def join(self) -> None:
        recorder = Recorder()
        self.handlers.append((self.informer.add_handler(on_event=recorder), recorder))

    def expected(self) -> dict[str, Any]:
        return {
            key: obj
            for key, obj in self.source.objects.items()
            if not self.web_only or obj["metadata"]["labels"]["app"] == "web"
        }

    def check(self) -> None:
        stored = dict(self.informer.store.items())
        assert stored == self.expected()
        by_app: dict[str, set[str]] = {}
        for key, obj in stored.items():
            by_app.setdefault(obj["metadata"]["labels"]["app"], set()).add(key)
        store = self.informer.store
        assert {
            value: set(store.index_keys("app", value)) for value in store.index_values("app")
        } == by_app
        for handle, recorder in self.handlers:
            assert recorder.state == stored
            assert handle.has_synced
            if not self.restored:
                check_states_never_come_back(recorder)


def check_states_never_come_back(recorder: Recorder) -> None:
    """G2: for each key the states are a subsequence of the real ones, in order."""
    last: dict[str, int] = {}
    for note in recorder.notes:
        obj = note.new if isinstance(note, Updated) else note.obj
        version = int(DICT_ACCESS.version(obj))
        if isinstance(note, Added | Updated):
            assert version >= last.get(note.key, 0), f"{note.key} went back"
        last[note.key] = max(version, last.get(note.key, 0))


async def play(server: dict[str, Any], behaviour: dict[str, Any], script: list[Any]) -> None:
    state = Simulation(server, behaviour)
    state.join()
    async with state.informer.running():
        for step in script:
            await state.step(*step)
        # Everything heals: silent watches are noticed, tokens, refusals and backoffs run out.
        await asyncio.sleep(1500)
        state.check()
    assert state.source.open_streams == []
    assert {stream.closes for stream in state.source.streams} <= {1}


@pytest.mark.spec("I4", "I17")
@settings(suppress_health_check=[HealthCheck.too_slow])
@given(server=servers, behaviour=behaviours, script=st.lists(steps, min_size=5, max_size=60))
def test_at_rest_store_and_handlers_agree_with_the_server(server, behaviour, script):
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(play(server, behaviour, script))
