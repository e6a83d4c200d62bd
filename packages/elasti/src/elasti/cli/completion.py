"""`elasti completion`: the script for a shell, and what it offers after a Tab.

Contexts come from the kubeconfig, namespaces and ElastiServices from the cluster. A shell waits while this runs, so it ends
after a second in any case, and prints no error: the command itself will.
"""

from __future__ import annotations

import os
import signal

import click

from elasti.api.names import ELASTISERVICES
from elasti.cli.cluster import AccessOptions, config_for

PATIENCE = 1.0


def complete_contexts(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Offer the contexts of the kubeconfig."""
    from kubeloop.client.config.client_config import ClientSettings
    from kubeloop.client.config.kubeconfig import load_files
    from kubeloop.client.errors import KubeError

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
    named = ctx.params.get(param.name) or ()
    found = _names_in_time(ctx, ELASTISERVICES, ctx.params.get("namespace"))
    return [name for name in found if name.startswith(incomplete) and name not in named]


def complete_namespaces(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Offer the namespaces of the cluster."""
    return [
        name for name in _names_in_time(ctx, "v1/namespaces", "") if name.startswith(incomplete)
    ]


def _names_in_time(ctx: click.Context, resource: str, namespace: str | None) -> list[str]:
    # A resolver library that hangs cannot be cancelled, and an exit would wait for its thread.
    signal.signal(signal.SIGALRM, lambda *_: os._exit(0))
    signal.setitimer(signal.ITIMER_REAL, PATIENCE)
    try:
        access = AccessOptions(
            context=ctx.params.get("context"), kubeconfig=ctx.params.get("kubeconfig")
        )
        return names_from(access, resource, namespace)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def names_from(access: AccessOptions, resource: str, namespace: str | None) -> list[str]:
    """Return the names of objects; empty if they cannot be read."""
    import asyncio
    import logging

    from kubeloop.client import Client, KubeError, RetryPolicy
    from kubeloop.objects.meta import PartialObjectMetadata

    async def ask() -> list[str]:
        async with Client(config_for(access), retry=RetryPolicy.never()) as client:
            where = client.namespace if namespace is None else namespace
            pager = client.resource(resource, PartialObjectMetadata).items(namespace=where)
            return sorted([item.metadata.name async for item in pager])

    logging.disable()
    try:
        return asyncio.run(ask())
    except (KubeError, OSError):
        return []
    finally:
        logging.disable(logging.NOTSET)


_VARIABLE = "_ELASTI_COMPLETE"


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(*, shell: str) -> None:
    """Print a script that completes commands, options, contexts, namespaces and ElastiServices.

    Names come from the cluster, if it answers within a second.

    \b
    Examples:
      source <(elasti completion bash)
      elasti completion zsh > "${fpath[1]}/_elasti"
      elasti completion fish > ~/.config/fish/completions/elasti.fish
    """
    from click.shell_completion import ShellComplete, get_completion_class

    root = click.get_current_context().find_root()
    found = get_completion_class(shell)
    assert found is not None
    # Not through bash's own class: it runs bash to see how old it is, and may warn on this terminal
    # about a shell in which the script is not going to be used.
    script = ShellComplete.source(found(root.command, {}, "elasti", _VARIABLE))
    click.echo(script)
