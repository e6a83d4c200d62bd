"""One suite, two servers: every test runs against the dev cluster and the real control plane."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import AsyncIterator, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from kubeloop.client import Client
from kubeloop.objects.list_watch import WatchOptions
from tests.conformance.behaviours import behaviour_of
from tests.conformance.kube import Kube
from tests.conformance.kubelet import Kubelet, pretending
from tests.conformance.raw import raw_for
from tests.conformance.servers import CONTROLPLANE, DEVCLUSTER, DevServer, RealServer, Server
from tests.controlplane.plugin import share_location

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every test here names its behaviour, and no two tests name the same."""
    tests: dict[str, str] = {}
    for item in items:
        if HERE not in item.path.parents:
            continue
        said = behaviour_of(item)
        if said is None:
            raise pytest.UsageError(f"{item.nodeid} names no behaviour")
        test = item.nodeid.partition("[")[0]
        if tests.setdefault(said.id, test) != test:
            raise pytest.UsageError(f"{said.id} is proved twice: {tests[said.id]} and {test}")


@pytest.fixture(scope="session", autouse=True)
def devserver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevServer]:
    """Of itself, so that its thread is there before any test is watched for leaks."""
    server = DevServer(tmp_path_factory.mktemp("devcluster"))
    server.start()
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="session")
def controlplane_definitions() -> tuple[dict[str, Any], ...]:
    """Nothing that the dev cluster has not."""
    return ()


@pytest.fixture(scope="session")
def realserver(request: pytest.FixtureRequest) -> RealServer:
    return RealServer(request.getfixturevalue("controlplane"))


@pytest.fixture(
    params=[DEVCLUSTER, pytest.param(CONTROLPLANE, marks=pytest.mark.controlplane)],
)
def server(request: pytest.FixtureRequest) -> Server:
    name = "devserver" if request.param == DEVCLUSTER else "realserver"
    found: Server = request.getfixturevalue(name)
    return found


@pytest.fixture
async def kube(server: Server) -> AsyncIterator[Kube]:
    """A server, as the administrator, and a new namespace that is ready for pods."""
    async with contextlib.AsyncExitStack() as stack:
        client = await stack.enter_async_context(Client.from_kubeconfig(server.kubeconfig))
        raw = await stack.enter_async_context(raw_for(server.url, server.tls))
        yield Kube(server, client, raw, await new_namespace(client))


@pytest.fixture
async def kubelet(kube: Kube) -> AsyncIterator[Kubelet]:
    """Pods of the test's namespace run, as far as anybody can see."""
    async with pretending(kube) as kubelet:
        yield kubelet


async def new_namespace(client: Client) -> str:
    """Make a namespace, and wait for the account without which no pod is admitted."""
    made = await client.resource("v1/namespaces").create({"metadata": {"generateName": "test-"}})
    name = str(made["metadata"]["name"])
    accounts = client.resource("v1/serviceaccounts", namespace=name)
    watch = await accounts.watch(
        WatchOptions(
            field_selector="metadata.name=default", timeout_seconds=20, allow_bookmarks=False
        )
    )
    try:
        assert await watch.read(), f"namespace {name} got no ServiceAccount"
    finally:
        await watch.close()
    return name


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Let all skips for want of binaries be one line."""
    report = yield
    if report.skipped and HERE in item.path.parents:
        share_location(report)
    return report


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter,
) -> None:
    """Say how many behaviours each server has, of those that ran."""
    outcomes: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for outcome in ("passed", "failed", "error", "skipped"):
        for report in terminalreporter.stats.get(outcome, []):
            properties = dict(getattr(report, "user_properties", ()))
            if "behaviour" in properties:
                outcomes[properties["server"]][properties["behaviour"]].add(outcome)
    for server, behaviours in sorted(outcomes.items()):
        whole = sum(found == {"passed"} for found in behaviours.values())
        skipped = sum(found == {"skipped"} for found in behaviours.values())
        note = f", {skipped} skipped" if skipped else ""
        terminalreporter.write_line(
            f"conformance: {server}: {whole} of {len(behaviours)} behaviours hold{note}"
        )


@pytest.fixture(autouse=True)
def note_behaviour(request: pytest.FixtureRequest, record_property) -> None:
    """Tell the summary which behaviour ran on which server."""
    said = behaviour_of(request.node)
    callspec = getattr(request.node, "callspec", None)
    if said is not None and callspec is not None and "server" in callspec.params:
        record_property("behaviour", said.id)
        record_property("server", callspec.params["server"])
