"""`elasti demo`: the whole loop, with nothing scripted but the requests.

The cluster, the operator, the resolver and the apps are the real ones, installed as `elasti install`
does; sleep is decided by a trigger that reads the apps' own metrics. The demo only sends requests,
watches, and reports.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from elasti.cli.dev import container_environment, need_devkube
from elasti.cli.exits import Failure

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from elasti.cli.demo.story import Story
    from kubeloop.client import Client
    from kubeloop.objects.meta import JsonObject

BURST = 20
_APPS = ("web", "echo")
_MANAGER = "elasti-demo"
_PATIENCE = 120.0
_PAUSE = 2.0


@click.command("demo")
@click.option(
    "--keep", is_flag=True, help="Leave it running afterwards, and print commands to explore it."
)
@click.option("--ui", is_flag=True, help="Also show it in a browser, and leave it running.")
@click.option("--fleet", is_flag=True, help="Instead, show a hundred apps in a browser.")
def command(*, keep: bool, ui: bool, fleet: bool) -> None:
    """Show the whole loop: two apps fall asleep, wake for real requests, serve them, and fall asleep again.

    It starts a cluster of its own (see `elasti dev`), with Elasti and two small apps in it, and takes about a
    minute. It leaves nothing behind, even after Ctrl-C. The exit code is 1 if a request was lost.

    \b
    Examples:
      elasti demo
      elasti demo --keep
      elasti demo --ui
      elasti demo --fleet
    """
    need_devkube("elasti demo")
    import logging

    from elasti.cli.running import run_until_interrupted

    # Errors that are retried are not part of the story; a lasting one ends it.
    logging.basicConfig(level=logging.CRITICAL)
    run_until_interrupted(lambda: _run(keep=keep, ui=ui, fleet=fleet))


async def _run(*, keep: bool, ui: bool, fleet: bool) -> None:
    """Show it once; with `keep` or `ui`, leave it running until cancelled. With `fleet`, show that until then.

    Raises Failure if requests were lost, or the cluster cannot start.
    """
    import tempfile

    from devkube import kubeconfig as kubeconfigs
    from devkube.addresses import NoAddresses
    from devkube.cluster import ComponentFailed, DevCluster
    from elasti.cli.demo import manifests
    from elasti.cli.demo.story import Story
    from kubeloop.client import Client

    story = Story()
    story.heading("A cluster, Elasti, and apps that take a second to start")
    try:
        with tempfile.TemporaryDirectory(prefix="elasti-demo-") as directory:
            path = Path(directory) / "kubeconfig"
            async with DevCluster(environment=container_environment(os.environ)) as cluster:
                kubeconfigs.write(path, cluster.access())
                await cluster.wait_ready()
                story.report("cluster", f"ready at {cluster.url}")
                async with Client.from_kubeconfig([path]) as client:
                    demo = Demo(client, story)
                    await demo.install(manifests.fleet() if fleet else manifests.samples())
                    if fleet:
                        await demo.show_fleet()
                    async with demo.dashboard(opens=ui):
                        lost = await demo.show()
                        if ui:
                            story.heading("Your turn: open web in the browser and press Wake")
                            again = "It sleeps again after 6 quiet seconds"
                            story.line(f"  {again}, unless you press Keep awake.")
                        if keep or ui:
                            await demo.explore(path)
                        story.heading(
                            "To look around: elasti demo --keep. For your own app: docs/start.md."
                        )
    except (NoAddresses, ComponentFailed) as error:
        raise Failure(str(error)) from error
    if lost:
        raise Failure(f"{lost} request{'' if lost == 1 else 's'} lost")


class Demo:
    """One run of the demo, in a running cluster."""

    def __init__(self, client: Client, story: Story) -> None:
        from elasti.cli.demo.load import LoadGenerator
        from elasti.cli.demo.story import DemoWatch

        self._client = client
        self._story = story
        self._load = LoadGenerator()
        self._watching = DemoWatch(client, story, _APPS)

    async def show(self) -> int:
        """Show everything; returns how many requests were lost. Raises TimeoutError, KubeError."""
        async with self._watching.running(), self._story.showing(self._board):
            return await self._play()

    async def show_fleet(self) -> None:
        """Show a hundred apps in the dashboard, and wake one after the other, until cancelled. Raises KubeError."""
        import asyncio
        import itertools

        addresses = sorted((await self._addresses()).items())
        async with self.dashboard(opens=True):
            for app, address in itertools.cycle(addresses):
                if app.startswith("app-"):
                    await self._load.http(_url(address), 1)
                    await asyncio.sleep(_PAUSE)

    async def explore(self, path: Path) -> None:
        """Print how to explore it, and stay until cancelled."""
        import asyncio

        self._story.heading("It runs until Ctrl-C. In another terminal:")
        for line in (
            f"export KUBECONFIG={path}",
            *_way_to_the_command(),
            "kubectl get elastiservices,deployments,pods",
            "elasti get",
            "elasti describe web",
            "elasti dashboard",
            "kubectl get endpointslices -w",
            "kubectl logs -n elasti deploy/elasti-operator",
            f"curl {_url((await self._addresses())['web'])}/   # wakes it",
        ):
            self._story.line(f"  {line}")
        await asyncio.Event().wait()

    def _board(self) -> list[str]:
        from elasti.cli.demo.story import board

        load = self._load
        return board(self._watching.apps(), sent=load.sent, answered=load.answered)

    @contextlib.asynccontextmanager
    async def dashboard(self, *, opens: bool) -> AsyncIterator[None]:
        """Have the dashboard open during the block, if that is wanted. Raises KubeError."""
        from elasti.api.names import NAMESPACE as ELASTI
        from elasti.cli.dashboard import announced, serving

        if not opens:
            yield
            return
        async with serving(self._client, "", ELASTI) as url:
            self._story.heading("The same in your browser: watch the apps there")
            with announced(url, opens=True):
                yield

    async def install(self, apps: list[JsonObject]) -> None:
        """Put Elasti and apps into the cluster. Raises KubeError, TimeoutError."""
        from elasti.cli.demo import manifests
        from elasti.cli.install.installer import Installer
        from elasti.cli.rendering import Progress

        self._story.report("cluster", "`elasti install`: two operators and two resolvers")
        installer = Installer(self._client, manifests.choices(), Progress(quiet=True))
        await installer.install(wait=_PATIENCE)
        self._story.report("cluster", "operator and resolver are ready")
        for obj in apps:
            resource = await self._client.resource_for(obj["apiVersion"], obj["kind"])
            await resource.apply(obj, field_manager=_MANAGER, force=True)
        count = sum(obj["kind"] == "Deployment" for obj in apps)
        self._story.report("cluster", f"{count} apps are deployed")

    async def _play(self) -> int:
        import asyncio

        from elasti.cli.demo.story import timeline

        story, load, watching = self._story, self._load, self._watching
        addresses = await self._addresses()
        web = _url(addresses["web"])
        story.heading("The apps start, stay unused, and fall asleep")
        await watching.until_asleep(_PATIENCE)

        story.heading(f"{BURST} requests and a TCP connection arrive at the sleeping Services")
        began = asyncio.get_running_loop().time()
        story.report("you", f"{BURST} x GET {web}/, and a connection to echo")
        answers, echo = await asyncio.gather(load.http(web, BURST), load.tcp(*addresses["echo"]))
        held = [*answers, echo]
        every = "every one" if all(answer.ok for answer in held) else "NOT every one"
        story.report("you", f"{every} was answered")
        story.table(held)

        story.heading("The apps are awake: the resolver steps aside")
        await watching.until_awake(_PATIENCE)
        direct = await load.http(f"{web}/direct", 3)
        straight = sum(not answer.held for answer in direct)
        story.report("you", f"3 more requests, {straight} of them went straight to the pod")
        steps = timeline(watching.moments("web"), answers, began=began)

        story.heading("The apps fall asleep again")
        await watching.until_asleep(_PATIENCE)
        return story.sums([*held, *direct], steps)

    async def _addresses(self) -> dict[str, tuple[str, int]]:
        services = await self._client.resource("v1/services").items().to_list()
        specs = {one["metadata"]["name"]: one["spec"] for one in services}
        return {name: (spec["clusterIP"], spec["ports"][0]["port"]) for name, spec in specs.items()}


def _url(address: tuple[str, int]) -> str:
    return "http://{}:{}".format(*address)


def _way_to_the_command() -> list[str]:
    """Return the line that lets a shell find `elasti` if it cannot, as after `make demo`."""
    import shutil

    if shutil.which("elasti"):
        return []
    return [f'export PATH="{Path(sys.executable).parent}:$PATH"']
