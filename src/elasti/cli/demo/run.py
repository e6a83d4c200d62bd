"""What `elasti demo` does: the whole loop, with nothing scripted but the visitors.

The cluster, the operator, the resolver and the apps are the real ones; sleep is decided by a trigger
that reads the apps' own metrics. The demo only sends requests, looks, and tells.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click

from elasti.api.crd import custom_resource_definition
from elasti.cli.demo import objects
from elasti.cli.demo.burst import http_burst, tcp_exchange
from elasti.cli.demo.story import Story
from elasti.cli.demo.watching import Watching
from elasti.devcluster import kubeconfig as kubeconfigs
from elasti.devcluster.cluster import DevCluster
from kubeloop.aio.wait import poll
from kubeloop.client import Client

if TYPE_CHECKING:
    from elasti.cli.demo.burst import Answer
    from kubeloop.objects.meta import JsonObject

BURST = 20
_APPS = ("web", "echo")
_MANAGER = "elasti-demo"
_LOOK_EVERY = 0.05
_PATIENCE = 60.0


async def run(*, keep: bool) -> None:
    """Show it once; with `keep`, leave it running until cancelled. Raises ClickException on loss."""
    story = Story()
    with tempfile.TemporaryDirectory(prefix="elasti-demo-") as directory:
        path = Path(directory) / "kubeconfig"
        story.heading("A cluster, Elasti, and two apps that take a second to start")
        async with DevCluster() as cluster:
            kubeconfigs.write(path, cluster.access())
            await cluster.wait_ready()
            story.tell("cluster", f"ready at {cluster.url}")
            async with Client.from_kubeconfig([path]) as client:
                await _install(client)
                story.tell("cluster", "operator, resolver and apps are deployed")
                watching = Watching(client, story)
                async with watching.running():
                    lost = await _show(client, watching, story)
                    if keep:
                        await _explore(story, path)
        if lost:
            raise click.ClickException(f"{lost} requests were lost")


async def _install(client: Client) -> None:
    definition = custom_resource_definition()
    await _apply(client, [definition])
    await _established(client, definition["metadata"]["name"])
    await _apply(client, objects.foundations())
    services = client.resource("v1/services", namespace=objects.NAMESPACE)
    operator = await services.get(objects.OPERATOR_SERVICE)
    await _apply(client, [*objects.programs(operator["spec"]["clusterIP"]), *objects.samples()])


async def _apply(client: Client, wanted: list[JsonObject]) -> None:
    for obj in wanted:
        resource = await client.resource_for(obj["apiVersion"], obj["kind"])
        await resource.apply(obj, field_manager=_MANAGER, force=True)


async def _established(client: Client, name: str) -> None:
    """Wait until the server serves a definition's objects, and let the client see that it does."""
    definitions = client.resource("apiextensions.k8s.io/v1/customresourcedefinitions")

    async def served() -> bool:
        conditions = (await definitions.get(name)).get("status", {}).get("conditions") or []
        return any(c["type"] == "Established" and c["status"] == "True" for c in conditions)

    await poll(served, _LOOK_EVERY, immediate=True, timeout=_PATIENCE)
    client.mapper.invalidate()


async def _show(client: Client, watching: Watching, story: Story) -> int:
    addresses = await _addresses(client)
    story.heading("Nobody needs them: they are put to sleep")
    await watching.until_asleep(_PATIENCE)

    story.heading(f"{BURST} requests and a TCP connection arrive at sleeping Services")
    began = asyncio.get_running_loop().time()
    story.tell("you", f"{BURST} x GET http://{addresses['web']}/, and a connection to echo")
    answers, echo = await asyncio.gather(
        http_burst(f"http://{addresses['web']}", BURST), tcp_exchange(addresses["echo"], 7000)
    )
    story.tell("you", "all answered" if all(a.ok for a in (*answers, echo)) else "NOT all answered")
    story.table([*answers, echo])

    story.heading("They are awake: the resolver steps aside")
    await watching.until_awake(_PATIENCE)
    direct = await http_burst(f"http://{addresses['web']}/direct", 3)
    story.tell(
        "you", f"3 more requests, {sum(not a.held for a in direct)} of them straight to the pod"
    )

    story.heading("And asleep again")
    await watching.until_asleep(_PATIENCE)
    wake = _where_the_time_went(watching, answers, began)
    return story.sums([*answers, echo, *direct], wake)


async def _addresses(client: Client) -> dict[str, str]:
    services = client.resource("v1/services", namespace="default")
    return {app: (await services.get(app))["spec"]["clusterIP"] for app in _APPS}


def _where_the_time_went(
    watching: Watching, answers: list[Answer], began: float
) -> dict[str, float]:
    first = min(answer.took for answer in answers)
    ready = watching.moments.get(("web", "pod ready"), began) - began
    return {
        "first request to scale-up": watching.moments.get(("web", "Waking"), began) - began,
        "first request to first answer": first,
        "first request to Kubernetes' Ready": ready,
    }


async def _explore(story: Story, path: Path) -> None:
    story.heading("It goes on until Ctrl-C; meanwhile:")
    for line in (
        f"export KUBECONFIG={path}",
        "kubectl get elastiservices,deployments,pods",
        "kubectl describe elastiservice web",
        "kubectl get endpointslices -w",
        "kubectl logs -n elasti deploy/elasti-operator",
    ):
        click.echo(f"  {line}")
    await asyncio.Event().wait()
