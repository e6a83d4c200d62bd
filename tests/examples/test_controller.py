"""The controller as its reader runs it: a process, a kubeconfig, a server, Ctrl-C."""

from __future__ import annotations

import json
import signal
from typing import Any

from tests.testing.scripted_answers import WatchScript, refuse, reply
from tests.testing.scripted_server import ScriptedServer

from tests.examples.processes import next_line, started, write_kubeconfig

EXAMPLE = "controller.py"
TEAM = "/api/v1/namespaces/default/configmaps/team"


def namespace(version: str, team: str | None) -> dict[str, Any]:
    labels = {} if team is None else {"example.com/team": team}
    meta = {"name": "default", "uid": "1", "resourceVersion": version, "labels": labels}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": meta}


def config_map(version: str, team: str) -> dict[str, Any]:
    meta = {"name": "team", "namespace": "default", "uid": "2", "resourceVersion": version}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {"team": team}}


async def end_of_list(watch: WatchScript, kind: str) -> None:
    meta = {"resourceVersion": "5", "annotations": {"k8s.io/initial-events-end": "true"}}
    await watch.event("BOOKMARK", {"apiVersion": "v1", "kind": kind, "metadata": meta})


async def test_the_controller_writes_repairs_and_removes_the_config_map_and_stops_on_ctrl_c(
    tmp_path,
):
    async with ScriptedServer() as server:
        write_kubeconfig(tmp_path / "config", server.url)
        namespaces = server.expect_watch("/api/v1/namespaces")
        config_maps = server.expect_watch(
            "/api/v1/configmaps",
            query={"labelSelector": "app.kubernetes.io/managed-by=team-example"},
        )
        conflict = refuse(409, "Conflict", "somebody else was faster")
        server.expect("PATCH", TEAM, conflict, reply(config_map("6", "red")))
        async with started(EXAMPLE, tmp_path / "config") as process:
            await namespaces.event("ADDED", namespace("5", "red"))
            await end_of_list(namespaces, "Namespace")
            await end_of_list(config_maps, "ConfigMap")
            assert "somebody else was faster" in await next_line(process), "it is tried again"
            assert await next_line(process) == "namespace default belongs to team red"
            await config_maps.event("ADDED", config_map("6", "red"))

            # Both events ask for a look, and the object is gone at the first already: it may be written
            # twice before its return is seen.
            server.serve("PATCH", TEAM, reply(config_map("8", "red")))
            await config_maps.event("DELETED", config_map("7", "red"))
            assert await next_line(process) == "namespace default belongs to team red"
            await config_maps.event("ADDED", config_map("8", "red"))

            # Two watches have no order between them: the deletion may be seen to be due twice.
            server.serve("DELETE", TEAM, reply({"kind": "Status", "status": "Success"}))
            await namespaces.event("MODIFIED", namespace("9", None))
            while (said := await next_line(process)) != "namespace default belongs to nobody":
                assert said == "namespace default belongs to team red"

            process.send_signal(signal.SIGINT)
            output, errors = await process.communicate()
            assert b"Traceback" not in output + errors
            assert process.returncode == 0
        bodies = [json.loads(sent.body) for sent in server.requests if sent.method == "PATCH"]
    assert len(bodies) >= 3
    assert all(body["data"] == {"team": "red"} for body in bodies)


async def test_a_kubeconfig_that_cannot_be_used_ends_it_with_one_line(tmp_path):
    write_kubeconfig(tmp_path / "config", "not a url")
    async with started(EXAMPLE, tmp_path / "config") as process:
        _, errors = await process.communicate()
        (line,) = errors.decode().splitlines()
        assert "not a url" in line
        assert process.returncode == 1
