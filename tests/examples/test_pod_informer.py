"""The walk-through as its reader runs it: a process, a kubeconfig, a server, Ctrl-C."""

from __future__ import annotations

import signal
from collections import Counter

from tests.testing.scripted_server import ScriptedServer

from tests.examples.processes import next_line, started, write_kubeconfig

EXAMPLE = "pod_informer.py"


def pod(name: str, version: str) -> dict[str, object]:
    meta = {"name": name, "namespace": "default", "uid": name, "resourceVersion": version}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta}


def bookmark(version: str) -> dict[str, object]:
    annotations = {"k8s.io/initial-events-end": "true"}
    meta = {"resourceVersion": version, "annotations": annotations}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta}


async def test_the_walk_through_says_what_happens_to_pods_and_stops_on_ctrl_c(tmp_path):
    async with ScriptedServer() as server:
        write_kubeconfig(tmp_path / "config", server.url)
        watch = server.expect_watch("/api/v1/pods")
        async with started(EXAMPLE, tmp_path / "config") as process:
            await watch.event("ADDED", pod("web", "5"))
            await watch.event("BOOKMARK", bookmark("5"))
            first = {await next_line(process), await next_line(process), await next_line(process)}
            assert first == {
                "handleAdd is called for Pod (key: default/web)",
                "cache is synced",
                "run",
            }
            await watch.event("ADDED", pod("nginx", "6"))
            assert await next_line(process) == "handleAdd is called for Pod (key: default/nginx)"
            await watch.event("MODIFIED", pod("nginx", "7"))
            assert await next_line(process) == "handleUpdate is called for Pod (key: default/nginx)"
            await watch.event("DELETED", pod("nginx", "8"))
            assert await next_line(process) == "handleDelete is called for Pod (key: default/nginx)"
            process.send_signal(signal.SIGINT)
            assert await next_line(process) == "stopped"
            assert await process.wait() == 0


HASTY = """
import asyncio, logging, runpy, sys
example = runpy.run_path(sys.argv[1])
assert (example["RESYNC"], example["PERIOD"]) == (30.0, 10.0)
example["main"].__globals__.update(RESYNC=0.4, PERIOD=0.2)
logging.basicConfig(stream=sys.stdout, format="%(asctime)s %(message)s", level=logging.INFO)
asyncio.run(example["main"]())
"""


async def test_it_runs_every_period_and_sees_each_pod_again_at_every_resync(tmp_path):
    """The example's own 10 and 30 seconds, and the same program with shorter ones."""
    async with ScriptedServer() as server:
        write_kubeconfig(tmp_path / "config", server.url)
        watch = server.expect_watch("/api/v1/pods")
        async with started(EXAMPLE, tmp_path / "config", wrapper=HASTY) as process:
            await watch.event("ADDED", pod("web", "5"))
            await watch.event("BOOKMARK", bookmark("5"))
            seen: Counter[str] = Counter()
            while seen["run"] < 3 or seen["handleUpdate is called for Pod (key: default/web)"] < 2:
                seen[await next_line(process)] += 1
            process.kill()


async def test_a_server_that_is_not_there_is_named_and_waited_for_until_ctrl_c(tmp_path):
    write_kubeconfig(tmp_path / "config", "http://127.0.0.1:9")
    async with started(EXAMPLE, tmp_path / "config") as process:
        assert "127.0.0.1:9" in await next_line(process)
        process.send_signal(signal.SIGINT)
        output, errors = await process.communicate()
        assert b"Traceback" not in output + errors
        assert process.returncode == 0


async def test_a_kubeconfig_that_cannot_be_used_ends_it_with_one_line(tmp_path):
    write_kubeconfig(tmp_path / "config", "not a url")
    async with started(EXAMPLE, tmp_path / "config") as process:
        _, errors = await process.communicate()
        (line,) = errors.decode().splitlines()
        assert "not a url" in line
        assert str(tmp_path / "config") in line
        assert process.returncode == 1
