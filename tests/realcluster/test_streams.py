"""Logs, commands and forwarded ports of real containers: kubeloop's bytes and codes are kubectl's."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import pty
import re
import subprocess
import urllib.request
from collections.abc import AsyncIterator, Sequence

import pytest

from hack.realcluster.images import APP
from kubeloop.client import ApiError, BadRequest, Client, Forbidden, NotFound, TransportError
from kubeloop.client.auth.identity import Impersonation
from tests.realcluster.rig import Rig

pytestmark = [pytest.mark.realcluster, pytest.mark.timeout(120)]

NAMESPACE = "streams"
ID = re.compile(r"[0-9a-f]{64}")
SERVER = "echo one; echo zwei ü; printf three; echo; exec python3 -u -m http.server 8080"
CONFINED = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def container(name: str, *command: str, **more: object) -> dict[str, object]:
    common = {"name": name, "image": APP, "securityContext": CONFINED}
    return {**common, "command": command, **more}


def pod(name: str, *containers: dict[str, object]) -> dict[str, object]:
    spec = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 0,
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": containers,
    }
    metadata = {"name": name, "namespace": NAMESPACE}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


@pytest.fixture(scope="module")
def pods(realcluster: Rig) -> Rig:
    """One pod of a server and of programs to attach to, and one that cannot start."""
    realcluster.namespace(NAMESPACE)
    once = {"stdin": True, "stdinOnce": True}
    attached = [container(name, "cat", **once) for name in ("cat-1", "cat-2")]
    quiet = container("quiet", "cat", stdin=True)
    realcluster.apply(
        pod("web", container("app", "sh", "-c", SERVER), *attached, quiet),
        pod("stuck", container("app", "true", image="localhost/none:1")),
    )
    ready = ("wait", "pod/web", "--for=condition=Ready", "--timeout=60s")
    realcluster.kubectl(f"--namespace={NAMESPACE}", *ready)
    return realcluster


@pytest.fixture
async def client(pods: Rig) -> AsyncIterator[Client]:
    async with Client.from_kubeconfig(pods.state.kubeconfig) as client:
        yield client


async def kubectl(rig: Rig, *words: str, stdin: bytes = b"") -> tuple[bytes, str, int]:
    """Return what kubectl printed, its complaints, and its exit code."""
    command = [rig._kubectl, f"--kubeconfig={rig.state.kubeconfig}", f"--namespace={NAMESPACE}"]
    done = await asyncio.to_thread(
        subprocess.run, [*command, *words], input=stdin, capture_output=True
    )
    return done.stdout, done.stderr.decode(), done.returncode


async def both(
    rig: Rig, client: Client, command: Sequence[str], stdin: bytes = b""
) -> tuple[bytes, bytes, int]:
    """Run a command by kubectl and by kubeloop; what both give."""
    flags = ["--stdin"] if stdin else []
    theirs = await kubectl(rig, "exec", *flags, "web", "-c", "app", "--", *command, stdin=stdin)
    ours = await client.run(
        NAMESPACE, "web", command, container="app", stdin=stdin, max_output=64 * 1024 * 1024
    )
    assert (ours.stdout, ours.code) == (theirs[0], theirs[2])
    note = f"command terminated with exit code {ours.code}\n" if ours.code else ""
    assert ours.stderr.decode() + note == theirs[1]
    return ours.stdout, ours.stderr, ours.code


async def test_commands_give_what_kubectl_gives(pods: Rig, client: Client) -> None:
    binary = os.urandom(1024 * 1024)
    assert await both(pods, client, ["cat"], binary) == (binary, b"", 0)
    apart = ["sh", "-c", "echo out; echo err >&2; exit 7"]
    assert await both(pods, client, apart) == (b"out\n", b"err\n", 7)
    large, _, _ = await both(pods, client, ["head", "-c", "20971520", "/dev/zero"])
    assert len(large) == 20 * 1024 * 1024


async def test_slow_reader_gets_everything(client: Client) -> None:
    words = ["head", "-c", "20971520", "/dev/zero"]
    async with client.exec(NAMESPACE, "web", words, container="app") as process:
        read = len(await process.stdout.readexactly(1))
        await asyncio.sleep(1)  # long enough for all of it, if nothing held it back
        held = len(process.stdout._buffer)  # type: ignore[attr-defined]
        while data := await process.stdout.read(100_000):
            read += len(data)
        assert (read, await process.wait()) == (20 * 1024 * 1024, 0)
    assert held < 300_000


async def test_errors_are_those_that_kubectl_reports(pods: Rig, client: Client) -> None:
    for command, name, where, kind in (
        ("true", "web", "none", BadRequest),
        ("no-such-program", "web", "app", ApiError),
        ("true", "none", "app", NotFound),
    ):
        with pytest.raises(kind) as caught:
            await client.run(NAMESPACE, name, [command], container=where)
        _, complaint, code = await kubectl(pods, "exec", name, "-c", where, "--", command)
        assert code
        assert ID.sub("", str(caught.value)) in ID.sub("", complaint)
    someone = dataclasses.replace(client.config, impersonate=Impersonation(user="someone"))
    async with Client(someone) as stranger:
        with pytest.raises(Forbidden, match=r'"someone" cannot .* resource "pods/exec"'):
            await stranger.run(NAMESPACE, "web", ["true"], container="app")


async def test_terminal_is_one_and_has_a_size(pods: Rig, client: Client) -> None:
    words = ["sh", "-c", "read go; stty size; echo err >&2; test -t 0"]
    # A kubelet sets the size beside what it does for stdin.
    wait = 'n=0; until [ "$(stty size)" = "22 111" ] || [ $((n+=1)) -gt 100 ]; do sleep 0.1; done;'
    sized = [*words[:2], f"{wait} {words[2]}"]
    async with client.exec(NAMESPACE, "web", sized, container="app", stdin=True, tty=True) as ours:
        await ours.resize(columns=111, rows=22)
        await ours.stdin.write(b"\n")
        printed = await ours.stdout.read()
        assert await ours.wait() == 0
    assert printed.endswith(b"22 111\r\nerr\r\n")

    def by_kubectl() -> bytes:
        master, slave = pty.openpty()
        with contextlib.closing(os.fdopen(master, "wb", 0)) as terminal:
            os.write(slave, b"")
            command = [pods._kubectl, f"--kubeconfig={pods.state.kubeconfig}", "exec", "-it"]
            command += [f"--namespace={NAMESPACE}", "web", "-c", "app", "--", *words]
            with subprocess.Popen(command, stdin=slave, stdout=subprocess.PIPE) as process:
                os.close(slave)
                terminal.write(b"\n")
                assert process.stdout is not None
                return process.stdout.read()

    theirs = await asyncio.to_thread(by_kubectl)
    assert re.sub(rb"\d+ \d+", b"", printed) == re.sub(rb"\d+ \d+", b"", theirs)


async def test_attached_program_answers_as_it_answers_kubectl(pods: Rig, client: Client) -> None:
    data = b"".join(b"line %d\n" % number for number in range(5000))
    theirs = await kubectl(pods, "attach", "--stdin", "--quiet", "web", "-c", "cat-1", stdin=data)
    async with client.attach(NAMESPACE, "web", container="cat-2", stdin=True) as process:
        _, ours = await asyncio.gather(feed(process, data), process.stdout.read())
        assert await process.wait() == 0
    assert ours == theirs[0] == data


async def feed(process, data: bytes) -> None:
    await process.stdin.write(data)
    await process.stdin.close()


@pytest.mark.parametrize(
    ("options", "flags"),
    [
        ({}, []),
        ({"tail_lines": 2}, ["--tail=2"]),
        ({"timestamps": True, "since_seconds": 3600}, ["--timestamps", "--since=1h"]),
    ],
)
async def test_logs_are_what_kubectl_prints(pods, client, options, flags) -> None:
    printed, _, _ = await kubectl(pods, "logs", "web", "-c", "app", *flags)
    lines = [line async for line in client.logs(NAMESPACE, "web", container="app", **options)]
    assert "".join(f"{line}\n" for line in lines) == printed.decode()
    assert "zwei ü" in printed.decode() or "tail_lines" in options


async def test_log_of_quiet_container_is_followed_until_it_speaks(client: Client) -> None:
    following = client.logs(NAMESPACE, "web", container="quiet", follow=True)
    first = asyncio.ensure_future(anext(following))
    await asyncio.sleep(0.5)
    assert not first.done()
    async with client.attach(NAMESPACE, "web", container="quiet", stdin=True) as process:
        await process.stdin.write(b"at last\n")
        assert await asyncio.wait_for(first, 20) == "at last"


async def test_logs_are_refused_as_kubectl_is(pods: Rig, client: Client) -> None:
    for name, previous in (("stuck", False), ("web", True)):
        flags = ["--previous"] if previous else []
        _, complaint, code = await kubectl(pods, "logs", name, "-c", "app", *flags)
        assert code
        with pytest.raises(BadRequest) as caught:
            await anext(client.logs(NAMESPACE, name, container="app", previous=previous))
        assert str(caught.value) in complaint
    with pytest.raises(BadRequest, match=r"a container name must be specified.*cat-1"):
        await anext(client.logs(NAMESPACE, "web"))


async def test_forwarded_port_serves_what_kubectl_forwards(pods: Rig, client: Client) -> None:
    async with client.port_forward(NAMESPACE, "web", 8080) as (reader, writer):
        await writer.write(b"GET /nothing HTTP/1.0\r\n\r\n")
        answer = await reader.read()
    assert answer.startswith(b"HTTP/1.0 404 ")
    async with client.port_forward_listener(NAMESPACE, "web", 8080) as port:
        ours = await asyncio.to_thread(fetch, port)
    command = [pods._kubectl, f"--kubeconfig={pods.state.kubeconfig}", "port-forward"]
    command += [f"--namespace={NAMESPACE}", "web", ":8080"]
    forwarding = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    try:
        assert forwarding.stdout is not None
        line = await forwarding.stdout.readline()
        theirs = await asyncio.to_thread(fetch, int(re.findall(rb":(\d+) ->", line)[0]))
    finally:
        forwarding.terminate()
        await forwarding.wait()
    assert ours == theirs
    with pytest.raises(TransportError, match="connection refused"):
        async with client.port_forward(NAMESPACE, "web", 8081) as (reader, _):
            await reader.read()


def fetch(port: int) -> bytes:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=10) as answer:
        return bytes(answer.read())
