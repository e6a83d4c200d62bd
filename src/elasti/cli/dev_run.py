"""What `elasti dev` does: a cluster, a kubeconfig for it, and a few lines on what to type next."""

from __future__ import annotations

import importlib
import importlib.util
import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from elasti.devcluster import kubeconfig as kubeconfigs
from elasti.devcluster.addresses import NoAddresses
from elasti.devcluster.cluster import CONTEXT, ComponentFailed, DevCluster, PortInUse
from elasti.devcluster.datadir import DirectoryInUse

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping

_EXPECTED = (PortInUse, DirectoryInUse, NoAddresses, ComponentFailed, kubeconfigs.KubeconfigError)


async def run(
    *,
    port: int,
    nodes: int,
    data_dir: Path | None,
    kubeconfig: Path,
    environment: Mapping[str, str],
    say: Callable[[str], None],
) -> None:
    """Run a cluster until cancelled. Raises ClickException with one line where it cannot."""
    try:
        async with DevCluster(
            port=port, nodes=nodes, data_dir=data_dir, environment=environment
        ) as cluster:
            current = kubeconfigs.write(kubeconfig, cluster.access())
            await cluster.wait_ready()
            for line in greeting(cluster.url, nodes, data_dir, kubeconfig, current=current):
                say(line)
            await cluster.failed()
    except _EXPECTED as error:
        raise click.ClickException(str(error)) from error


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


def greeting(
    url: str, nodes: int, data_dir: Path | None, kubeconfig: Path, *, current: bool
) -> list[str]:
    """Return what a person needs to know now."""
    kept = f"kept in {data_dir}" if data_dir else "in memory; --data-dir keeps it"
    context = "" if current else f" --context {CONTEXT}"
    return [
        f"Kubernetes for development is running at {url}",
        f"({nodes} node{'s' if nodes > 1 else ''}; state {kept}). Not for production.",
        "",
        f"  export KUBECONFIG={shlex.quote(str(kubeconfig))}",
        f"  kubectl{context} get nodes",
        "",
        "Ctrl-C stops it, and every pod.",
    ]
