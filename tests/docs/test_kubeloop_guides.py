"""kubeloop's guides do what they say: programs and functions run, test files pass as they stand."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.client.pod_server import SUCCESS, Peer, PodServer, echo, web_page

from kubeloop import Client, SharedInformerFactory
from kubeloop.controller import Manager
from kubeloop.testing.fake_client import FakeClient
from tests.docs.pages import ROOT, Block, blocks, named
from tests.waiting import eventually

CONTAINERS = {"errors", "dump", "sort", "status_line", "page"}
PYTHON = [block for block in blocks("python") if "/adr/" not in block.where]
PROGRAMS = [block for block in PYTHON if block.text.endswith("asyncio.run(main())\n")]
TUTORIAL = "docs/guide/controllers.md"
# What is neither a program, nor a module whose functions a test here calls, nor a piece of the tutorial's file.
RUN_ELSEWHERE = {"packages/devkube/README.md": "packages/devkube/tests/test_readme.py"}


def objects() -> list[dict[str, Any]]:
    pod = {
        "metadata": {"name": "web-0", "labels": {"app": "web"}, "uid": "u"},
        "spec": {"nodeName": "worker-1"},
        "status": {"phase": "Running"},
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
    modules = {f"docs/kubeloop/{name}.md" for name in ("client", "testing")}
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
            if inspect.iscoroutinefunction(found) and name != "main":
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


def test_files_of_the_testing_guide_pass(tmp_path: Path) -> None:
    for block in blocks("python", "toml"):
        if block.page == "docs/kubeloop/testing.md":
            (tmp_path / (block.title or "pyproject.toml")).write_text(block.text)
    pytest = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist")
    ran = subprocess.run(pytest, cwd=tmp_path, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "4 passed" in ran.stdout
