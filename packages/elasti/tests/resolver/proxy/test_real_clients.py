"""Clients that people use, against a server that people use, with the data path between."""

from __future__ import annotations

import asyncio
import hashlib

import aiohttp
import pytest
from tests.certs import make_authority
from tests.resolver.proxy.real_pods import needs, nginx, release_when_held, run, web_pod
from tests.resolver.proxy.rig import HOST, Rig

from elasti.resolver.proxy.upstream.interface import PortProtocol, Refusal
from tests.waiting import eventually

pytestmark = [pytest.mark.slow, needs("curl")]


async def curl(rig, path: str, *arguments: str, **options) -> bytes:
    return await run(
        "curl", "-sS", "-m", "40", *arguments, f"http://{HOST}:{rig.port}{path}", **options
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
    url = f"http://{HOST}:{rig.port}"
    output = await run("curl", "-sS", "-m", "20", *(f"{url}/{n}" for n in range(50)))
    assert output == b"".join(b"GET /%d 0\n" % n for n in range(50))
    assert rig.statistics.requests == 50


@pytest.mark.parametrize("query", ["", "?chunked"])
async def test_curl_downloads_32_megabytes(rig, web, tmp_path, query):
    target = tmp_path / "down"
    await curl(rig, f"/down/33554432{query}", "-o", str(target))
    expected = hashlib.sha256(bytes(range(256)) * 131_072).hexdigest()
    assert hashlib.sha256(target.read_bytes()).hexdigest() == expected


@pytest.mark.parametrize("fields", [(), ("-H", "Transfer-Encoding: chunked")])
async def test_curl_uploads_32_megabytes(rig, web, tmp_path, fields):
    source = tmp_path / "up"
    source.write_bytes(bytes(range(256)) * 131_072)
    answer = await curl(rig, "/up", "-T", str(source), *fields)
    expected = hashlib.sha256(source.read_bytes()).hexdigest()
    assert answer == b"33554432 " + expected.encode() + b"\n"


async def test_curl_that_is_interrupted_frees_everything(rig, web):
    await curl(rig, "/down/10000000000", "-m", "1", "-o", "/dev/null", ok=False)
    await eventually(lambda: rig.statistics.connections == 0)
    assert rig.statistics.active == 0


async def test_curl_that_is_interrupted_while_it_uploads_frees_everything(rig, web, tmp_path):
    source = tmp_path / "up"
    with source.open("wb") as file:
        file.truncate(10_000_000_000)
    await curl(rig, "/up", "-m", "1", "-T", str(source), ok=False)
    await eventually(lambda: rig.statistics.connections == 0)
    assert rig.statistics.active == 0


async def test_curl_that_gives_up_while_held_leaves_the_queue(rig):
    await curl(rig, "/", "-m", "1", ok=False)
    await rig.held(0)
    await eventually(lambda: rig.statistics.connections == 0)


async def test_curl_learns_why_it_was_not_served(rig):
    asking = asyncio.create_task(curl(rig, "/", "-i"))
    await rig.held()
    rig.upstream.refuse_all(Refusal.TIMEOUT)
    answer = await asking
    assert b"504" in answer
    assert b"Retry-After: 5" in answer
    assert b"did not wake in time" in answer


async def test_curl_learns_it_over_h2_too(rig):
    asking = asyncio.create_task(curl(rig, "/", "-i", "--http2-prior-knowledge"))
    await rig.held()
    rig.upstream.refuse_all(Refusal.TIMEOUT)
    answer = await asking
    assert b"HTTP/2 504" in answer
    assert b"did not wake in time" in answer


@needs("nginx")
@pytest.mark.parametrize("held", [False, True])
async def test_curl_speaks_h2_with_prior_knowledge(rig, tmp_path, held):
    size = 104_857_600
    async with nginx(tmp_path, big=size) as address, asyncio.TaskGroup() as tasks:
        if held:
            tasks.create_task(release_when_held(rig, address))
        else:
            rig.upstream.pods.append(address)
        # One request a connection: curl 7.88 does not reuse such a connection well, proxy or not.
        options = ("--http2-prior-knowledge", "-w", "%{http_version}\n")
        assert await curl(rig, "/x", *options) == b"hello\n2\n"
        assert await curl(rig, "/big", *options, "-o", str(tmp_path / "got")) == b"2\n"
        assert (tmp_path / "got").stat().st_size == size
        (tmp_path / "got").unlink()


async def test_server_sent_events_arrive(rig, web):
    assert await curl(rig, "/events", "-N") == b"".join(b"data: %d\n\n" % n for n in range(5))


async def test_an_event_arrives_before_the_next_is_sent(rig, web):
    """The server sends an event for each step that the client takes after the one before."""
    url, heard = f"http://{HOST}:{rig.port}", []
    async with aiohttp.ClientSession() as session:
        async with session.get(f"{url}/stepped", headers={"Accept": "text/event-stream"}) as stream:
            assert stream.content_type == "text/event-stream"
            async with asyncio.timeout(40):
                async for line in stream.content:
                    if line.startswith(b"data: "):
                        heard.append(int(line[6:]))
                        async with session.post(f"{url}/step"):
                            pass
    assert heard == list(range(5))


@needs("openssl")
@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize("protocol", [PortProtocol.TLS, PortProtocol.DETECT])
async def test_tls_passes_through_unread(tmp_path, protocol, held):
    authority = make_authority()
    certificate, key = authority.server("web.example").write(tmp_path, "web")
    ca = tmp_path / "ca"
    ca.write_bytes(authority.pem)
    async with (
        Rig(protocol=protocol) as rig,
        web_pod(str(certificate), str(key)) as address,
        asyncio.TaskGroup() as tasks,
    ):
        if held:
            tasks.create_task(release_when_held(rig, address))
        else:
            rig.upstream.pods.append(address)
        answer = await run(
            "openssl", "s_client", "-quiet", "-verify_return_error", "-CAfile", str(ca),
            "-servername", "web.example", "-connect", f"{HOST}:{rig.port}",
            stdin=b"GET /x HTTP/1.1\r\nHost: web.example\r\nConnection: close\r\n\r\n",
        )  # fmt: skip
        assert answer.endswith(b"GET /x 0\n")
