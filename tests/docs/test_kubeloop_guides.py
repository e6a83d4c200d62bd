"""kubeloop's guides do what they say: programs and functions run, test files pass as they stand."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.client.pod_server import SUCCESS, Peer, PodServer, echo, web_page
from tests.webhook.reviews import patch_of, review

import kubeloop
import kubeloop.controller
import kubeloop.operator
import kubeloop.webhook
from kubeloop import Client, SharedInformerFactory
from kubeloop.controller import Manager
from kubeloop.operator import make_manager, running
from kubeloop.testing.fake_client import FakeClient
from tests.docs.pages import ROOT, Block, blocks, named
from tests.waiting import eventually

CONTAINERS = {"errors", "dump", "sort", "status_line", "page"}
PYTHON = [block for block in blocks("python") if "/adr/" not in block.where]
COOKBOOK = "docs/kubeloop/cookbook.md"
PROGRAMS = [
    block
    for block in PYTHON
    if block.text.endswith("asyncio.run(main())\n") and block.page != COOKBOOK
]
TUTORIAL = "docs/guide/controllers.md"
# What is neither a program, nor a module whose functions a test here calls, nor a piece of the tutorial's file.
RUN_ELSEWHERE = {
    "packages/devkube/README.md": "packages/devkube/tests/test_readme.py",
    "docs/howto/notifications.md": "packages/elasti/tests/operator/report/test_notifications.py",
}


def objects() -> list[dict[str, Any]]:
    pod = {
        "metadata": {"name": "web-0", "labels": {"app": "web"}, "uid": "u"},
        "spec": {"nodeName": "worker-1", "containers": [{"name": "web", "image": "web:1"}]},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
    }
    return [
        {"apiVersion": "v1", "kind": "Pod", **pod},
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": {}},
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "settings", "labels": {"old": "1"}},
        },
    ]


async def container(peer: Peer) -> None:
    """A container that echoes its input, dumps, and serves a page."""
    if "ports" in peer.request.query:
        await web_page(peer)
    elif "stdin" in peer.request.query:
        await echo(peer)
    else:
        await peer.send(1, b"-- a dump")
        await peer.status(SUCCESS)


def test_every_block_is_run_by_a_test() -> None:
    pages = {block.page for block in PYTHON if block not in PROGRAMS}
    modules = {
        f"docs/kubeloop/{name}.md"
        for name in (
            "client",
            "cookbook",
            "index",
            "kinds",
            "operator",
            "reference",
            "testing",
            "webhooks",
        )
    }
    assert pages - modules - RUN_ELSEWHERE.keys() == {TUTORIAL, "docs/guide/informers.md"}


def executed(text: str) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "block"}
    exec(compile(text, "block", "exec", dont_inherit=True), names)
    return names


@named(PROGRAMS)
async def test_a_program_runs(
    block: Block,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    client = FakeClient(*objects())
    monkeypatch.setattr(Client, "from_env", lambda: client)
    monkeypatch.chdir(tmp_path)
    main = executed(block.text.replace("asyncio.run(main())", "..."))["main"]
    program = asyncio.create_task(main())

    def has_worked() -> bool:
        config_map = client.find("v1/configmaps", "settings") or {}
        return program.done() or "web-0" in capsys.readouterr().out or "data" in config_map

    await eventually(has_worked)
    program.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await program


async def test_functions_of_the_client_guide_run() -> None:
    results: dict[str, Any] = {}
    for block in PYTHON:
        names = executed(block.text) if block.page == "docs/kubeloop/client.md" else {}
        for name, found in names.items():
            if (
                inspect.iscoroutinefunction(found)
                and found.__module__ == "block"
                and name != "main"
            ):
                client: Client = FakeClient(
                    *(o for o in objects() if name != "write" or o["kind"] != "ConfigMap")
                )
                if name not in CONTAINERS:
                    results[name] = await found(client)
                    continue
                async with PodServer(container) as server, server.client() as client:
                    server.log = (b"started\nERROR: no disk\n",)
                    results[name] = await found(client)
            if name == "report":
                found(FakeClient(), Manager(), objects()[0])
    expected = {
        "read": ["web-0", "web-0"],
        "addresses": {"web-0": ""},
        "first_change": "ADDED web-0",
        "write": None,
        "scale": None,
        "pause": "paused",
        "recolour": {"colour": "green"},
        "restart": "web-0",
        "may_scale": True,
        "remove_label": True,
        "install": None,
        "errors": ["ERROR: no disk"],
        "dump": b"-- a dump",
        "sort": [b"one\n", b"two\n"],
        "status_line": b"HTTP/1.1 200 OK\r\n",
        "page": "hello",
    }
    assert results == expected


async def test_functions_of_the_informer_guide_run(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    for block in PYTHON:
        if block.page == "docs/guide/informers.md" and block not in PROGRAMS:
            names |= executed(block.text)
    factory = SharedInformerFactory(FakeClient(*objects()))
    pods = factory.informer("v1/pods")
    for name in ("add_handlers", "add_index"):
        names[name](pods)
    names["ask"](factory)
    assert names["make_controller"](factory).name == "replica-sets"
    async with factory.running():
        await factory.wait_for_sync(timeout=10)
        assert [pod.metadata.name for pod in names["read"](pods)] == ["web-0"] * 4
        await eventually(lambda: "Added default/web-0" in capsys.readouterr().out)


@pytest.mark.virtual_time
async def test_the_test_of_the_informer_guide_passes() -> None:
    (block,) = (b for b in PYTHON if "async def test_a_dropped_watch" in b.text)
    await executed(block.text)["test_a_dropped_watch_is_resumed"]()


def test_blocks_of_the_tutorial_are_its_program() -> None:
    _, _, program = (ROOT / "examples" / "websites.py").read_text().rpartition('"""\n\nfrom __fut')
    pieces = re.findall(r"```python\n(.*?)```", (ROOT / TUTORIAL).read_text(), re.DOTALL)
    assert re.sub(r"\n+", "\n", "".join(pieces)) == "from __fut" + re.sub(r"\n+", "\n", program)


