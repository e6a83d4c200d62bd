"""Notifications: one CloudEvent for each change, signed; no receiver is in the way of a wake-up."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import json
import pathlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.operator.environment import NAMESPACE, Environment, FakeTrigger, Operator

from elasti.api.parsing import SettingsError
from elasti.api.types import (
    ElastiService,
    ElastiServiceSpec,
    ElastiServiceStatus,
    LastWake,
    ScaleTargetRef,
    StatusCondition,
)
from elasti.operator.metrics import OperatorMetrics
from elasti.operator.model.state import ServiceState
from elasti.operator.report.notifications import Notifier, changes, cloud_event
from elasti.operator.settings import OperatorSettings
from kubeloop.objects.meta import ObjectMeta
from kubeloop.testing.virtual_time import VirtualClock
from tests.waiting import eventually

pytestmark = pytest.mark.virtual_time

KEY = "horse battery"
REPOSITORY = pathlib.Path(__file__).parents[5]
MIDNIGHT = "2030-01-01T00:00:00Z"


@pytest.fixture(autouse=True)
def trigger(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeTrigger.install(monkeypatch)


class Receiver:
    """A server that answers each request with the next of its answers; the last one stays.

    An answer is a status, or what it does instead: hang, or close the connection.
    """

    def __init__(self, *answers: int | str) -> None:
        self._answers = list(answers)
        self.events: list[dict[str, Any]] = []
        self.heads: list[str] = []
        self.bodies: list[bytes] = []
        self.url = ""

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Receiver]:
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/hook?team=a"
        async with server:
            yield self

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                await self._answer(reader, writer)
        writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = int(head.lower().partition("content-length:")[2].split()[0])
        body = await reader.readexactly(length)
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        self.heads.append(head)
        self.bodies.append(body)
        if answer == "hang":
            await reader.read()
            raise ConnectionResetError
        if answer == "close":
            raise ConnectionResetError
        if answer in range(200, 300):
            self.events.append(json.loads(body))
        where = f"Location: {self.url}\r\n" if answer == 302 else ""
        writer.write(f"HTTP/1.1 {answer} x\r\n{where}Content-Length: 0\r\n\r\n".encode())

    def header(self, name: str) -> str:
        lines = self.heads[-1].splitlines()
        return next(line.partition(": ")[2] for line in lines if line.startswith(f"{name}:"))


def es(name: str = "web", **status: Any) -> ElastiService:
    spec = ElastiServiceSpec(ScaleTargetRef("apps/v1", "Deployment", name), name)
    meta = ObjectMeta(name=name, namespace="shop", uid="u-1")
    return ElastiService(spec, meta, ElastiServiceStatus(**status))


def counted(metrics: OperatorMetrics, outcome: str) -> int:
    """How many notifications ended so."""
    text = metrics.render().decode()
    found = [
        line for line in text.splitlines() if f'notifications_total{{outcome="{outcome}"' in line
    ]
    return int(float(found[0].rpartition(" ")[2])) if found else 0


# What is sent


def test_an_event_has_what_cloudevents_demands():
    one = es(phase="Asleep", asleep_since=MIDNIGHT)
    (change,) = changes(one.status).values()
    assert json.loads(cloud_event(one, change)) == {
        "specversion": "1.0",
        "id": f"u-1/asleep/{MIDNIGHT}",
        "source": "/apis/elasti.truefoundry.com/v1alpha1/namespaces/shop/elastiservices/web",
        "type": "com.truefoundry.elasti.asleep",
        "subject": "shop/web",
        "time": MIDNIGHT,
        "datacontenttype": "application/json",
        "data": {
            "namespace": "shop",
            "name": "web",
            "service": "web",
            "target": "Deployment/web",
        },
    }


def test_what_holds_follows_from_status():
    wake = LastWake(MIDNIGHT, "Request", seconds=4.0)
    bad = StatusCondition("Ready", "False", "TargetMissing", "gone", MIDNIGHT)
    fine = StatusCondition("ScaleContested", "False", "NotContested", "", MIDNIGHT)
    assert set(changes(es(phase="Awake", last_wake=wake).status)) == {"awake"}
    found = changes(es(phase="NotReady", conditions=(bad, fine)).status)
    assert found["Ready"].kind == "trouble"
    assert found["Ready"].data["reason"] == "TargetMissing"
    assert list(found) == ["Ready"]
    under_way = LastWake(MIDNIGHT, "Request")
    for phase, last in (("Awake", None), ("Awake", under_way), ("FallingAsleep", wake)):
        assert changes(es(phase=phase, last_wake=last).status) == {}


async def test_an_attempt_that_ends_early_is_not_a_change():
    settings = OperatorSettings(notify_url="http://127.0.0.1:1")
    state, sender = (
        ServiceState("u-1", "web"),
        Notifier(settings, OperatorMetrics(), VirtualClock()),
    )
    awake = es(phase="Awake", last_wake=LastWake(MIDNIGHT, "Request", seconds=4.0))
    for status in (awake.status, es(phase="FallingAsleep").status, awake.status):
        sender.look(awake, status, state)
    assert sender._queue.qsize() == 1


async def test_each_change_is_sent_once_with_its_signature():
    async with Receiver(200).running() as receiver:
        env = Environment(notify_url=receiver.url, notify_key=KEY)
        env.web()
        async with env.operator() as operator:
            await env.becomes("Proxy")
            await asyncio.sleep(100)
            await operator.waker.wake(NAMESPACE, "web", "10.1.2.3 GET /")
            await env.becomes("Serve")
            await eventually(lambda: len(receiver.events) >= 2, timeout=60)
            await asyncio.sleep(20)
            kinds = [event["type"].rpartition(".")[2] for event in receiver.events]
            assert kinds == ["asleep", "awake"]
            assert receiver.events[1]["data"]["cause"] == "Request"
            assert counted(operator.metrics, "sent") == 2
    assert receiver.heads[0].startswith("POST /hook?team=a HTTP/1.1")
    assert receiver.header("Content-Type") == "application/cloudevents+json"
    digest = hmac.new(KEY.encode(), receiver.bodies[-1], hashlib.sha256).hexdigest()
    assert receiver.header("Elasti-Signature") == f"sha256={digest}"


async def test_a_new_leader_repeats_what_is_news_under_the_same_id():
    async with Receiver(200).running() as receiver:
        env = Environment(notify_url=receiver.url)
        env.web()
        async with env.operator():
            await env.becomes("Proxy")
            await eventually(lambda: receiver.events, timeout=30)
        async with env.operator():
            await eventually(lambda: len(receiver.events) == 2, timeout=30)
        await asyncio.sleep(120)
        async with env.operator():
            await asyncio.sleep(30)
    assert len(receiver.events) == 2
    assert receiver.events[0]["id"] == receiver.events[1]["id"]
    assert "Elasti-Signature" not in "".join(receiver.heads)


async def test_trouble_is_sent():
    async with Receiver(200).running() as receiver:
        env = Environment(notify_url=receiver.url)
        env.web()
        async with env.operator():
            await eventually(lambda: env.status.get("phase") == "Awake", timeout=60)
            env.change("elastiservices", spec={"service": "nowhere"})
            await eventually(lambda: receiver.events, timeout=60)
    data = receiver.events[0]["data"]
    assert (data["condition"], data["reason"]) == ("Ready", "ServiceMissing")


def test_the_guides_receiver_believes_what_is_signed_only():
    page = (REPOSITORY / "docs" / "howto" / "notifications.md").read_text()
    shown: dict[str, Any] = {}
    exec(page.partition("```python\n")[2].partition("```")[0], shown)
    settings = OperatorSettings(notify_url="http://x", notify_key=KEY)
    signed = Notifier(settings, OperatorMetrics(), VirtualClock())._signed(b"{}")[
        "Elasti-Signature"
    ]
    assert shown["is_genuine"](KEY.encode(), b"{}", signed)
    assert not shown["is_genuine"](KEY.encode(), b"[]", signed)
    assert not shown["is_genuine"](b"other", b"{}", signed)


# Receivers


async def cycle(env: Environment, operator: Operator) -> float:
    """Sleep and wake once; returns how long the wake-up took."""
    FakeTrigger.value = 0.0
    await env.becomes("Proxy")
    await asyncio.sleep(20)
    began = asyncio.get_running_loop().time()
    FakeTrigger.value = 9.0
    await operator.waker.wake(NAMESPACE, "web", "10.1.2.3 GET /")
    await env.becomes("Serve")
    return asyncio.get_running_loop().time() - began


@pytest.mark.parametrize("how", ["hangs", "refuses"])
async def test_no_receiver_is_in_the_way_of_a_wake_up(how: str):
    async def took(url: str, failures: int) -> float:
        env = Environment(notify_url=url)
        env.web()
        async with env.operator() as operator:
            found = await cycle(env, operator)
            await asyncio.sleep(250)
            assert counted(operator.metrics, "failed") == failures
            # What fails is counted, and is not a condition.
            assert env.status["phase"] == "Awake"
            assert all(one["status"] != "False" for one in env.status["conditions"][:5])
            return found

    alone = await took("", 0)
    if how == "refuses":
        assert await took("http://127.0.0.1:1/", 2) == pytest.approx(alone, abs=1.0)
        return
    async with Receiver("hang").running() as receiver:
        assert await took(receiver.url, 2) == pytest.approx(alone, abs=1.0)
    assert len(receiver.heads) == 2 * 5


async def sent_to(receiver: Receiver, outcome: str) -> OperatorMetrics:
    """Send one event until that is its outcome."""
    metrics, one = OperatorMetrics(), es(phase="Asleep", asleep_since=MIDNIGHT)
    sender = Notifier(OperatorSettings(notify_url=receiver.url), metrics, VirtualClock())
    sender.look(one, one.status, ServiceState("u-1", "web"))
    task = asyncio.create_task(sender.run())
    await eventually(lambda: counted(metrics, outcome), timeout=200, every=1.0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return metrics


@pytest.mark.parametrize(
    ("answer", "attempts"), [("hang", 5), ("close", 5), (500, 5), (302, 1), (404, 1)]
)
async def test_what_may_pass_is_tried_again_a_few_times(answer: str | int, attempts: int):
    async with Receiver(answer).running() as receiver:
        await sent_to(receiver, "failed")
    assert len(receiver.heads) == attempts


async def test_a_receiver_that_recovers_gets_the_event():
    async with Receiver(503, "close", 429, 200).running() as receiver:
        await sent_to(receiver, "sent")
    assert (len(receiver.heads), len(receiver.events)) == (4, 1)


async def test_the_oldest_makes_room():
    metrics, one = OperatorMetrics(), es(phase="Asleep", asleep_since=MIDNIGHT)
    sender = Notifier(OperatorSettings(notify_url="http://x"), metrics, VirtualClock())
    for number in range(1003):
        one.metadata.uid = f"u-{number}"
        sender.look(one, one.status, ServiceState(one.metadata.uid, "web"))
    assert counted(metrics, "dropped") == 3
    assert json.loads(sender._queue.get_nowait())["id"].startswith("u-3/")


async def test_a_key_file_is_read_each_time(tmp_path: pathlib.Path):
    path = tmp_path / "key"
    settings = OperatorSettings(notify_url="http://x", notify_key_file=str(path))
    sender = Notifier(settings, OperatorMetrics(), VirtualClock())
    path.write_text("a\n")
    first = sender._signed(b"{}")
    path.write_text("b\n")
    assert first != sender._signed(b"{}")
    path.write_text("\n")
    with pytest.raises(ValueError, match="empty"):
        sender._signed(b"{}")


# Settings


@pytest.mark.parametrize(
    "text", ["receiver", "ftp://x", "http://u:p@x/", "https://x/a b", "http://x:0"]
)
def test_a_url_that_cannot_be_is_refused_without_its_value(text: str):
    with pytest.raises(SettingsError) as raised:
        OperatorSettings.from_env({"ELASTI_NOTIFY_URL": text})
    assert "ELASTI_NOTIFY_URL: " in str(raised.value)
    assert "https://hooks.example.com/elasti" in str(raised.value)
    assert text not in str(raised.value)


def test_secrets_are_not_printed():
    settings = OperatorSettings.from_env(
        {"ELASTI_NOTIFY_URL": "https://x/hidden", "ELASTI_NOTIFY_KEY": KEY}
    )
    assert settings.notify_key == KEY
    assert KEY not in repr(settings)
    assert "hidden" not in repr(settings)
