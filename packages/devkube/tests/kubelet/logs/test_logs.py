from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cluster_support import kubectls
from tests.kubelet.builders import EPOCH
from tests.kubelet.support import Cluster, is_ready, pod, shell, status_of

from devkube.apiserver.status import StatusError
from devkube.kubelet.logs.files import LogFile
from devkube.kubelet.logs.reading import (
    LogOptions,
    PodLogs,
    choose_container,
    read_log,
    read_log_options,
)
from kubeloop.aio.clock import SystemClock
from kubeloop.aio.tasks import finish
from kubeloop.client import NotFound
from tests.waiting import eventually


class Clock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> dt.datetime:
        return EPOCH + dt.timedelta(seconds=self.seconds)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def log(tmp_path: Path, clock: Clock):
    made = LogFile(tmp_path / "logs" / "0.log", clock=clock)
    yield made
    made.close()


async def text(log: LogFile, **options: Any) -> str:
    return b"".join([piece async for piece in read_log(log, LogOptions(**options))]).decode()


async def test_lines_are_kept_however_they_arrive(log: LogFile):
    for piece in (b"on", b"e\ntw", b"o\n", b"\nend"):
        log.feed(piece)
    assert await text(log) == "one\ntwo\n\n"
    log.close()
    assert await text(log) == "one\ntwo\n\nend"


@given(st.lists(st.binary(max_size=30), max_size=10))
async def test_what_was_printed_can_be_read(tmp_path_factory, pieces):
    path = tmp_path_factory.mktemp("log") / "0.log"
    log = LogFile(path, clock=Clock())
    for piece in pieces:
        log.feed(piece)
    log.close()
    found = b"".join([piece async for piece in read_log(log, LogOptions())])
    assert found == b"".join(pieces)


async def test_times_are_shown_when_asked_for(log: LogFile, clock: Clock):
    log.feed(b"one\n")
    clock.seconds = 1.5
    log.feed(b"two\n")
    assert await text(log, timestamps=True) == (
        "2030-01-01T00:00:00.000000000Z one\n2030-01-01T00:00:01.500000000Z two\n"
    )


async def test_a_long_line_stays_one_line(log: LogFile):
    log.feed(b"x" * 40_000 + b"\nend\n")
    shown = await text(log, timestamps=True)
    assert [len(line) for line in shown.splitlines()] == [40_000 + 31, 3 + 31]


async def test_the_last_lines_and_those_since_a_time(log: LogFile, clock: Clock):
    for second in range(5):
        clock.seconds = second
        log.feed(f"{second}\n".encode())
    assert await text(log, tail=2) == "3\n4\n"
    assert await text(log, tail=0) == ""
    assert await text(log, since=EPOCH + dt.timedelta(seconds=3)) == "3\n4\n"


async def test_a_reader_that_follows_misses_nothing_and_ends_with_the_log(log: LogFile):
    log.feed(b"before\n")
    found: list[bytes] = []

    async def follow() -> None:
        found.extend([piece async for piece in read_log(log, LogOptions(follow=True))])

    reader = asyncio.create_task(follow())
    for number in range(60):
        log.feed(f"{number:03}\n".encode())
        await asyncio.sleep(0)
    log.feed(b"last")
    log.close()
    await asyncio.wait_for(reader, 5)
    expected = "before\n" + "".join(f"{n:03}\n" for n in range(60)) + "last"
    assert b"".join(found).decode() == expected


async def test_a_reader_that_follows_waits_without_asking(log: LogFile):
    reader = asyncio.create_task(text(log, follow=True, tail=0))
    await eventually(lambda: log._waiting, "a reader that waits", every=0)
    assert len(log._waiting) == 1
    assert not reader.done()
    await finish([reader])
    assert not log._waiting


def test_queries_are_read_and_mistakes_are_named():
    now = EPOCH
    query = {
        "follow": "true",
        "tailLines": "10",
        "sinceSeconds": "60",
        "timestamps": "true",
    }
    assert read_log_options(query, now=now) == LogOptions(
        follow=True, tail=10, since=now - dt.timedelta(seconds=60), timestamps=True
    )
    since = read_log_options({"sinceTime": "2029-01-01T00:00:00Z"}, now=now).since
    assert since == dt.datetime(2029, 1, 1, tzinfo=dt.UTC)
    for bad, name in (
        ({"tailLines": "-1"}, "tailLines"),
        ({"sinceTime": "yesterday"}, "sinceTime"),
        ({"sinceTime": "2029-01-01T00:00:00Z", "sinceSeconds": "1"}, "at most one"),
    ):
        with pytest.raises(StatusError, match=name):
            read_log_options(bad, now=now)


