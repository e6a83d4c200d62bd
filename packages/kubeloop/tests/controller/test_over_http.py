"""Elections and events over real connections: the adapters to the client, and the thread's own."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.client.rest import client_of
from tests.controller.election.lease_server import LeaseServer
from tests.testing.scripted_answers import refuse, reply
from tests.testing.scripted_exchange import Exchange
from tests.testing.scripted_server import ScriptedServer

from kubeloop.client.errors import ApiError
from kubeloop.controller import ElectionConfig, ElectionThread, EventRecorder, own_connection
from kubeloop.controller.election.elector import LeaderCallbacks
from kubeloop.controller.election.lease_keeper import ApiLease
from kubeloop.controller.events.correlators import EventSeries
from kubeloop.controller.events.event_types import Reporter
from kubeloop.controller.events.recorder import SERIES_EVENTS, ApiEventSink
from tests.waiting import eventually

COLLECTION = "/apis/coordination.k8s.io/v1/namespaces/ns/leases"
LEASE = f"{COLLECTION}/lead"
CONFIG = ElectionConfig(
    namespace="ns",
    name="lead",
    identity="me",
    lease_duration=1,
    renew_deadline=0.8,
    retry_period=0.1,
)
VERBS = {"GET": "get", "POST": "create", "PUT": "update"}


class LeaseAnswers:
    """The lease of a `LeaseServer`, spoken in HTTP."""

    def __init__(self, leases: LeaseServer) -> None:
        self._leases = leases

    async def __call__(self, exchange: Exchange) -> None:
        request = exchange.request
        try:
            body = request.json() if request.body else None
            await exchange.respond_json(self._leases.apply(VERBS[request.method], body))
        except ApiError as error:
            status = {"kind": "Status", "code": error.code, "reason": error.reason}
            await exchange.respond_json(status, error.code)


def serve_leases(server: ScriptedServer, leases: LeaseServer) -> None:
    answers = LeaseAnswers(leases)
    server.serve("GET", LEASE, answers)
    server.serve("POST", COLLECTION, answers)
    server.serve("PUT", LEASE, answers)


@pytest.mark.spec("L13")
async def test_election_on_own_thread_and_connection_acquires_renews_and_releases() -> None:
    leases, started = LeaseServer(), asyncio.Event()

    async def work() -> None:
        started.set()
        await asyncio.Event().wait()

    async with ScriptedServer() as server:
        serve_leases(server, leases)
        election = ElectionThread(
            config=CONFIG, lease=own_connection(CONFIG, lambda: client_of(server))
        )
        callbacks = LeaderCallbacks(on_started=work, on_stopped=lambda: None)
        task = asyncio.create_task(election.run(callbacks))
        await started.wait()
        assert leases.holder == "me"
        await eventually(lambda: leases.log.count("update") >= 2, "two renewals")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert leases.log[:4] == ["get", "create", "update", "update"]
    assert leases.log[-2:] == ["get", "update"]
    assert leases.holder == ""


@pytest.mark.spec("L11")
async def test_a_lease_is_read_created_and_replaced_whole() -> None:
    leases = LeaseServer()
    async with ScriptedServer() as server, client_of(server) as client:
        serve_leases(server, leases)
        lease = ApiLease(client, CONFIG)
        body: dict[str, Any] = {"metadata": {"name": "lead", "namespace": "ns"}, "spec": {"a": 1}}
        await lease.create(body)
        read = await lease.get()
        assert read["spec"] == {"a": 1}
        await lease.update({**read, "spec": {"a": 1, "b": 2}})
    assert leases.lease is not None
    assert leases.lease["spec"] == {"a": 1, "b": 2}


POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "web", "namespace": "shop", "uid": "u1"},
}


@pytest.mark.spec("E3")
@pytest.mark.parametrize(
    ("resource", "path"),
    [
        ("v1/events", "/api/v1/namespaces/shop/events"),
        (SERIES_EVENTS, "/apis/events.k8s.io/v1/namespaces/shop/events"),
    ],
)
async def test_events_are_created_then_patched_then_created_again(resource: str, path: str) -> None:
    reporter = Reporter("test", "i")
    correlator = EventSeries(reporter) if resource == SERIES_EVENTS else None
    async with ScriptedServer() as server, client_of(server) as client:
        recorder = EventRecorder(reporter, ApiEventSink(client, resource), correlator=correlator)
        task = asyncio.create_task(recorder.run())
        created = reply({"metadata": {"name": "web.1", "namespace": "shop"}, "count": 1})
        server.expect("POST", path, created, created)
        server.expect("PATCH", f"{path}/web.1", refuse(404, "NotFound"))
        recorder.normal(POD, "Started", "m")
        recorder.normal(POD, "Started", "m")
        await eventually(lambda: len(server.requests) >= 3, "three requests")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    post, patch, again = server.requests
    assert patch.headers["content-type"] == "application/merge-patch+json"
    assert (post.json()["reason"], again.json()["reason"]) == ("Started", "Started")
    assert (again.json().get("count") or again.json()["series"]["count"]) == 2
