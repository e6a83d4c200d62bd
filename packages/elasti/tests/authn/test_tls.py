"""TLS between the programs: what a listener sees, rotation under load, mixed versions, damaged certificates."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import ssl
from collections.abc import AsyncIterator

import aiohttp
import pytest
from aiohttp import web
from tests.authn.peers import (
    DAY,
    NOW,
    TOKEN,
    Calls,
    Mount,
    Wire,
    made,
    operator_port,
    resolver_port,
)
from tests.log_lines import capture_logs
from tests.resolver.cluster import fake_operator

from elasti.api.wire import ACTIVITY_PATH, WakeOutcome
from elasti.authn.tls import PeerTls
from elasti.resolver.services.wake import OperatorUnreachable
from tests.waiting import eventually
from tests.web_server import web_server

PORTS = {"operator": operator_port, "resolver": resolver_port}


@pytest.fixture(params=PORTS, name="called")
def _called(request):
    """Which of the programs is called, by the other one."""
    return request.param


@pytest.fixture(name="token_file")
def _token_file(tmp_path):
    (tmp_path / "token").write_text(TOKEN)
    return str(tmp_path / "token")


@pytest.fixture(name="mount")
def _mount(tmp_path):
    return Mount(tmp_path / "tls")


async def call(called, port, calls):
    """Whether a call works."""
    if called == "resolver":
        return await calls.resolver(port) is not None
    try:
        return await calls.operator(port) == "scaling"
    except OperatorUnreachable:
        return False


async def seen_on_the_wire(called, serving, calling, token_file):
    """What a listener sees of a call; and whether that call worked."""
    async with PORTS[called](serving) as port, Wire(port) as wire:
        works = await call(called, wire.port, Calls(calling, token_file))
        return works, wire.seen


async def test_a_listener_on_the_wire_sees_no_token(called, mount, token_file):
    mount.holds(made())
    tls = PeerTls(str(mount.place))
    works, seen = await seen_on_the_wire(called, tls, tls, token_file)
    assert works
    assert TOKEN.encode() not in seen
    assert seen[0] == 0x16
    assert tls.in_clear == {"sent": 0, "received": 0}


async def test_without_tls_a_listener_sees_it(called, token_file):
    # The control of the test above: the listener would notice.
    works, seen = await seen_on_the_wire(called, PeerTls(), PeerTls(), token_file)
    assert works
    assert TOKEN.encode() in seen


async def test_probes_and_scrapes_stay_in_the_clear(called, mount):
    mount.holds(made())
    tls = PeerTls(str(mount.place), required=True)
    async with PORTS[called](tls) as port, aiohttp.ClientSession() as session:
        for path in ("/healthz", "/readyz", "/metrics"):
            async with session.get(f"http://127.0.0.1:{port}{path}") as answer:
                assert answer.status == 200


def phases():
    """What the Secret holds as an authority is replaced; all of it is valid now."""
    first = made(made(at=NOW - 600 * DAY), NOW - 20 * DAY)
    trusted = made(first, NOW - 2 * DAY)
    assert (trusted.certificate, first.authorities in trusted.authorities) == (
        first.certificate,
        True,
    )
    assert made(trusted, NOW - 1.1 * DAY) == trusted, "the new authority signs too early"
    signed = made(trusted, NOW)
    assert signed.certificate != first.certificate
    alone = signed.authorities.removeprefix(first.authorities)
    assert alone != signed.authorities
    return first, trusted, signed, dataclasses.replace(signed, authorities=alone)


@pytest.mark.parametrize("slower", ["server", "client"])
async def test_no_call_is_lost_while_an_authority_is_replaced(called, slower, tmp_path, token_file):
    mounts = {name: Mount(tmp_path / name) for name in ("server", "client")}
    serving, calling = (PeerTls(str(mounts[name].place), required=True) for name in mounts)
    order = sorted(mounts, key=lambda name: name == slower)
    results = []

    async def load(port, stop):
        calls = Calls(calling, token_file)
        while not stop.is_set():
            results.append(await call(called, port, calls))

    async def more(calls):
        wanted = len(results) + calls
        await eventually(lambda: len(results) >= wanted)

    found = phases()
    for mount in mounts.values():
        mount.holds(found[0])
    async with PORTS[called](serving) as port:
        stop = asyncio.Event()
        loads = [asyncio.create_task(load(port, stop)) for _ in range(3)]
        for phase, name in itertools.product(found[1:], order):
            # One kubelet is a phase's length behind the other.
            mounts[name].holds(phase)
            await more(15)
        stop.set()
        await asyncio.gather(*loads)
    assert len(results) > 80
    assert all(results)


async def test_a_kept_connection_outlives_a_new_certificate(mount, token_file):
    first, trusted, signed, _ = phases()
    mount.holds(first)
    tls = PeerTls(str(mount.place), required=True)
    async with resolver_port(tls) as port:
        before = await asyncio.open_connection(
            "127.0.0.1", port, ssl=trusting(first), server_hostname="elasti.internal"
        )
        mount.holds(trusted)
        mount.holds(signed)
        assert await call("resolver", port, Calls(tls, token_file))
        before[1].write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await before[0].readline()).startswith(b"HTTP/1.1 200")
        before[1].close()
        with contextlib.suppress(OSError):
            await before[1].wait_closed()


def trusting(found):
    return ssl.create_default_context(cadata=found.authorities.decode())


# Version 0.2: its servers are aiohttp's, its clients know no TLS.


async def old_activity(request: web.Request) -> web.Response:
    assert request.headers["Authorization"] == f"Bearer {TOKEN}"
    return web.json_response({"held": 0, "open": 0})


@pytest.mark.timeout(20)
async def test_an_older_peer_is_called_in_the_clear_at_once(called, mount, token_file):
    mount.holds(made())
    tls = PeerTls(str(mount.place))
    async with contextlib.AsyncExitStack() as stack:
        if called == "operator":
            old = fake_operator(lambda _: WakeOutcome.SCALING)
        else:
            old = web_server(web.get(ACTIVITY_PATH, old_activity))
        url = await stack.enter_async_context(old)
        with capture_logs() as logs:
            for _ in range(2):
                assert await call(called, int(url.rpartition(":")[2]), Calls(tls, token_file))
    assert tls.in_clear["sent"] == 2
    (line,) = logs
    assert line["event"] == "call sent in the clear"
    assert "upgrade" in line["remedy"]


async def test_a_peer_that_closes_without_a_word_is_called_in_the_clear(called, mount, token_file):
    """As a proxy does that knows no TLS. One that spoke TLS before is not: it is restarting."""
    mount.holds(made())
    tls = PeerTls(str(mount.place))

    async with PORTS[called](PeerTls()) as port, mute_to_tls(port) as shown:
        assert await call(called, shown, Calls(tls, token_file))
    assert tls.in_clear["sent"] == 1
    async with PORTS[called](PeerTls(str(mount.place))) as port:
        assert await call(called, port, Calls(tls, token_file))
        shown = port
    async with PORTS[called](PeerTls()) as port, mute_to_tls(port, shown):
        assert not await call(called, shown, Calls(tls, token_file))
    assert tls.in_clear["sent"] == 1


@contextlib.asynccontextmanager
async def mute_to_tls(behind: int, port: int = 0) -> AsyncIterator[int]:
    """A proxy before a port, which closes what begins with a handshake."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first = await reader.read(65536)
        if not first.startswith(b"\x16"):
            there, back = await asyncio.open_connection("127.0.0.1", behind)
            back.write(first)
            writer.write(await there.read(65536))
            back.close()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", port) as server:
        yield server.sockets[0].getsockname()[1]


