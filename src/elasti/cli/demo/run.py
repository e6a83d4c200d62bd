"""What `elasti demo` does: the whole loop, with nothing scripted but the visitors.

The cluster, the operator, the resolver and the apps are the real ones, installed as `elasti install`
does; sleep is decided by a trigger that reads the apps' own metrics. The demo only sends requests,
looks, and tells.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from elasti.cli.demo import objects
from elasti.cli.demo.board import board
from elasti.cli.demo.burst import Visitors
from elasti.cli.demo.story import Story
from elasti.cli.demo.timeline import timeline
from elasti.cli.demo.watching import Watching
from elasti.cli.exits import ExitCode, Failure
from elasti.cli.install.installing import Installing
from elasti.cli.install.progress import Progress
from elasti.devcluster import kubeconfig as kubeconfigs
from elasti.devcluster.addresses import NoAddresses
from elasti.devcluster.cluster import ComponentFailed, DevCluster
from kubeloop.client import Client

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import RenderableType

BURST = 20
_APPS = ("web", "echo")
_MANAGER = "elasti-demo"
_PATIENCE = 120.0


async def run(*, keep: bool, environment: Mapping[str, str]) -> None:
    """Show it once; with `keep`, leave it running until cancelled.

    `environment` is what pods inherit: where programs are found. Raises Failure where requests were
    lost, or where there can be no cluster.
    """
    try:
        lost = await _run(keep=keep, environment=environment)
    except (NoAddresses, ComponentFailed) as error:
        raise Failure(ExitCode.FAILED, str(error)) from error
    if lost:
        raise Failure(ExitCode.FAILED, f"{lost} requests were lost")


async def _run(*, keep: bool, environment: Mapping[str, str]) -> int:
    story = Story()
    with tempfile.TemporaryDirectory(prefix="elasti-demo-") as directory:
        path = Path(directory) / "kubeconfig"
        story.heading("A cluster, Elasti, and two apps that take a second to start")
        async with DevCluster(environment=environment) as cluster:
            kubeconfigs.write(path, cluster.access())
            await cluster.wait_ready()
            story.tell("cluster", f"ready at {cluster.url}")
            async with Client.from_kubeconfig([path]) as client:
                demo = Demo(client, story)
                lost = await demo.show()
                if keep:
                    await demo.explore(path)
                return lost


class Demo:
    """One showing, in a cluster that is there."""

    def __init__(self, client: Client, story: Story) -> None:
        self._client = client
        self._story = story
        self._visitors = Visitors()
        self._watching = Watching(client, story, _APPS)

    async def show(self) -> int:
        """Show everything; returns how many requests were lost. Raises TimeoutError, KubeError."""
        await self._install()
        async with self._watching.running(), self._story.showing(self._board):
            return await self._play()

    async def explore(self, path: Path) -> None:
        """Tell how to look around, and stay until cancelled."""
        self._story.heading("It goes on until Ctrl-C; in another terminal:")
        for line in (
            f"export KUBECONFIG={path}",
            *_way_to_the_command(),
            "kubectl get elastiservices,deployments,pods",
            "elasti get",
            "elasti describe web",
            "kubectl get endpointslices -w",
            "kubectl logs -n elasti deploy/elasti-operator",
            f"curl {_url((await self._addresses())['web'])}/   # wakes it",
        ):
            self._story.line(f"  {line}")
        await asyncio.Event().wait()

    def _board(self) -> RenderableType:
        visitors = self._visitors
        return board(self._watching.apps(), sent=visitors.sent, answered=visitors.answered)

    async def _install(self) -> None:
        silent = Progress(Console(quiet=True))
        await Installing(self._client, objects.choices(), silent).install(wait=_PATIENCE)
        self._story.tell("cluster", "operator and resolver run, two of each, as `elasti install`ed")
        for obj in objects.samples():
            resource = await self._client.resource_for(obj["apiVersion"], obj["kind"])
            await resource.apply(obj, field_manager=_MANAGER, force=True)
        self._story.tell("cluster", "two apps are deployed: web (HTTP) and echo (TCP)")

    async def _play(self) -> int:
        story, visitors, watching = self._story, self._visitors, self._watching
        addresses = await self._addresses()
        web = _url(addresses["web"])
        story.heading("Nobody needs them: they are put to sleep")
        await watching.until_asleep(_PATIENCE)

        story.heading(f"{BURST} requests and a TCP connection arrive at sleeping Services")
        began = asyncio.get_running_loop().time()
        story.tell("you", f"{BURST} x GET {web}/, and a connection to echo")
        answers, echo = await asyncio.gather(
            visitors.http(web, BURST),
            visitors.tcp(*addresses["echo"]),
        )
        held = [*answers, echo]
        story.tell("you", "all answered" if all(a.ok for a in held) else "NOT all answered")
        story.table(held)

        story.heading("They are awake: the resolver steps aside")
        await watching.until_awake(_PATIENCE)
        direct = await visitors.http(f"{web}/direct", 3)
        straight = sum(not answer.held for answer in direct)
        story.tell("you", f"3 more requests, {straight} of them straight to the pod")
        steps = timeline(watching.moments("web"), answers, began=began)

        story.heading("And asleep again")
        await watching.until_asleep(_PATIENCE)
        return story.sums([*held, *direct], steps)

    async def _addresses(self) -> dict[str, tuple[str, int]]:
        services = self._client.resource("v1/services", namespace=objects.NAMESPACE)
        specs = {app: (await services.get(app))["spec"] for app in _APPS}
        return {app: (spec["clusterIP"], spec["ports"][0]["port"]) for app, spec in specs.items()}


def _url(address: tuple[str, int]) -> str:
    return "http://{}:{}".format(*address)


def _way_to_the_command() -> list[str]:
    """Return the line that lets a shell find `elasti`, where it would not, as after `make demo`."""
    if shutil.which("elasti"):
        return []
    return [f'export PATH="{Path(sys.executable).parent}:$PATH"']
