"""`elasti dashboard`: the page, served to a browser on this machine with the user's own rights."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import click

from elasti.cli.options import (
    AccessOptions,
    WholeNumber,
    cluster_options,
    elasti_namespace_option,
    namespace_option,
)
from elasti.cli.rendering import echo

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from kubeloop.client import Client


@click.command("dashboard")
@namespace_option("Only this namespace; all by default.")
@click.option(
    "--port",
    type=WholeNumber(0, 65535),
    default=0,
    help="The port, of 127.0.0.1 without --host.  [default: a free one]",
)
@click.option("--no-open", is_flag=True, help="Print the address, and open no browser.")
@click.option(
    "--host",
    "hosts",
    metavar="HOST",
    multiple=True,
    help="In a pod: serve visitors of this host name, at every address, each with the bearer token that the"
    " proxy in front sends; may be repeated.",
)
@elasti_namespace_option
@cluster_options
def command(
    *,
    access: AccessOptions,
    namespace: str | None,
    port: int,
    no_open: bool,
    hosts: tuple[str, ...],
    elasti_namespace: str,
) -> None:
    """Show ElastiServices in a browser: what is wrong first, then all of them, with buttons.

    The page is served on 127.0.0.1 until Ctrl-C, and does what your kubeconfig lets you do. Its address has a
    token that lets one browser in, once.

    \b
    Examples:
      elasti dashboard
      elasti dashboard -n shop --no-open
    """
    from elasti.cli.running import fast_loop, run_until_interrupted

    async def show() -> None:
        import asyncio

        from elasti.cli.running import connected

        if hosts:
            await _serve_visitors(hosts, namespace or "", elasti_namespace, port)
        async with (
            connected(access) as client,
            serving(client, namespace or "", elasti_namespace, port) as url,
        ):
            announce(url, opens=not no_open)
            await asyncio.Event().wait()

    run_until_interrupted(show, loop_factory=fast_loop())


def announce(url: str, *, opens: bool) -> None:
    """Print the address, and open it where there is a browser."""
    import webbrowser

    echo(f"The dashboard is at {url}")
    if opens and not webbrowser.open(url):
        echo("No browser could be opened here; open that address yourself, once.", err=True)


@contextlib.asynccontextmanager
async def serving(
    client: Client, namespace: str, elasti_namespace: str, port: int = 0
) -> AsyncIterator[str]:
    """Serve the page during the block; the value is the address to open. Raises Failure, KubeError."""
    from elasti.cli.elastiservices import ElastiServices, definition_needed
    from elasti.dashboard.feed import Feed
    from elasti.dashboard.server import DashboardServer
    from kubeloop.objects.list_watch import ListOptions

    # A watch would try again without end what is not installed, or not allowed.
    with definition_needed():
        await ElastiServices(client, namespace).resource.list(ListOptions(limit=1))
    feed = Feed(client, namespace, elasti_namespace)
    context = client.config.source.rpartition("context ")[2]
    place = f"{context}, {namespace or 'all namespaces'}"
    server = DashboardServer(client, feed, elasti_namespace=elasti_namespace, place=place)
    async with feed.running():
        try:
            await server.open(port)
            yield server.url
        finally:
            await server.close()


async def _serve_visitors(
    hosts: tuple[str, ...], namespace: str, elasti_namespace: str, port: int
) -> None:
    """Serve those whom a proxy sends, until cancelled. Raises ConfigError outside a pod."""
    import asyncio

    from elasti.dashboard.visitors import VisitorServer, visits_in_cluster
    from kubeloop.client.config.client_config import ClientSettings

    async with visits_in_cluster(elasti_namespace, ClientSettings.read()) as visits:
        server = VisitorServer(
            visits, hosts=hosts, namespace=namespace, elasti_namespace=elasti_namespace
        )
        try:
            await server.open(port, address=None)
            echo(f"The dashboard listens on port {server.port} for {', '.join(hosts)}")
            await asyncio.Event().wait()
        finally:
            await server.close()