async def test_a_certificate_that_the_system_could_not_load_is_tried_again(mount, monkeypatch):
    mount.holds(made())
    tls = PeerTls(str(mount.place))

    def no_descriptors(*_):
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr("elasti.authn.tls.present_certificate", no_descriptors)
        assert tls.server_context() is None
    assert tls.server_context() is not None


async def test_an_older_caller_is_answered_with_a_warning(called, mount, token_file):
    mount.holds(made())
    tls = PeerTls(str(mount.place))
    async with PORTS[called](tls) as port:
        with capture_logs() as logs:
            for _ in range(2):
                assert await call(called, port, Calls(None, token_file))
    assert tls.in_clear["received"] == 2
    warnings = [line["event"] for line in logs if line["log_level"] == "warning"]
    assert warnings == ["call received in the clear"]


async def test_what_is_required_is_neither_sent_nor_accepted_in_the_clear(
    called, mount, token_file
):
    mount.holds(made())
    tls = PeerTls(str(mount.place), required=True)
    async with PORTS[called](tls) as port:
        assert not await call(called, port, Calls(PeerTls(), token_file))
        assert await call(called, port, Calls(tls, token_file))
    assert tls.in_clear["received"] > 0
    works, seen = await seen_on_the_wire(called, None, tls, token_file)
    assert not works
    assert TOKEN.encode() not in seen


