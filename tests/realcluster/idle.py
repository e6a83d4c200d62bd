"""Scenarios without a trigger: servers sleep by the bytes that real kubelets count for their pods."""

from __future__ import annotations

import asyncio
import dataclasses
import time

from kubeloop.objects.meta import JsonObject
from tests.realcluster.databases import Server, client, postgres, there
from tests.realcluster.nodes import NodeTrial

COOLDOWN = 60
_LONGEST = 8 * COOLDOWN
# How long conversations last, in seconds: longer than the cooldown.
_TALKS = {"short": 100, "full": 3 * COOLDOWN}
_NGINX = """
cat > /tmp/nginx.conf <<END
pid /tmp/nginx.pid; error_log stderr; events {}
http { access_log off; client_body_temp_path /tmp/a; proxy_temp_path /tmp/b; fastcgi_temp_path /tmp/c;
  uwsgi_temp_path /tmp/d; scgi_temp_path /tmp/e;
  server { listen 8080; location / { return 200 "hello from nginx"; } } }
END
exec nginx -c /tmp/nginx.conf -g "daemon off;"
"""
# Speaks for so many seconds: a message every five.
_SOCKET = """
import asyncio, sys, time, aiohttp

async def main():
    end = time.monotonic() + float(sys.argv[1])
    async with aiohttp.ClientSession() as session, session.ws_connect("http://socket:8080/") as there:
        while time.monotonic() < end:
            await there.send_str("twenty bytes of words")
            print((await there.receive(30)).data)
            await asyncio.sleep(5)

asyncio.run(main())
"""


def _http(every: int, path: str = "/") -> JsonObject:
    return {"httpGet": {"path": path, "port": 8080}, "periodSeconds": every}


def _servers() -> list[Server]:
    """Return the three, none with a metric of its own; nginx is probed every second."""
    ready = {"exec": {"command": ["sh", "-c", "pg_isready --host $(hostname -i) --quiet"]}}
    asked = "psql --host postgres --username app --tuples-only --no-align postgres --command"
    database = dataclasses.replace(postgres(ready), ask=f'{asked} "select 42"')
    cache = Server(
        name="redis",
        port=6379,
        command="exec redis-server --protected-mode no --save ''",
        probe={"tcpSocket": {"port": 6379}},
        ask="redis-cli -h redis echo 42",
        probe_every=10,
    )
    web = Server(
        name="nginx",
        port=8080,
        command=_NGINX,
        probe=_http(1),
        ask="curl -sS http://nginx:8080/",
        probe_every=1,
    )
    return [
        dataclasses.replace(server, cooldown=COOLDOWN)
        for server in (dataclasses.replace(database, probe_every=10), cache, web)
    ]


async def idle_servers(trial: NodeTrial) -> None:
    """nginx, PostgreSQL and Redis without metrics or triggers sleep, and wake for a client."""
    servers = _servers()
    for server in servers:
        await there(trial, server)
    slept = await asyncio.gather(*(_asleep(trial, server) for server in servers))
    for server, seconds in zip(servers, slept, strict=True):
        trial.notes.append(f"{server.name} slept {seconds:.0f} s after all three were there")
    for server, answer in zip(servers, ("42", "42", "hello from nginx"), strict=True):
        said = await client(trial, server.ask)
        assert said == answer, (server.name, said)


async def conversations(trial: NodeTrial) -> None:
    """A WebSocket with a message every 5 s and a psql session with a query every 10 s keep their app awake."""
    talk = _TALKS[trial.length.name]
    socket = Server(
        name="socket",
        port=8080,
        command="exec python3 echo.py",
        probe=_http(10, "/healthz"),
        ask=f"python3 -c '{_SOCKET}' {talk}",
        probe_every=10,
        cooldown=COOLDOWN,
    )
    asked = "psql --host postgres --username app --tuples-only --no-align postgres"
    queries = "while test $SECONDS -lt END; do echo select 42\\;; sleep 10; done"
    loop = queries.replace("END", str(talk))
    session = Server(
        name="postgres",
        port=5432,
        command=postgres({}).command,
        probe={"tcpSocket": {"port": 5432}},
        ask=f"bash -c '{loop}' | {asked}",
        probe_every=10,
        cooldown=COOLDOWN,
    )
    for server in (socket, session):
        await there(trial, server)
    answers = await asyncio.gather(*(client(trial, server.ask) for server in (socket, session)))
    for server, said, least in zip(
        (socket, session), answers, (talk // 6, talk // 12), strict=True
    ):
        assert len(said.splitlines()) >= least, (server.name, said)
        wakes = await trial.kubectl(
            "get", "elastiservice", server.name, "-o", "jsonpath={.status.usage.wakes}"
        )
        assert wakes in ("", "0"), (server.name, wakes)
        trial.notes.append(f"{server.name} stayed awake for {talk} s of conversation")
    for server in (socket, session):
        await _asleep(trial, server)


async def _asleep(trial: NodeTrial, server: Server) -> float:
    began, one = time.monotonic(), f"elastiservice/{server.name}"
    try:
        await trial.kubectl(
            "wait", one, "--for=jsonpath={.status.phase}=Asleep", f"--timeout={_LONGEST}s"
        )
    except AssertionError as error:
        status = await trial.kubectl("get", one, "-o", "jsonpath={.status}")
        raise AssertionError(f"{error}: {status}") from None
    return time.monotonic() - began
