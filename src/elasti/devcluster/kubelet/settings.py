"""How one kubelet is set up."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from elasti.devcluster.kubelet.pods.restarts import RestartPolicy
from elasti.devcluster.kubelet.supervisor.spec import Isolation
from kubeloop.aio.backoff import Backoff

if TYPE_CHECKING:
    from collections.abc import Mapping

    from elasti.devcluster.kubelet.logs.server import ServerSettings

_RETRY = Backoff(duration=0.1, factor=2.0, jitter=0.2, cap=5.0)
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class KubeletSettings:
    """What may be different; everything has a default."""

    node_address: str = "127.0.0.1"
    api_server: tuple[str, int] | None = None
    """Where pods find the API server; None: where this kubelet finds it."""
    environment: Mapping[str, str] = dataclasses.field(default_factory=lambda: {"PATH": PATH})
    """What every container inherits; an image's variables would be."""
    entrypoints: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    """Programs of images: what runs where a container names no command."""
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)
    capacity: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Overrides of what the machine has, such as `pods`."""
    version: str = "v1.36.3"
    restarts: RestartPolicy = dataclasses.field(default_factory=RestartPolicy)
    retry: Backoff = _RETRY
    """Between attempts to reach the API server."""
    lease_seconds: int = 40
    lease_renewed_every: float = 10.0
    status_every: float = 300.0
    log_limit: int = 10 * 1024 * 1024
    """Bytes of a log file, of which two are kept for each run."""
    max_pods: int = 110
    isolation: Isolation = Isolation.PRIVILEGED
    """The most that containers get, where the machine allows it."""
    server: ServerSettings | None = None
    """The kubelet's own HTTPS server, for an API server in another process."""

    @property
    def short_version(self) -> str:
        """Major and minor, as probes name themselves."""
        return ".".join(self.version.lstrip("v").split(".")[:2])
