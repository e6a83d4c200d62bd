"""Rounds of triggers, and whom they concern."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Iterator
from typing import Any

import msgspec
import pytest
from tests.operator.fakes import FakePrometheus
from tests.operator.states import service_state

from elasti.api.conditions import Reason
from elasti.api.states import State
from elasti.api.triggers.destinations import ALLOWED, parse_networks
from elasti.api.types import ElastiService, ElastiServiceSpec, ScaleTargetRef, ScaleTrigger
from elasti.operator.idleness.decisions import Decisions
from elasti.operator.idleness.evaluator import Evaluator, evidence_key, evidence_lookup
from elasti.operator.idleness.poller import Poller
from elasti.operator.leader import read_secret
from elasti.operator.model.state import ServiceState, StateStore
from elasti.operator.model.targets import ScaleTarget, ScaleView
from elasti.operator.watch.directory import Directory
from elasti.triggers.reader import ReaderSettings, SecretUnavailable
from kubeloop.aio.clock import SystemClock
from kubeloop.controller.reconcile import Request
from kubeloop.objects.meta import ObjectMeta
from kubeloop.testing.fake_client import FakeClient
from kubeloop.testing.fake_errors import api_error
from tests.waiting import eventually

WEB = Request("shop", "web")


class Store:
    """What the poller sees of a cache."""

    def __init__(self) -> None:
        self.objects: list[Any] = []

    def all(self) -> Iterator[Any]:
        return iter(self.objects)


@dataclasses.dataclass
class Round:
    """One ElastiService with one trigger, and what a round asks for."""

    prometheus: FakePrometheus
    evaluator: Evaluator
    decisions: Decisions
    directory: Directory
    state: ServiceState
    store: Store
    poller: Poller
    enqueued: list[Request]

    async def run(self) -> list[Request]:
        """Poll; returns what is to be reconciled."""
        self.enqueued.clear()
        await self.poller.poll()
        return list(self.enqueued)

    def reconciled(self) -> None:
        """The reconciler saw what there is to see now."""
        self.state.handover.judged = self.decisions.judge(WEB)


@pytest.fixture
async def round_(prometheus: FakePrometheus) -> AsyncIterator[Round]:
    trigger = ScaleTrigger("prometheus", prometheus.trigger()["metadata"])
    es = ElastiService(
        metadata=ObjectMeta(name="web", namespace="shop", uid="u"),
        spec=ElastiServiceSpec(
            scale_target_ref=ScaleTargetRef("apps/v1", "Deployment", "web"),
            service="web",
            given_triggers=(trigger,),
        ),
    )
    directory, states, store = Directory(), StateStore(), Store()
    enqueued: list[Request] = []
    directory.put(es)
    state = states.of(WEB, "u", "web")
    store.objects.append(es)
    loopback = {ALLOWED: parse_networks("127.0.0.0/8")}
    settings = ReaderSettings(clock=SystemClock(), variables=loopback)
    async with Evaluator(settings=settings, stale_after=120.0) as evaluator:
        decisions = Decisions(
            directory=directory,
            states=states,
            evidence=evidence_lookup(directory, evaluator),
            clock=SystemClock(),
            polling_interval=30.0,
        )
        poller = Poller(
            elastiservices=store,  # type: ignore[arg-type]  # it only iterates
            private_slices=store,  # type: ignore[arg-type]
            states=states,
            decisions=decisions,
            evaluator=evaluator,
            enqueue=enqueued.append,
            interval=30.0,
        )
        yield Round(prometheus, evaluator, decisions, directory, state, store, poller, enqueued)


async def test_a_round_without_news_reconciles_nothing(round_: Round):
    round_.state.handover.current = State.SERVE
    assert await round_.run() == [WEB]
    round_.reconciled()
    assert await round_.run() == []


async def test_what_was_not_looked_at_since_is_asked_for_again(round_: Round):
    round_.state.handover.current = State.SERVE
    assert await round_.run() == [WEB]
    assert await round_.run() == [WEB]


@pytest.mark.parametrize("state", [State.SERVE, State.PROXY])
async def test_a_trigger_that_begins_to_fail_is_news(round_: Round, state: State):
    round_.state.handover.current = state
    await round_.run()
    round_.reconciled()
    round_.prometheus.up = 0.0
    assert await round_.run() == [WEB]


async def test_a_change_of_obstacle_does_not_count_while_it_sleeps(round_: Round):
    round_.state.handover.current = State.PROXY
    await round_.run()
    round_.reconciled()
    round_.state.requests.last_attempt = SystemClock().now().timestamp()
    assert round_.decisions.judge(WEB) != round_.state.handover.judged
    assert await round_.run() == []
    round_.state.handover.current = State.SERVE
    assert await round_.run() == [WEB]


async def test_a_trigger_at_work_wakes_a_sleeping_target_until_it_is_awake(round_: Round):
    round_.state.handover.current = State.PROXY
    round_.prometheus.value = 9.0
    for _ in range(2):
        assert await round_.run() == [WEB]
        round_.reconciled()
    round_.state.handover.current = State.WAKING
    assert await round_.run() == []


async def test_one_that_is_in_use_is_woken_before_the_slowest_trigger_has_answered(round_: Round):
    round_.state.handover.current = State.PROXY
    round_.prometheus.value = 9.0
    round_.prometheus.hung = "slow"
    trigger = ScaleTrigger("prometheus", round_.prometheus.trigger("slow")["metadata"])
    (web,) = round_.store.objects
    slow = msgspec.structs.replace(
        web,
        metadata=ObjectMeta(name="slow", namespace="shop", uid="s"),
        spec=msgspec.structs.replace(web.spec, given_triggers=(trigger,)),
    )
    round_.store.objects.insert(0, slow)
    polling = asyncio.create_task(round_.poller.poll())
    await eventually(lambda: round_.enqueued == [WEB])
    assert not polling.done()
    round_.prometheus.may_answer.set()
    await polling
    assert round_.enqueued == [WEB]


async def test_one_that_is_gone_is_forgotten(round_: Round):
    await round_.run()
    (es,) = round_.store.objects
    key = evidence_key(WEB, "u", es.spec)
    assert round_.evaluator.evidence(key)
    round_.store.objects.clear()
    assert await round_.run() == []
    assert round_.evaluator.evidence(key) == ()


@pytest.mark.parametrize(
    "change",
    [
        {"scale_target_ref": ScaleTargetRef("apps/v1", "Deployment", "other")},
        {"service": "other"},
        {"given_triggers": (ScaleTrigger("prometheus", {"query": "other", "threshold": "1"}),)},
    ],
)
async def test_what_was_shown_of_one_target_says_nothing_of_another(
    round_: Round, change: dict[str, Any]
):
    evidence = evidence_lookup(round_.directory, round_.evaluator)
    await round_.run()
    assert evidence(WEB)[0].quiet_since is not None
    (es,) = round_.store.objects
    changed = msgspec.structs.replace(es, spec=msgspec.structs.replace(es.spec, **change))
    round_.directory.put(changed)
    # No round has come since, and the reconciler looks already.
    assert evidence(WEB) == ()
    obstacle = round_.decisions.together(WEB).obstacle
    assert obstacle is not None
    assert obstacle.reason == Reason.TRIGGERS_UNREAD
    round_.store.objects[:] = [changed]
    await round_.run()
    assert len(evidence(WEB)) == 1


def test_another_target_is_another_story():
    state = service_state(State.PROXY, parked_here=True)
    first, second = (ScaleTarget("shop", "apps/v1", "Deployment", name) for name in ("a", "b"))
    cached, written = ScaleView("uid", 3, "8"), ScaleView("uid", 0, "9")
    state.aim_at(first)
    state.own_writes.wrote_scale(written)
    state.aim_at(first)
    assert state.current is State.PROXY
    assert state.own_writes.newest_scale(cached) == written
    state.aim_at(second)
    assert state.current is None
    assert state.own_writes.newest_scale(cached) == cached
    assert not state.handover.parked_here


async def test_a_secret_is_read_or_the_error_says_what_to_do():
    secret = {"apiVersion": "v1", "kind": "Secret", "data": {"token": "dG9rZW4K"}}
    client = FakeClient(secret | {"metadata": {"name": "prometheus", "namespace": "shop"}})
    assert await read_secret(client, "shop", "prometheus") == {"token": "token"}
    with pytest.raises(SecretUnavailable, match=r"Secret prometheus\Z"):
        await read_secret(client, "other", "prometheus")
    client.fail_next(api_error(403, "Forbidden", "secrets is forbidden: hush"))
    with pytest.raises(SecretUnavailable, match=r"resourceNames \[prometheus\]\Z"):
        await read_secret(client, "shop", "prometheus")
