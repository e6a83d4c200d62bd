"""`elasti dev`: a local Kubernetes, a kubeconfig for it, and the next commands to type.

The dev cluster is the distribution `devkube`, an extra of ours: what runs in production lacks it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import importlib.util
import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from elasti.api.names import OPERATOR, RESOLVER
from elasti.cli.exits import Failure
from elasti.cli.options import WholeNumber
from elasti.cli.rendering import echo

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from devkube.cluster import DevCluster

_START_SECONDS = 60.0
_CONTEXT = "elasti-dev"
_OWN_IMAGES = {
    "elasti": ("elasti",),
    OPERATOR: ("elasti", "operator"),
    RESOLVER: ("elasti", "resolver"),
}


@click.command("dev")
@click.option(
    "--port",
    type=WholeNumber(0, 65535),
    default=7443,
    show_default=True,
    help="Where the API server listens on 127.0.0.1; 0 takes any free port.",
)
@click.option(
    "--nodes", type=WholeNumber(1, 250), default=1, show_default=True, help="How many nodes."
)
@click.option(
    "--data-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keep the cluster in this directory over restarts; without it, the cluster is lost when the command ends.",
)
@click.option(
    "--kubeconfig",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Put the context `elasti-dev` into this file, beside what it has."
    "  [default: ~/.kube/elasti-dev.yaml]",
)
@click.option(
    "--run",
    "programs",
    metavar="IMAGE=COMMAND",
    multiple=True,
    help="The command for an image, if a container names no command; may be repeated.",
)
def command(
    *,
    port: int,
    nodes: int,
    data_dir: Path | None,
    kubeconfig: Path | None,
    programs: tuple[str, ...],
) -> None:
    """Run a development cluster until Ctrl-C: an API server, controllers, pods as local processes.

    It needs no privileges, no containers and no images: a pod's command runs on this machine. It is
    for development and tests, not for production.

    \b
    Examples:
      elasti dev
      elasti dev --nodes 3 --data-dir ~/.local/share/elasti-dev
      elasti dev --port 0 --kubeconfig ~/.kube/config
      elasti dev --run 'nginx=python3 -m http.server --bind $(POD_IP) 8080'
    """
    with _collector_off():
        need_devkube("elasti dev")
        from elasti.cli.programs import fast_loop
        from elasti.cli.running import run_until_interrupted

        entrypoints = read_programs(programs)
        run_until_interrupted(
            lambda: _run(
                port=port,
                nodes=nodes,
                data_dir=data_dir.expanduser() if data_dir else None,
                kubeconfig=(kubeconfig or Path("~/.kube/elasti-dev.yaml")).expanduser(),
                entrypoints=entrypoints,
            ),
            loop_factory=fast_loop(),
        )


def need_devkube(command: str) -> None:
    """Refuse a command if the dev cluster is not installed. Raises Failure."""
    # Looked up, not imported: an error within devkube is not its absence.
    if importlib.util.find_spec("devkube") is None:
        raise Failure(
            f"`{command}` needs the dev cluster, which is not installed:"
            " pip install 'elasti-operator[dev]'"
        )


@contextlib.contextmanager
def _collector_off() -> Iterator[None]:
    """Objects made at the start stay: looking for garbage among them takes a tenth of the time.

    A cluster that is up turns the collector on; one that does not start leaves it on as well.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


async def _run(
    *,
    port: int,
    nodes: int,
    data_dir: Path | None,
    kubeconfig: Path,
    entrypoints: Mapping[str, tuple[str, ...]],
) -> None:
    """Run a cluster until cancelled. Raises ClickException with one line if it cannot start."""
    from devkube import kubeconfig as kubeconfigs
    from devkube.addresses import NoAddresses
    from devkube.cluster import ComponentFailed, DevCluster, PortInUse
    from devkube.datadir import DamagedFile, DirectoryInUse

    try:
        async with DevCluster(
            port=port,
            nodes=nodes,
            data_dir=data_dir,
            environment=container_environment(os.environ),
            entrypoints=entrypoints,
        ) as cluster:
            access = dataclasses.replace(cluster.access(), name=_CONTEXT)
            current = kubeconfigs.write(kubeconfig, access)
            await _ready(cluster)
            there = len(cluster.node_names)
            for line in startup_message(cluster.url, there, data_dir, kubeconfig, current=current):
                echo(line)
            # Objects left by the start are garbage, or stay: do not scan them again.
            gc.collect()
            gc.freeze()
            gc.enable()
            await cluster.failed()
    except (
        PortInUse,
        DirectoryInUse,
        DamagedFile,
        NoAddresses,
        ComponentFailed,
        kubeconfigs.KubeconfigError,
    ) as error:
        raise click.ClickException(str(error)) from error


async def _ready(cluster: DevCluster) -> None:
    import asyncio

    try:
        async with asyncio.timeout(_START_SECONDS):
            await cluster.wait_ready()
    except TimeoutError:
        raise click.ClickException(
            f"the nodes are not ready after {_START_SECONDS:.0f} s; is the machine out of memory,"
            " or very busy?"
        ) from None


def read_programs(given: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Read the `--run` options, over what runs Elasti's own images. Raises BadParameter."""
    from devkube.cluster import read_program

    try:
        return {**_OWN_IMAGES, **dict(map(read_program, given))}
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--run") from error


def container_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of pods: the user's home, language and path, and where Elasti listens.

    The directory of this Python comes first in the path, so that pods find what is installed beside Elasti.
    """
    kept = {name: environ[name] for name in ("HOME", "LANG", "LC_ALL", "TZ") if name in environ}
    own = str(Path(sys.executable).parent)
    path = os.pathsep.join([own, environ.get("PATH", os.defpath)])
    return {**kept, "PATH": path, "ELASTI_LISTEN_ADDRESS": "$(POD_IP)"}


def startup_message(
    url: str, nodes: int, data_dir: Path | None, kubeconfig: Path, *, current: bool
) -> list[str]:
    """Return the lines that show a user how to reach the cluster."""
    kept = f"kept in {data_dir}" if data_dir else "in memory; --data-dir keeps it"
    context = "" if current else f" --context {_CONTEXT}"
    return [
        f"Kubernetes for development is running at {url}",
        f"({nodes} node{'s' if nodes > 1 else ''}; state {kept}). Not for production.",
        "",
        f"  export KUBECONFIG={shlex.quote(str(kubeconfig.absolute()))}",
        f"  kubectl{context} get nodes",
        "",
        "Ctrl-C stops it, and every pod.",
    ]