def test_the_container_must_be_named_if_there_are_several():
    one = pod(shell("", name="a"))
    assert choose_container(one, "") == "a"
    two = pod(shell("", name="a"), shell("", name="b"), initContainers=[shell("", name="i")])
    assert choose_container(two, "i") == "i"
    message = (
        "a container name must be specified for pod web, choose one of: \\[a b\\]"
        " or one of the init containers: \\[i\\]"
    )
    with pytest.raises(StatusError, match=message):
        choose_container(two, "")
    with pytest.raises(StatusError, match="container z is not valid for pod web"):
        choose_container(two, "z")


# Through kubectl.


@contextlib.asynccontextmanager
async def kubectl_logs(cluster: Cluster) -> AsyncIterator[Any]:
    core = cluster.server.core

    def find(namespace: str, name: str) -> Any:
        record = core.store.collection("/pods").get(f"{namespace}/{name}")
        return record.decode() if record is not None else None

    logs = PodLogs(
        find_pod=find,
        node=lambda name: cluster.kubelet.worker if name == cluster.kubelet.node_name else None,
        clock=SystemClock(),
    )
    core.streams["pods", "log"] = logs.answer

    async def kubectl(*arguments: str) -> tuple[int, str]:
        process = await asyncio.create_subprocess_exec(
            kubectls()[0],
            f"--kubeconfig={cluster.directory / 'kubeconfig'}",
            "logs",
            *arguments,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        output, _ = await asyncio.wait_for(process.communicate(), 20)
        assert process.returncode is not None
        return process.returncode, output.decode()

    yield kubectl


@pytest.mark.slow
@pytest.mark.skipif(not kubectls(), reason="no kubectl: make controlplane builds one")
async def test_kubectl_logs_follow_and_previous(cluster: Cluster):
    script = "echo one; echo two; until [ -e {mark} ]; do sleep 0.02; done; echo three; exit 1"
    mark = cluster.directory / "go"
    async with kubectl_logs(cluster) as kubectl:
        await cluster.create(pod(shell(script.format(mark=mark)), shell("sleep 60", name="other")))
        await cluster.until(is_ready)
        assert await kubectl("web", "-c", "main") == (0, "one\ntwo\n")
        assert await kubectl("web", "-c", "main", "--tail=1") == (0, "two\n")
        assert await kubectl("web", "-c", "main", "--since=10m") == (0, "one\ntwo\n")
        code, stamped = await kubectl("web", "-c", "main", "--timestamps")
        assert (code, stamped.splitlines()[0][30:]) == (0, " one")
        follower = asyncio.create_task(kubectl("web", "-c", "main", "-f"))
        code, refused = await kubectl("web", "-c", "main", "--previous")
        assert code == 1
        assert 'previous terminated container "main" in pod "web" not found' in refused
        mark.touch()
        assert await follower == (0, "one\ntwo\nthree\n")
        await cluster.until(lambda p: status_of(p)["restartCount"] >= 1)
        assert await kubectl("web", "-c", "main", "--previous") == (0, "one\ntwo\nthree\n")
        ours = cluster.client.logs("default", "web", container="main", previous=True)
        assert [line async for line in ours] == ["one", "two", "three"]
        code, refused = await kubectl("web", "-c", "nope")
        assert "container nope is not valid for pod web" in refused
        code, refused = await kubectl("none")
        assert 'pods "none" not found' in refused
        with pytest.raises(NotFound, match='pods "none" not found'):
            await anext(cluster.client.logs("default", "none"))


@pytest.mark.slow
@pytest.mark.skipif(not kubectls(), reason="no kubectl: make controlplane builds one")
async def test_kubectl_logs_of_a_waiting_container_gives_the_reason(cluster: Cluster):
    async with kubectl_logs(cluster) as kubectl:
        await cluster.create(pod({"name": "main", "image": "nginx:1"}))
        await cluster.until(lambda p: status_of(p)["state"].get("waiting", {}).get("message"))
        code, refused = await kubectl("web")
        assert code == 1
        assert (
            'container "main" in pod "web" is waiting to start: CreateContainerConfigError'
            in refused
        )