async def test_functions_of_the_guide_to_kinds_run() -> None:
    client = FakeClient()
    names: dict[str, Any] = {}
    for block in PYTHON:
        if block.page == "docs/kubeloop/kinds.md":
            names |= executed(block.text)
    assert await names["deploy"](client) == "shop:1"
    await names["update_image"](client)
    stored = client.find("apps/v1/deployments", "shop") or {}
    assert stored["spec"]["template"]["spec"]["containers"] == [{"name": "shop", "image": "shop:2"}]


REFERENCE = [block for block in PYTHON if block.page == "docs/kubeloop/reference.md"]


async def test_examples_of_the_reference_run(tmp_path: Path) -> None:
    names: dict[str, Any] = {}
    for block in REFERENCE:
        names |= executed(block.text)
    kubeconfig = tmp_path / "config"
    cluster = {"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}
    context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
    content = {"clusters": [cluster], "contexts": [context], "users": [{"name": "u", "user": {}}]}
    kubeconfig.write_text(json.dumps(content | {"current-context": "c"}))
    assert await names["connect"](kubeconfig) == "ConnectionRefused"
    expected = {
        "read": ["web-0", "web-0", "web-0"],
        "write": {"a": "pink", "b": "green", "c": "blue", "d": "black"},
        "wait": True,
        "follow": ["web-0", "web-0"],
        "operate": ("example.com", "v1", "Greeting"),
        "assemble": {"copy-of": "settings"},
        "admit": "only ann may delete a",
    }
    assert {name: await names[name](FakeClient(*objects())) for name in expected} == expected
    assert b'"image":"web:2"' in names["by_key"]()
    assert names["elect"](FakeClient()) == "LeaderElector"
    assert names["values"]() == [
        "1500m",
        "2026-11-18T09:00:00Z",
        True,
        True,
        {"a": 2},
        [{"op": "replace", "path": "/a", "value": 2}],
    ]
    assert await names["fake"]() == ["DELETE /api/v1/namespaces/default/configmaps/a"]


def test_every_exported_name_has_an_example() -> None:
    shown = set(re.findall(r"\w+", "".join(block.text for block in REFERENCE)))
    for package in (kubeloop, kubeloop.operator, kubeloop.webhook, kubeloop.controller):
        exports = getattr(package, "_EXPORTS", None)
        own = {name for name, value in vars(package).items() if not inspect.ismodule(value)}
        names = exports or {name for name in own if not name.startswith("_")}
        assert set(names) - shown == set(), package.__name__


def test_first_block_of_the_index_is_the_short_form() -> None:
    first = next(block for block in PYTHON if block.page == "docs/kubeloop/index.md")
    assert first.text == (ROOT / "examples" / first.title).read_text()


def test_files_of_the_operator_guide_pass(tmp_path: Path) -> None:
    for name in ("docs/kubeloop/operator.md", "docs/kubeloop/index.md"):
        for block in (b for b in PYTHON if b.page == name and b.title):
            (tmp_path / block.title).write_text(block.text)
    (tmp_path / "test_step_down.py").write_text(STEP_DOWN)
    assert "4 passed" in run_pytest(tmp_path)


def test_files_of_the_webhook_guide_pass(tmp_path: Path) -> None:
    for name in ("docs/kubeloop/webhooks.md", "docs/kubeloop/index.md"):
        for block in (b for b in PYTHON if b.page == name and b.title):
            (tmp_path / block.title).write_text(block.text)
    assert "2 passed" in run_pytest(tmp_path)


STEP_DOWN = """
import asyncio
import own_manager
import own_parts
import websites_short
from kubeloop.testing.fake_client import FakeClient


async def published(client, main, manager=None):
    await asyncio.sleep(0.5)
    meta = {"name": "hello", "namespace": "shop"}
    await client.resource("example.com/v1/websites").create({"metadata": meta, "spec": {"text": "Hi"}})
    await asyncio.sleep(0.5)
    assert client.find("v1/configmaps", "hello", namespace="shop") is not None


async def test_own_manager():
    client = FakeClient()
    task = asyncio.create_task(own_manager.main(client))
    await published(client, task)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_own_parts():
    client = FakeClient(websites_short.CRD)
    manager = own_parts.make_manager(client)
    task = asyncio.create_task(manager.run())
    await published(client, task)
    manager.stop()
    await task
"""


RECIPES = {block.title: block for block in PYTHON if block.page == COOKBOOK}


@pytest.mark.virtual_time
async def test_recipe_prints_pods_that_wait_for_their_image(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    client = FakeClient(*objects())
    monkeypatch.setattr(Client, "from_env", lambda: client)
    program = asyncio.create_task(executed(RECIPES["watch_pods.py"].text)["main"]())
    await asyncio.sleep(1)
    waiting = {"reason": "ImagePullBackOff", "message": "no such image"}
    pod = objects()[0] | {"status": {"containerStatuses": [{"state": {"waiting": waiting}}]}}
    client.put(pod)
    await asyncio.sleep(1)
    assert capsys.readouterr().out == "default web-0 no such image\n"
    program.cancel()
    await asyncio.gather(program, return_exceptions=True)


@pytest.mark.virtual_time
async def test_recipe_labels_namespaces() -> None:
    def namespace(name: str, **labels: str) -> dict[str, Any]:
        meta = {"name": name, "labels": labels}
        return {"apiVersion": "v1", "kind": "Namespace", "metadata": meta}

    client = FakeClient(namespace("a"), namespace("b", team="red"))
    async with running(client, executed(RECIPES["label_namespaces.py"].text)["namespaces"]):
        await asyncio.sleep(1)
    assert client.writes == ["PATCH /api/v1/namespaces/a"]


async def test_recipe_admits_pods_with_fixed_tags() -> None:
    admission = executed(RECIPES["image_tags.py"].text)["admission"]

    async def answer(path: str, image: str) -> Any:
        containers = [{"name": "web", "image": image}]
        pod = {"metadata": {"name": "a"}, "spec": {"containers": containers}}
        body = review(pod, path="v1/pods", namespace="shop")
        return await admission.review(path, body)

    assert patch_of(await answer("/set-team", "a:1")) == [
        {"op": "add", "path": "/metadata/labels", "value": {"team": "shop"}}
    ]
    for image in ("web", "web:latest", "registry:5000/web"):
        response = (await answer("/require-tags", image))["response"]
        assert "has no fixed tag" in response["status"]["message"]
    assert (await answer("/require-tags", "web:1"))["response"]["warnings"]
    assert (await answer("/require-tags", "web@sha256:0"))["response"] == {
        "uid": "u-1",
        "allowed": True,
    }


@pytest.mark.virtual_time
async def test_recipe_makes_a_job_and_follows_it() -> None:
    client = FakeClient()
    async with running(client, executed(RECIPES["backups.py"].text)["backups"]):
        await asyncio.sleep(1)
        backups = client.resource("example.com/v1/backups", namespace="default")
        await backups.create({"metadata": {"name": "a"}, "spec": {"command": ["pg_dump"]}})
        await asyncio.sleep(1)
        job = client.find("batch/v1/jobs", "backup-a")
        assert job is not None
        client.put(job | {"status": {"succeeded": 1}})
        await asyncio.sleep(1)
    (condition,) = (client.find("example.com/v1/backups", "a") or {})["status"]["conditions"]
    assert (condition["type"], condition["status"]) == ("Complete", "True")


@pytest.mark.virtual_time
async def test_recipe_publishes_with_typed_kinds() -> None:
    client = FakeClient()
    async with running(client, executed(RECIPES["typed_websites.py"].text)["websites"]):
        sites = client.resource("example.com/v1/websites", namespace="default")
        await sites.create({"metadata": {"name": "a"}, "spec": {"text": "hi"}})
        await asyncio.sleep(1)
        deployment = client.find("apps/v1/deployments", "a")
        assert deployment is not None
        assert deployment["spec"]["template"]["spec"]["volumes"] == [
            {"name": "page", "configMap": {"name": "a"}}
        ]
        client.put(deployment | {"status": {"readyReplicas": 1}})
        await asyncio.sleep(1)
    assert (client.find("v1/configmaps", "a") or {})["data"] == {"index.html": "hi"}
    assert (client.find("v1/services", "a") or {})["spec"]["ports"] == [{"port": 80}]
    (condition,) = (client.find("example.com/v1/websites", "a") or {})["status"]["conditions"]
    assert (condition["status"], condition["message"]) == ("True", "1 of 1 pods are ready")


async def test_recipe_shows_its_own_metric(unused_tcp_port: int) -> None:
    labels = {"name": "a", "labels": {"team": "red"}}
    client = FakeClient({"apiVersion": "v1", "kind": "Namespace", "metadata": labels})
    names = executed(RECIPES["own_metric.py"].text)
    manager = make_manager(
        client, names["namespaces"], health_port=unused_tcp_port, metrics=names["metrics"]
    )
    program = asyncio.create_task(manager.run())
    await eventually(lambda: names["seen"]["red"])
    reader, writer = await asyncio.open_connection("127.0.0.1", unused_tcp_port)
    writer.write(b"GET /metrics HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
    shown = (await reader.read()).decode()
    writer.close()
    assert "informer_objects" in shown
    assert 'namespaces_seen_total{team="red"} 1' in shown
    manager.stop()
    await program


async def test_recipe_cleans_up_on_the_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    finished = objects()[0] | {"status": {"phase": "Succeeded"}}
    client = FakeClient(finished, *objects()[1:])
    monkeypatch.setattr(Client, "from_env", lambda: FakeClient(server=client))
    program = asyncio.create_task(executed(RECIPES["leader_job.py"].text)["main"]())
    await eventually(lambda: client.find("v1/pods", "web-0") is None)
    assert client.find("coordination.k8s.io/v1/leases", "clean-up")
    program.cancel()
    await asyncio.gather(program, return_exceptions=True)


def test_files_of_the_testing_guide_pass(tmp_path: Path) -> None:
    for block in blocks("python", "toml"):
        if block.page == "docs/kubeloop/testing.md":
            (tmp_path / (block.title or "pyproject.toml")).write_text(block.text)
    assert "6 passed" in run_pytest(tmp_path)


def run_pytest(directory: Path) -> str:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    command += ["-o", "asyncio_mode=auto"]
    ran = subprocess.run(command, cwd=directory, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout
