"""What the shell offers after a Tab: contexts from the kubeconfig, ElastiServices from the cluster.

A shell waits while this runs, so it ends after a second, whatever it is waiting for, and says nothing
about what went wrong: the command itself will.
"""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import click

    from elasti.cli.options import Access

PATIENCE = 1.0


def complete_contexts(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Offer the contexts of the kubeconfig."""
    del param
    from kubeloop.client.errors import KubeError
    from kubeloop.client.kubeconfig_files import load_files
    from kubeloop.client.settings import ClientSettings

    given = ctx.params.get("kubeconfig")
    try:
        paths = (given,) if given else ClientSettings.read().kubeconfig_paths()
        contexts = load_files(paths).contexts
    except (KubeError, OSError):
        return []
    return sorted(name for name in contexts if name.startswith(incomplete))


def complete_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Offer the names of ElastiServices that are not on the line yet."""
    assert param.name is not None
    # A resolver library that hangs cannot be cancelled, and an exit would wait for its thread.
    signal.signal(signal.SIGALRM, lambda *_: os._exit(0))
    signal.setitimer(signal.ITIMER_REAL, PATIENCE)
    try:
        from elasti.cli.options import Access

        access = Access(context=ctx.params.get("context"), kubeconfig=ctx.params.get("kubeconfig"))
        named = ctx.params.get(param.name) or ()
        found = names_from(access, ctx.params.get("namespace"))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return [name for name in found if name.startswith(incomplete) and name not in named]


def names_from(access: Access, namespace: str | None) -> list[str]:
    """Return the names of ElastiServices; none where they cannot be had."""
    import asyncio
    import logging

    from elasti.cli.objects import RESOURCE
    from elasti.cli.running import config_for
    from kubeloop.client import Client, KubeError, RetryPolicy
    from kubeloop.objects.meta import PartialObjectMetadata

    async def ask() -> list[str]:
        async with Client(config_for(access), retry=RetryPolicy.never()) as client:
            where = namespace or client.namespace
            pager = client.resource(RESOURCE, PartialObjectMetadata).items(namespace=where)
            return sorted([item.metadata.name async for item in pager])

    logging.disable()
    try:
        return asyncio.run(ask())
    except (KubeError, OSError):
        return []
    finally:
        logging.disable(logging.NOTSET)
