"""`elasti dev`: a Kubernetes of one's own."""

from __future__ import annotations

import contextlib
import gc
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Iterator


@click.command("dev")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=7443,
    show_default=True,
    help="Where the API server listens on 127.0.0.1; 0 takes any free port.",
)
@click.option(
    "--nodes", type=click.IntRange(1, 250), default=1, show_default=True, help="How many nodes."
)
@click.option(
    "--data-dir",
    type=click.Path(file_okay=False, path_type=Path),
    default=None,
    help="Keep the cluster here over restarts; without it, it is gone when the command ends.",
)
@click.option(
    "--kubeconfig",
    type=click.Path(dir_okay=False, path_type=Path),
    default=None,
    help="Put the context `elasti-dev` into this file, beside what it has."
    "  [default: ~/.kube/elasti-dev.yaml]",
)
@click.option(
    "--run",
    "programs",
    metavar="IMAGE=COMMAND",
    multiple=True,
    help="What runs for an image where a container names no command; may be repeated.",
)
@click.option(
    "--netns",
    is_flag=True,
    help="Give the cluster a network namespace of its own: private addresses, low ports.",
)
def command(
    *,
    port: int,
    nodes: int,
    data_dir: Path | None,
    kubeconfig: Path | None,
    programs: tuple[str, ...],
    netns: bool,
) -> None:
    """Run a development cluster until Ctrl-C: an API server, controllers, pods as local processes.

    It needs no privileges, no containers and no images: a pod's command runs on this machine. It is
    for development and tests, not for production.

    \b
    Examples:
      elasti dev
      elasti dev --nodes 3 --data-dir ~/.local/share/elasti-dev
      elasti dev --port 0 --kubeconfig ~/.kube/config
      elasti dev --run 'nginx=python3 -m http.server --bind $(POD_IP) 80'
    """
    with _collector_off():
        import os

        from elasti.cli.dev_run import (
            container_environment,
            enter_network_namespace,
            lean_loop,
            read_programs,
            run,
        )
        from elasti.cli.running import run_until_interrupted

        entrypoints = read_programs(programs)
        outside = enter_network_namespace(port) if netns else None
        run_until_interrupted(
            lambda: run(
                port=port,
                nodes=nodes,
                data_dir=data_dir.expanduser() if data_dir else None,
                kubeconfig=(kubeconfig or Path("~/.kube/elasti-dev.yaml")).expanduser(),
                entrypoints=entrypoints,
                outside=outside,
                environment=container_environment(os.environ),
                say=click.echo,
            ),
            loop_factory=lean_loop(),
        )


@contextlib.contextmanager
def _collector_off() -> Iterator[None]:
    """What a start makes is there to stay: looking for garbage in it takes a tenth of the time.

    A cluster that is up turns the collector on; one that does not start leaves it on as well.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
