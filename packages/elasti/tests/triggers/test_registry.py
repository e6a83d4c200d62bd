"""A trigger is a type and a reader: this module is the two files of one, and no other module knows of it."""

from __future__ import annotations

import datetime as dt
import importlib
import sys
from collections.abc import Hashable, Iterator
from typing import Any

import msgspec
import pytest

from elasti.api.crd import custom_resource_definition
from elasti.api.states import State
from elasti.api.triggers.registry import (
    TriggerMetadata,
    TriggerType,
    redacted_metadata,
    trigger_types,
)
from elasti.api.types import ElastiService, ElastiServiceSpec
from elasti.api.validation import problems
from elasti.operator.idleness.decisions import Decisions
from elasti.operator.idleness.evaluator import Evaluator, evidence_lookup
from elasti.operator.idleness.poller import Poller
from elasti.operator.model.facts import Verdict
from elasti.operator.model.state import StateStore
from elasti.operator.settings import OperatorSettings
from elasti.operator.watch.directory import Directory
from elasti.triggers.reader import ReadContext, ReaderSettings, TriggerReader, TriggerReading
from kubeloop.controller.reconcile import Request
from kubeloop.objects.meta import ObjectMeta

# The files of a trigger.

DEPTHS = {"orders": 0.0}


class QueueMetadata(TriggerMetadata, frozen=True):
    """How many messages wait in a queue."""

    queue: str
    password: str = ""


class QueueReader(TriggerReader):
    def __init__(self, settings: ReaderSettings) -> None:
        self.broker = settings.variables.get("QUEUE_BROKER", "")
        self.forgotten: list[Hashable] = []
        self.rounds = 0
        self.closed = False
        made.append(self)

    async def read(self, metadata: QueueMetadata, _context: ReadContext) -> TriggerReading:
        return TriggerReading(DEPTHS[metadata.queue])

    def forget(self, key: Hashable) -> None:
        self.forgotten.append(key)

    async def end_round(self) -> None:
        self.rounds += 1

    async def close(self) -> None:
        self.closed = True


made: list[QueueReader] = []
make_reader = QueueReader
TRIGGER = TriggerType(
    name="queue",
    metadata=QueueMetadata,
    variables={"QUEUE_BROKER": str},
    redactions={"password": lambda _value: "(hidden)"},
)

# What follows from it.


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(trigger_types(), TRIGGER.name, TRIGGER)
    monkeypatch.setitem(sys.modules, "elasti.triggers.queue", sys.modules[__name__])
    monkeypatch.setitem(DEPTHS, "orders", 0.0)
    made.clear()


def spec(metadata: dict[str, Any], kind: str = "queue") -> ElastiServiceSpec:
    return msgspec.convert(
        {
            "service": "web",
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
            "triggers": [{"type": kind, "metadata": metadata}],
        },
        ElastiServiceSpec,
    )


@pytest.mark.parametrize(
    ("metadata", "kind", "words"),
    [
        ({"queue": "orders"}, "queue", "metadata.threshold is required; add it"),
        ({"threshold": 1}, "queue", "metadata.queue is required; add it"),
        ({"queue": "orders", "threshold": "few"}, "queue", "'few' is not a number"),
        ({"queue": ["orders"], "threshold": 1}, "queue", "queue ['orders']: Expected `str`"),
        ({"queu": "orders", "threshold": 1}, "queue", "did you mean 'queue'?"),
        ({"queue": "orders", "threshold": 1}, "quue", "did you mean 'queue'?"),
    ],
)
def test_its_metadata_is_validated(metadata: dict[str, Any], kind: str, words: str):
    (problem,) = problems(spec(metadata, kind))
    assert words in str(problem)


@pytest.mark.parametrize("name", [name for name in trigger_types() if name != TRIGGER.name])
def test_every_type_has_a_reader(name: str):
    assert callable(importlib.import_module(f"elasti.triggers.{name}").make_reader)


def test_valid_metadata_has_no_problem():
    assert problems(spec({"queue": "orders", "threshold": 1})) == []


def test_the_crd_has_its_schema():
    (version,) = custom_resource_definition()["spec"]["versions"]
    trigger = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["triggers"]
    items = trigger["items"]
    assert items["properties"]["type"]["enum"] == list(trigger_types())
    assert items["properties"]["metadata"]["properties"]["queue"] == {"type": "string"}
    assert {
        "rule": "self.type != 'queue' || (has(self.metadata) && has(self.metadata.queue))",
        "message": "a queue trigger needs metadata.queue",
    } in items["x-kubernetes-validations"]


def test_what_is_secret_is_not_shown():
    shown = redacted_metadata("queue", {"queue": "orders", "password": "hush", "other": "hush"})
    assert shown == {"queue": "orders", "password": "(hidden)", "other": "(redacted)"}
    assert redacted_metadata("gone", {"query": "hush"}) == {"query": "(redacted)"}


def test_the_operator_reads_its_variables_and_does_not_show_them():
    settings = OperatorSettings.from_env({"QUEUE_BROKER": "hush", "OTHER": "x"})
    assert settings.trigger_variables == {"QUEUE_BROKER": "hush"}
    assert "hush" not in repr(settings)


# The evaluator reads it, and the decision follows.

WEB = Request("shop", "web")


class StepClock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> dt.datetime:
        return dt.datetime(2030, 1, 1, tzinfo=dt.UTC) + dt.timedelta(seconds=self.seconds)


class Objects:
    """What the poller sees of a cache."""

    def __init__(self, *objects: ElastiService) -> None:
        self.objects = list(objects)

    def all(self) -> Iterator[ElastiService]:
        return iter(self.objects)


async def test_it_lets_a_target_sleep_and_wakes_it():
    es = ElastiService(
        metadata=ObjectMeta(name="web", namespace="shop", uid="u"),
        spec=spec({"queue": "orders", "threshold": 1}),
    )
    clock, directory, states, store = StepClock(), Directory(), StateStore(), Objects(es)
    enqueued: list[Request] = []
    directory.put(es)
    state = states.of(WEB, "u", "web")
    settings = ReaderSettings(clock=clock, variables={"QUEUE_BROKER": "b"})
    async with Evaluator(settings=settings, stale_after=120.0) as evaluator:
        decisions = Decisions(
            directory=directory,
            states=states,
            evidence=evidence_lookup(directory, evaluator),
            clock=clock,
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
        await poller.poll()
        assert decisions.together(WEB).verdict is Verdict.STAY
        for _ in range(31):
            clock.seconds += 30
            await poller.poll()
        assert decisions.together(WEB).verdict is Verdict.SLEEP
        state.handover.current = State.PROXY
        DEPTHS["orders"] = 5.0
        enqueued.clear()
        await poller.poll()
        assert decisions.together(WEB).verdict is Verdict.WAKE
        assert enqueued == [WEB]
        store.objects.clear()
        await poller.poll()
        (reader,) = made
        assert (reader.broker, reader.rounds) == ("b", 34)
        assert len(reader.forgotten) == 1
        assert not reader.closed
    assert reader.closed
