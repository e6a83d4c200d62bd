"""Everything a client must know before its first request, from whichever source has it.

`from_env` looks for a pod's own ServiceAccount first and for a kubeconfig second. Nothing here
touches the network, and no credential is obtained before it is asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kubeloop.client.settings import ClientSettings

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from kubeloop.client.credentials import Credentials
    from kubeloop.client.endpoint import Endpoint
    from kubeloop.client.impersonation import Impersonation


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """Where the server is, who we are, and where that was written down (`source`)."""

    endpoint: Endpoint
    credentials: Credentials
    source: str
    namespace: str = "default"
    impersonate: Impersonation | None = None

    @classmethod
    def from_env(
        cls, *, context: str | None = None, settings: ClientSettings | None = None
    ) -> ClientConfig:
        """Use the pod's ServiceAccount where there is one, else the kubeconfig.

        A `context` names an entry of a kubeconfig, so asking for one skips the ServiceAccount.
        Raises `ConfigError`.
        """
        raise NotImplementedError

    @classmethod
    def from_kubeconfig(
        cls,
        paths: str | Path | Iterable[str | Path] | None = None,
        *,
        context: str | None = None,
        settings: ClientSettings | None = None,
    ) -> ClientConfig:
        """Read kubeconfig files: one given path must exist, several are merged as KUBECONFIG is.

        Without paths, KUBECONFIG and then ~/.kube/config are read. Raises `ConfigError`.
        """
        raise NotImplementedError

    @classmethod
    def in_cluster(cls, *, settings: ClientSettings | None = None) -> ClientConfig:
        """Use the ServiceAccount that the kubelet mounted. Raises `ConfigError` outside a pod."""
        raise NotImplementedError
