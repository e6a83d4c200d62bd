"""What `elasti dev` does: a cluster, a kubeconfig for it, and a few lines on what to type next."""

from __future__ import annotations

import asyncio
import errno
import gc
import importlib
import importlib.util
import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from devkube import kubeconfig as kubeconfigs
from devkube import netns
from devkube.addresses import NoAddresses
from devkube.cluster import CONTEXT, ComponentFailed, DevCluster, PortInUse, read_program
from devkube.datadir import DamagedFile, DirectoryInUse
from elasti.api.names import OPERATOR, RESOLVER

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Mapping, Sequence

_HOST = "127.0.0.1"
_START_SECONDS = 60.0
_OWN_IMAGES = {
    "elasti": ("elasti",),
    OPERATOR: ("elasti", "operator"),
    RESOLVER: ("elasti", "resolver"),
}
_EXPECTED = (
    PortInUse,
    DirectoryInUse,
    DamagedFile,
    NoAddresses,
    ComponentFailed,
    kubeconfigs.KubeconfigError,
)


async def run(
    *,
    port: int,
    nodes: int,
    data_dir: Path | None,
    kubeconfig: Path,
    entrypoints: Mapping[str, tuple[str, ...]],
    outside: NamespaceAccess | None,
    environment: Mapping[str, str],
    say: Callable[[str], None],
) -> None:
    """Run a cluster until cancelled. Raises ClickException with one line where it cannot."""
    try:
        async with DevCluster(
            port=port,
            nodes=nodes,
            data_dir=data_dir,
            environment=environment,
            entrypoints=entrypoints,
            outside=outside.socket if outside else None,
        ) as cluster:
            current = kubeconfigs.write(kubeconfig, cluster.access())
            await _ready(cluster)
            for line in startup_message(cluster.url, nodes, data_dir, kubeconfig, current=current):
                say(line)
            if outside is not None:
                say(f"Pods and Services are in a network of their own: {outside.enter} enters it.")
            _tidy_up()
            await cluster.failed()
    except _EXPECTED as error:
        raise click.ClickException(str(error)) from error


def _tidy_up() -> None:
    """Collect the garbage of the start, and never look at what is left of it again."""
    gc.collect()
    gc.freeze()
    gc.enable()


async def _ready(cluster: DevCluster) -> None:
    try:
        async with asyncio.timeout(_START_SECONDS):
            await cluster.wait_ready()
    except TimeoutError:
        raise click.ClickException(
            f"the nodes are not ready after {_START_SECONDS:.0f} s; is the machine out of memory,"
            " or very busy?"
        ) from None


class NamespaceAccess(NamedTuple):
    """The way into the cluster of a process in a network namespace."""

    socket: socket.socket
    enter: str
    """The command that runs a shell where the pods are."""


def enter_network_namespace(port: int) -> NamespaceAccess:
    """Listen, then move this process into a network namespace. Raises ClickException."""
    user = "" if os.geteuid() == 0 else " -U --preserve-credentials"
    try:
        listening = netns.listen(_HOST, port)
        netns.enter()
    except netns.NamespaceRefused as error:
        raise click.ClickException(str(error)) from error
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise click.ClickException(str(PortInUse(_HOST, port))) from error
        raise click.ClickException(f"cannot listen on {_HOST}:{port}: {error}") from error
    return NamespaceAccess(listening, f"nsenter -t {os.getpid()}{user} -n")


def read_programs(given: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Read the `--run` options, over what runs Elasti's own images. Raises BadParameter."""
    try:
        return {**_OWN_IMAGES, **dict(map(read_program, given))}
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--run") from error


def container_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return what pods see of the user's environment: where programs are, and the language.

    The directory of this very Python comes first: what is installed beside Elasti is found.
    """
    kept = {name: environ[name] for name in ("HOME", "LANG", "LC_ALL", "TZ") if name in environ}
    own = str(Path(sys.executable).parent)
    return {**kept, "PATH": os.pathsep.join([own, environ.get("PATH", os.defpath)])}


def lean_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return uvloop where it is installed: a watch over TLS takes a fifth of asyncio's memory there."""
    if importlib.util.find_spec("uvloop") is None:
        return None
    return importlib.import_module("uvloop").new_event_loop  # type: ignore[no-any-return]  # a name known at run time only


def startup_message(
    url: str, nodes: int, data_dir: Path | None, kubeconfig: Path, *, current: bool
) -> list[str]:
    """Return what a person needs to know now."""
    kept = f"kept in {data_dir}" if data_dir else "in memory; --data-dir keeps it"
    context = "" if current else f" --context {CONTEXT}"
    return [
        f"Kubernetes for development is running at {url}",
        f"({nodes} node{'s' if nodes > 1 else ''}; state {kept}). Not for production.",
        "",
        f"  export KUBECONFIG={shlex.quote(str(kubeconfig.absolute()))}",
        f"  kubectl{context} get nodes",
        "",
        "Ctrl-C stops it, and every pod.",
    ]