# Certificates that are not there, or not usable.


async def test_until_there_are_certificates_calls_go_in_the_clear(called, mount, token_file):
    tls = PeerTls(str(mount.place))
    async with PORTS[called](tls) as port:
        assert await call(called, port, Calls(tls, token_file))
        assert tls.in_clear == {"sent": 1, "received": 1}
        mount.holds(made())
        assert await call(called, port, Calls(tls, token_file))
        assert tls.in_clear == {"sent": 1, "received": 1}


@pytest.mark.parametrize("has_certificates", ["server", "client"])
async def test_a_kubelet_that_is_late_costs_no_call(
    called, has_certificates, mount, tmp_path, token_file
):
    mount.holds(made())
    full, empty = PeerTls(str(mount.place)), PeerTls(str(tmp_path / "missing"))
    serving, calling = (full, empty) if has_certificates == "server" else (empty, full)
    async with PORTS[called](serving) as port:
        assert await call(called, port, Calls(calling, token_file))


DAMAGE = {
    "half": lambda old, new: {
        "ca.crt": new.authorities,
        "tls.crt": new.certificate,
        "tls.key": old.key,
    },
    "cut off": lambda old, new: {
        "ca.crt": new.authorities[:200],
        "tls.crt": new.certificate[:200],
        "tls.key": new.key,
    },
    "empty": lambda old, new: {"ca.crt": b"", "tls.crt": b"", "tls.key": b""},
    "gone": lambda old, new: {},
}


@pytest.mark.parametrize("damage", DAMAGE)
async def test_what_worked_stays_in_use_while_the_secret_is_damaged(
    called, damage, mount, token_file
):
    old = made()
    renewed = made(old, NOW + 70 * DAY)
    mount.holds(old)
    tls = PeerTls(str(mount.place), required=True)
    async with PORTS[called](tls) as port:
        assert await call(called, port, Calls(tls, token_file))
        mount.write(DAMAGE[damage](old, renewed))
        assert await call(called, port, Calls(tls, token_file))
        assert await call(called, port, Calls(tls, token_file))
    assert tls.in_clear == {"sent": 0, "received": 0}


async def test_a_broken_secret_is_logged_with_its_file_and_a_remedy(called, mount, token_file):
    mount.write({"ca.crt": b"x", "tls.crt": b"x", "tls.key": b"x"})
    tls = PeerTls(str(mount.place))
    async with PORTS[called](tls) as port:
        with capture_logs() as logs:
            assert await call(called, port, Calls(tls, token_file))
            assert tls.server_context() is None
    found = {line["event"]: line for line in logs if "error" in line}
    for event, file in (
        ("authorities not usable", "ca.crt"),
        ("certificate not usable", "tls.crt"),
    ):
        assert file in found[event]["error"]
        assert "empty its `data`" in found[event]["remedy"]


REFUSED = {
    "of another authority": (
        lambda: made(),
        "self-signed certificate in certificate chain|local issuer",
    ),
    "for another name": (lambda: made(name="other.internal"), "Hostname mismatch"),
    "expired": (lambda: made(at=NOW - 100 * DAY), "expired"),
}


@pytest.mark.parametrize("refused", REFUSED)
async def test_a_refused_certificate_gets_no_token_even_in_the_clear(
    called, refused, tmp_path, token_file
):
    make, reason = REFUSED[refused]
    presented = make()
    serving, calling = Mount(tmp_path / "server"), Mount(tmp_path / "client")
    serving.holds(presented)
    trusted = made() if "authority" in refused else presented
    calling.holds(trusted)
    tls = PeerTls(str(calling.place))
    with capture_logs() as logs:
        works, seen = await seen_on_the_wire(called, PeerTls(str(serving.place)), tls, token_file)
    # Then wake requests go through the ElastiService, and a target without a report stays awake.
    assert not works
    assert TOKEN.encode() not in seen
    (line,) = (line for line in logs if line["event"] == "certificate of a peer refused")
    assert any(part in line["error"] for part in reason.split("|"))
    assert "same Secret" in line["remedy"]
