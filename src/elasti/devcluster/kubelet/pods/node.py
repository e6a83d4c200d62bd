"""What the pods of a node share."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import aiohttp

    from elasti.devcluster.kubelet.addresses import AddressPool
    from elasti.devcluster.kubelet.objects.pods import Pod
    from elasti.devcluster.kubelet.pods.telling import Recorder
    from elasti.devcluster.kubelet.processes import Processes
    from elasti.devcluster.kubelet.references import ObjectCache
    from elasti.devcluster.kubelet.settings import KubeletSettings
    from kubeloop.aio.clock import Clock
    from kubeloop.client.client import Client
    from kubeloop.client.resource import Resource


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One node, as its pods' workers see it."""

    root_dir: Path
    settings: KubeletSettings
    client: Client
    pods: Resource[Pod]
    processes: Processes
    session: aiohttp.ClientSession
    objects: ObjectCache
    addresses: AddressPool
    recorder: Recorder
    clock: Clock
    capacity: Mapping[str, str]
    api_server: tuple[str, int]
    started_at: float
    """When the kubelet began (loop time)."""
