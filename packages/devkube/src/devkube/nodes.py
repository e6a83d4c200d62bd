"""The nodes of a cluster: a kubelet each, with its own client, addresses and directory."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

from devkube.addresses import AddressPool, AddressRanges
from devkube.apiserver.core import Core
from devkube.apiserver.server import ApiServer
from devkube.auth.gate import NODE_PREFIX, NODES
from devkube.kubelet.kubelet import Kubelet, KubeletSettings
from devkube.kubelet.logs.reading import PodLogs
from devkube.kubelet.stats import ByteCounts, StatsServer
from kubeloop.aio.clock import Clock
from kubeloop.client.client import Client
from kubeloop.objects.meta import JsonObject


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NodeOptions:
    """What all nodes of a cluster have in common."""

    server: ApiServer
    ranges: AddressRanges
    directory: Path
    environment: Mapping[str, str]
    entrypoints: Mapping[str, tuple[str, ...]]
    clock: Clock
    counts: ByteCounts


def serve_logs(core: Core, kubelets: Sequence[Kubelet], clock: Clock) -> None:
    """Let the API server answer `pods/log` from the nodes of this process."""
    logs = {kubelet.node_name: kubelet.logs for kubelet in kubelets}

    def find_pod(namespace: str, name: str) -> JsonObject | None:
        record = core.store.collection("/pods").get(f"{namespace}/{name}")
        return record.decode() if record is not None else None

    core.streams["pods", "log"] = PodLogs(find_pod=find_pod, node=logs.get, clock=clock).answer


async def make_kubelets(
    stack: contextlib.AsyncExitStack, names: Sequence[str], options: NodeOptions
) -> list[Kubelet]:
    """Make a kubelet for every name; their clients close with the stack."""
    return [
        await _kubelet(stack, name, number, options) for number, name in enumerate(names, start=1)
    ]


async def _kubelet(
    stack: contextlib.AsyncExitStack, name: str, number: int, options: NodeOptions
) -> Kubelet:
    config = options.server.client_config(f"{NODE_PREFIX}{name}", [NODES])
    client = await stack.enter_async_context(Client(config))
    settings = KubeletSettings(
        node_address=options.ranges.node(number), entrypoints=options.entrypoints
    )
    if options.environment:
        settings = dataclasses.replace(settings, environment=options.environment)
    kubelet = Kubelet(
        client,
        node_name=name,
        ip_pool=AddressPool(options.ranges.pods(number)),
        root_dir=options.directory / name,
        settings=settings,
        clock=options.clock,
        counts=options.counts,
    )
    stats = StatsServer(
        name,
        kubelet.pods,
        counts=options.counts,
        gate=options.server.core.gate,
        clock=options.clock,
    )
    tls = options.server.server_tls([settings.node_address, name])
    await stack.enter_async_context(stats.serving(settings.node_address, tls))
    return kubelet
