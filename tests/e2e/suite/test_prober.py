"""The prober against servers that misbehave: what it cannot see, the suite would not see either."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import msgspec

from tests.e2e.account import read_executed, settle
from tests.e2e.prober.contract import answer_of
from tests.e2e.prober.plan import Fault, Plan, Record, Summary, read_records
from tests.e2e.settings import ROOT

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@contextlib.asynccontextmanager
async def server(talk: Talk) -> AsyncIterator[tuple[str, int]]:
    tasks: set[asyncio.Task[None]] = set()

    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            await talk(reader, writer)
        writer.close()

    listening = await asyncio.start_server(converse, "127.0.0.1", 0)
    try:
        yield listening.sockets[0].getsockname()[:2]
    finally:
        listening.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def read_request(reader: asyncio.StreamReader) -> tuple[str, bytes]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    length = head.partition("Content-Length: ")[2].partition("\r\n")[0]
    return head.split()[1].removeprefix("/"), await reader.readexactly(int(length or 0))


def response(body: bytes, status: int = 200, more: str = "") -> bytes:
    return f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\n{more}\r\n".encode() + body


async def good(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while True:
        name, body = await read_request(reader)
        writer.write(response(answer_of(name, body), more="X-Pod: pod-1\r\n"))


async def started(tmp_path: Path, plan: Plan) -> asyncio.subprocess.Process:
    (tmp_path / "plan").write_bytes(msgspec.json.encode(plan))
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.e2e.prober", str(tmp_path / "plan")),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
    )


async def probe(
    tmp_path: Path, address: tuple[str, int], *, limit: int = 12, timeout: float = 30.0
) -> tuple[Summary, list[Record]]:
    records = tmp_path / "records"
    plan = Plan(
        targets=(address,), records=str(records), run="r", rate=400, limit=limit, timeout=timeout
    )
    process = await started(tmp_path, plan)
    assert process.stdout is not None
    assert await process.stdout.readline() == b"ready\n"
    assert await process.stdout.readline() == b"all sent\n"
    assert process.stdin is not None
    process.stdin.write(b"stop\n")
    await process.wait()
    await process.communicate()
    assert process.returncode == 0
    return read_records(records)


def faults(records: list[Record]) -> set[Fault]:
    return {record.fault for record in records}


async def test_every_request_is_accounted_for_over_new_and_kept_connections(tmp_path: Path):
    async with server(good) as address:
        summary, records = await probe(tmp_path, address, limit=64)
    assert summary.sent == len(records) == len({record.id for record in records}) == 64
    assert faults(records) == {Fault.NONE}
    assert {record.method for record in records} == {"GET", "POST"}
    kept = sum(record.reused for record in records)
    # On a busy machine answers are late, and more connections have to be opened meanwhile.
    assert 8 <= kept <= 32, "half may be kept, and the first of them have to be opened"
    assert all(record.pod == "pod-1" and record.answered >= record.sent for record in records)


async def test_refused_connections_are_lost(tmp_path: Path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        _, records = await probe(tmp_path, taken.getsockname())
    assert faults(records) == {Fault.REFUSED}


async def test_connections_that_end_without_an_answer_are_lost(tmp_path: Path):
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)

    async with server(hang_up) as address:
        _, records = await probe(tmp_path, address)
    assert faults(records) == {Fault.RESET}


async def test_half_an_answer_is_lost(tmp_path: Path):
    async def stop_short(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        name, body = await read_request(reader)
        writer.write(response(answer_of(name, body))[:-3])

    async with server(stop_short) as address:
        _, records = await probe(tmp_path, address)
    assert faults(records) == {Fault.RESET}


async def test_errors_and_other_requests_answers_are_lost(tmp_path: Path):
    async def err(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            name, body = await read_request(reader)
            if name.endswith(("0", "2", "4", "6", "8")):
                writer.write(response(b"{}", 503))
            else:
                writer.write(response(answer_of("another", body)))

    async with server(err) as address:
        _, records = await probe(tmp_path, address)
    assert faults(records) == {Fault.STATUS, Fault.BODY}
    assert {r.status for r in records if r.fault is Fault.STATUS} == {503}


async def test_silence_is_lost_after_the_timeout(tmp_path: Path):
    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with server(say_nothing) as address:
        _, records = await probe(tmp_path, address, timeout=1.0)
    assert faults(records) == {Fault.TIMEOUT}


async def test_a_prober_whose_test_is_gone_ends_and_says_what_had_no_answer(tmp_path: Path):
    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    records = tmp_path / "records"
    async with server(say_nothing) as address:
        plan = Plan(targets=(address,), records=str(records), run="r", rate=400, limit=4)
        process = await started(tmp_path, plan)
        assert process.stdout is not None
        assert process.stdin is not None
        assert [await process.stdout.readline() for _ in range(2)] == [b"ready\n", b"all sent\n"]
        process.stdin.close()
        await process.communicate()
    _, found = read_records(records)
    assert [record.fault for record in found] == [Fault.TIMEOUT] * 4


async def test_nothing_is_sent_again(tmp_path: Path):
    seen: list[str] = []

    async def break_every_other(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            name, body = await read_request(reader)
            seen.append(name)
            if len(seen) % 2:
                return
            writer.write(response(answer_of(name, body)))

    async with server(break_every_other) as address:
        _, records = await probe(tmp_path, address, limit=40)
    assert len(seen) == len(set(seen)) == len(records) == 40


async def test_held_requests_and_those_of_the_resolver_are_distinguished(tmp_path: Path):
    async def resolver(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        name, body = await read_request(reader)
        more = "Server-Timing: elasti-hold;dur=1500.0\r\nConnection: close\r\n"
        writer.write(response(answer_of(name, body), more=more))

    async with server(resolver) as address:
        _, records = await probe(tmp_path, address)
    assert {(record.held, record.via_resolver) for record in records} == {(1.5, True)}
    assert not any(record.reused for record in records), "the server said that it closes"


async def test_the_apps_books_agree_with_the_answers(tmp_path: Path, unused_tcp_port: int):
    books = tmp_path / "books"
    books.mkdir()
    variables = {"POD_IP": "127.0.0.1", "POD_NAME": "web-1", "PORT": str(unused_tcp_port)}
    more = {"START_SECONDS": "0", "LINGER_SECONDS": "0.5", "EXECUTED": str(books)}
    app = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.e2e.app"),
        env={**os.environ, **variables, **more},
        stdout=subprocess.PIPE,
        cwd=ROOT,
    )
    try:
        assert app.stdout is not None
        assert b"listening" in await app.stdout.readline()
        summary, records = await probe(tmp_path, ("127.0.0.1", unused_tcp_port), limit=40)
    finally:
        app.terminate()
        await app.communicate()
    assert app.returncode == 0
    account = settle(records, [summary], read_executed(books))
    assert (account.sent, account.lost_in_all) == (40, 0)
