"""Clients that people use, against a server that people use, with the data path between."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import shutil
import sys
from pathlib import Path

import pytest
import websockets
from tests.elasti.resolver.proxy.rig import Rig, eventually
from tests.kubeloop.certs import make_authority
from websockets.asyncio.client import connect

from elasti.resolver.proxy.ports import PortProtocol
from elasti.resolver.proxy.target import Address, Refusal

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl"),
]


@contextlib.asynccontextmanager
async def web_pod(*arguments: str):
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.elasti.resolver.proxy.web_pod", *arguments,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdin is not None
    try:
        yield Address("127.0.0.1", int(await process.stdout.readline()))
    finally:
        process.stdin.close()
        await process.wait()


@pytest.fixture(params=["at once", "held"])
async def web(rig, request):
    """A web server that answers already, or that everybody waits for first."""
    async with web_pod() as address:
        if request.param == "at once":
            rig.target.pods.append(address)
            yield address
        else:
            release = asyncio.create_task(release_when_held(rig, address))
            yield address
            await release


async def release_when_held(rig, address: Address) -> None:
    await rig.held()
    rig.target.release(address)


async def run(program: str, *arguments: str, stdin: bytes = b"", ok: bool = True) -> bytes:
    process = await asyncio.create_subprocess_exec(
        program, *arguments,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    async with asyncio.timeout(50):
        output, errors = await process.communicate(stdin)
    assert (process.returncode == 0) is ok, errors.decode()
    return output


async def curl(rig, path: str, *arguments: str, **options) -> bytes:
    return await run(
        "curl", "-sS", "-m", "40", *arguments, f"http://127.0.0.1:{rig.port}{path}", **options
    )


@pytest.mark.parametrize("version", ["--http1.1", "--http1.0"])
async def test_curl_gets(rig, web, version):
    assert await curl(rig, "/x", version) == b"GET /x 0\n"


async def test_curl_posts_with_expect(rig, web, tmp_path):
    answer = await curl(rig, "/x", "-H", "Expect: 100-continue", "-d", "x" * 5000, "-v")
    assert answer == b"POST /x 5000\n"


async def test_curl_asks_for_the_head_alone(rig, web):
    assert b"200 OK" in await curl(rig, "/x", "-I")


async def test_curl_reuses_its_connection(rig, web):
    url = f"http://127.0.0.1:{rig.port}"
    output = await run("curl", "-sS", "-m", "20", *(f"{url}/{n}" for n in range(50)))
    assert output == b"".join(b"GET /%d 0\n" % n for n in range(50))
    assert rig.statistics.requests == 50


@pytest.mark.parametrize("query", ["", "?chunked"])
async def test_curl_downloads_a_hundred_megabytes(rig, web, tmp_path, query):
    target = tmp_path / "down"
    await curl(rig, f"/down/104857600{query}", "-o", str(target))
    expected = hashlib.sha256(bytes(range(256)) * 409_600).hexdigest()
    assert hashlib.sha256(target.read_bytes()).hexdigest() == expected


@pytest.mark.parametrize("fields", [(), ("-H", "Transfer-Encoding: chunked")])
async def test_curl_uploads_a_hundred_megabytes(rig, web, tmp_path, fields):
    source = tmp_path / "up"
    source.write_bytes(bytes(range(256)) * 409_600)
    answer = await curl(rig, "/up", "-T", str(source), *fields)
    expected = hashlib.sha256(source.read_bytes()).hexdigest()
    assert answer == b"104857600 " + expected.encode() + b"\n"


async def test_curl_that_is_interrupted_frees_everything(rig, web):
    await curl(rig, "/down/10000000000", "-m", "1", "-o", "/dev/null", ok=False)
    await eventually(lambda: rig.statistics.connections == 0)
    assert rig.statistics.active == 0


async def test_curl_that_gives_up_while_held_leaves_the_queue(rig):
    await curl(rig, "/", "-m", "1", ok=False)
    await rig.held(0)
    await eventually(lambda: rig.statistics.connections == 0)


async def test_curl_hears_why_it_was_not_served(rig):
    asking = asyncio.create_task(curl(rig, "/", "-i"))
    await rig.held()
    rig.target.refuse_all(Refusal.TIMEOUT)
    answer = await asking
    assert b"504" in answer
    assert b"Retry-After: 5" in answer
    assert b"did not wake in time" in answer


async def test_curl_hears_it_over_h2_too(rig):
    asking = asyncio.create_task(curl(rig, "/", "-i", "--http2-prior-knowledge"))
    await rig.held()
    rig.target.refuse_all(Refusal.TIMEOUT)
    answer = await asking
    assert b"HTTP/2 504" in answer
    assert b"did not wake in time" in answer


@pytest.mark.skipif(shutil.which("nginx") is None, reason="needs nginx")
@pytest.mark.parametrize("held", [False, True])
async def test_curl_speaks_h2_with_prior_knowledge(rig, tmp_path, held):
    async with nginx(tmp_path) as address, asyncio.TaskGroup() as tasks:
        if held:
            tasks.create_task(release_when_held(rig, address))
        else:
            rig.target.pods.append(address)
        # One request a connection: curl 7.88 does not reuse such a connection well, proxy or not.
        options = ("--http2-prior-knowledge", "-w", "%{http_version}\n")
        assert await curl(rig, "/x", *options) == b"hello\n2\n"
        assert await curl(rig, "/big", *options, "-o", str(tmp_path / "got")) == b"2\n"
        assert (tmp_path / "got").read_bytes() == (tmp_path / "big").read_bytes()


@contextlib.asynccontextmanager
async def nginx(folder: Path):
    """An nginx that speaks h2c, which Debian's can since 1.9.5 (`http2` on a plain port)."""
    (folder / "big").write_bytes(b"x" * 5_000_000)
    port = 20_000 + hash(folder) % 10_000
    paths = "".join(
        f"{kind}_temp_path {folder}/{kind};"
        for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (folder / "nginx.conf").write_text(
        f"user root; daemon off; worker_processes 1; pid {folder}/pid; error_log {folder}/log;"
        f"events {{}} http {{ access_log off; {paths} server {{ listen 127.0.0.1:{port} http2;"
        f' root {folder}; location / {{ return 200 "hello\\n"; }} location = /big {{}} }} }}'
    )
    process = await asyncio.create_subprocess_exec(
        "nginx", "-c", str(folder / "nginx.conf"), stderr=asyncio.subprocess.DEVNULL
    )
    try:
        async with asyncio.timeout(10):
            while True:
                with contextlib.suppress(OSError):
                    _, writer = await asyncio.open_connection("127.0.0.1", port)
                    writer.close()
                    await writer.wait_closed()
                    break
                await asyncio.sleep(0.02)
        yield Address("127.0.0.1", port)
    finally:
        process.terminate()
        await process.wait()


async def test_server_sent_events_arrive(rig, web):
    assert await curl(rig, "/events", "-N") == b"".join(b"data: %d\n\n" % n for n in range(5))


async def test_a_websocket_works(rig, web):
    async with connect(f"ws://127.0.0.1:{rig.port}/echo", max_size=None) as socket:
        for number in range(50):
            await socket.send(f"message {number}")
            assert await socket.recv() == f"message {number}"
        big = bytes(5_000_000)
        await socket.send(big)
        assert await socket.recv() == big
        await socket.ping()
        assert rig.statistics.tunnels == 1
    await eventually(lambda: rig.statistics.tunnels == 0)


async def test_a_websocket_that_is_refused_says_so(rig, web):
    with pytest.raises(websockets.exceptions.InvalidStatus) as caught:
        await connect(f"ws://127.0.0.1:{rig.port}/elsewhere")
    assert caught.value.response.status_code == 200


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
@pytest.mark.parametrize("protocol", [PortProtocol.TLS, PortProtocol.DETECT])
async def test_tls_passes_through_unread(tmp_path, protocol):
    authority = make_authority()
    certificate, key = authority.server("web.example").write(tmp_path, "web")
    ca = tmp_path / "ca"
    ca.write_bytes(authority.pem)
    async with Rig(protocol=protocol) as rig, web_pod(str(certificate), str(key)) as address:
        release = asyncio.create_task(release_when_held(rig, address))
        answer = await run(
            "openssl", "s_client", "-quiet", "-verify_return_error", "-CAfile", str(ca),
            "-servername", "web.example", "-connect", f"127.0.0.1:{rig.port}",
            stdin=b"GET /x HTTP/1.1\r\nHost: web.example\r\nConnection: close\r\n\r\n",
        )  # fmt: skip
        assert answer.endswith(b"GET /x 0\n")
        await release
