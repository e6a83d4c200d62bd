"""`elasti dashboard`: the page, served to a browser on this machine with the user's own rights."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

import click

from elasti.cli import options
from elasti.cli.rendering import echo

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from elasti.cli.cluster import AccessOptions
    from kubeloop.client import Client


@click.command("dashboard")
@options.namespace_option("Only this namespace; all by default.")
@click.option(
    "--port",
    type=options.WholeNumber(0, 65535),
    default=0,
    help="The port to listen on.  [default: a free one]",
)
@click.option("--no-open", is_flag=True, help="Print the address without opening a browser.")
@click.option(
    "--host",
    "hosts",
    metavar="HOST",
    multiple=True,
    help="In a pod: serve visitors at this host name, each with the bearer token that the proxy in front sends."
    " Repeat it for more host names.",
)
@options.elasti_namespace_option
@options.cluster_options
def command(
    *,
    access: AccessOptions,
    namespace: str | None,
    port: int,
    no_open: bool,
    hosts: tuple[str, ...],
    elasti_namespace: str,
) -> None:
    """Show ElastiServices in a browser, problems first, with buttons to wake and suspend them.

    The page is served on 127.0.0.1 until Ctrl-C, and can do what your kubeconfig allows. The address works once,
    in one browser.

    \b
    Examples:
      elasti dashboard
      elasti dashboard -n shop --no-open
    """
    from elasti.cli.programs import fast_loop
    from elasti.cli.running import run_until_interrupted

    async def show() -> None:
        import asyncio

        from elasti.cli.running import connected

        if hosts:
            await _serve_visitors(hosts, namespace or "", elasti_namespace, port)
        async with (
            connected(access) as client,
            serving(client, namespace or "", elasti_namespace, port) as url,
        ):
            with announced(url, opens=not no_open):
                await asyncio.Event().wait()

    run_until_interrupted(show, loop_factory=fast_loop())


@contextlib.contextmanager
def announced(url: str, *, opens: bool) -> Iterator[None]:
    """Print the address, and open it if there is a browser.

    Every user of the machine can read a browser's arguments, and the address has a code in it. So the browser opens
    a file that only this user can read and that sends it on; the file is there during the block. It is in the home
    directory because browsers in a sandbox do not see others.
    """
    import html
    import pathlib
    import tempfile
    import webbrowser

    echo(f"The dashboard is at {url}")
    if not opens:
        yield
        return
    home = pathlib.Path.home()
    with tempfile.NamedTemporaryFile(
        "w",
        prefix="elasti-dashboard-",
        suffix=".html",
        dir=home if os.access(home, os.W_OK) else None,
    ) as page:
        page.write(f'<meta http-equiv="refresh" content="0; url={html.escape(url)}">')
        page.flush()
        if not webbrowser.open(pathlib.Path(page.name).as_uri()):
            echo("No browser could be started; open the address yourself. It works once.", err=True)
        yield


@contextlib.asynccontextmanager
async def serving(
    client: Client, namespace: str, elasti_namespace: str, port: int = 0
) -> AsyncIterator[str]:
    """Serve the page during the block; yields the address to open. Raises Failure, KubeError."""
    from elasti.cli.elastiservices import ElastiServices, definition_needed
    from elasti.dashboard.feed import Feed
    from elasti.dashboard.server import DashboardServer
    from kubeloop.objects.list_watch import ListOptions

    # A watch would retry forever what is not installed, or not allowed.
    with definition_needed():
        await ElastiServices(client, namespace).resource.list(ListOptions(limit=1))
    feed = Feed(client, namespace, elasti_namespace)
    place = f"{client.config.context or 'in-cluster'}, {namespace or 'all namespaces'}"
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
    """Serve the visitors that a proxy sends, until cancelled. Raises ConfigError outside a pod."""
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
