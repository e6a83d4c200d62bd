"""Everything a client must know before its first request, from whichever source has it.

`from_env` looks for a pod's own ServiceAccount first and for a kubeconfig second. Nothing here
touches the network, and no credential is obtained before it is asked for.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from kubeloop.aio.clock import SystemClock
from kubeloop.client import incluster
from kubeloop.client.credentials import Anonymous, Credentials
from kubeloop.client.errors import ConfigError
from kubeloop.client.kubeconfig import Context, Entry, Kubeconfig, User
from kubeloop.client.kubeconfig_cluster import endpoint_of, tls_of
from kubeloop.client.kubeconfig_files import load_file, load_files
from kubeloop.client.kubeconfig_user import credentials_of, impersonation_of
from kubeloop.client.settings import ClientSettings

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kubeloop.aio.clock import Clock
    from kubeloop.client.endpoint import Endpoint
    from kubeloop.client.impersonation import Impersonation

T = TypeVar("T")

_LOG = logging.getLogger(__name__)


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
        settings = settings or ClientSettings.read()
        if context is None and incluster.is_in_cluster(settings):
            return cls.in_cluster(settings=settings)
        return cls.from_kubeconfig(context=context, settings=settings)

    @classmethod
    def in_cluster(cls, *, settings: ClientSettings | None = None) -> ClientConfig:
        """Use the ServiceAccount that the kubelet mounted. Raises `ConfigError` outside a pod."""
        settings = settings or ClientSettings.read()
        return cls(
            endpoint=incluster.endpoint(settings),
            credentials=incluster.credentials(settings),
            namespace=incluster.namespace(settings),
            source="in-cluster",
        )

    @classmethod
    def from_kubeconfig(
        cls,
        paths: str | Path | Iterable[str | Path] | None = None,
        *,
        context: str | None = None,
        settings: ClientSettings | None = None,
        clock: Clock | None = None,
    ) -> ClientConfig:
        """Read kubeconfig files: one given path must exist, several are merged as KUBECONFIG's are.

        Without paths, KUBECONFIG and then ~/.kube/config are read. Raises `ConfigError`.
        """
        settings = settings or ClientSettings.read()
        return cls._from_merged(
            _load(paths, settings),
            context=context,
            settings=settings,
            clock=clock or SystemClock(),
        )

    @classmethod
    def _from_merged(
        cls, merged: Kubeconfig, *, context: str | None, settings: ClientSettings, clock: Clock
    ) -> ClientConfig:
        chosen = _context(merged, context)
        cluster = _referred(merged.clusters, chosen, "cluster", chosen.value.cluster)
        user = _user(merged, chosen)
        endpoint = endpoint_of(cluster)
        # As kubectl: nothing that proves who we are is read for, or sent over, a plain connection.
        credentials: Credentials = Anonymous()
        if endpoint.is_secure:
            credentials = credentials_of(
                user, cluster=cluster, tls=tls_of(cluster), environ=settings.environ, clock=clock
            )
        elif user.value.has_credentials:
            _LOG.warning("%s: its credentials are not used: %s is not https", user.place, endpoint)
        return cls(
            endpoint=endpoint,
            credentials=credentials,
            namespace=chosen.value.namespace or "default",
            impersonate=impersonation_of(user),
            source=f"kubeconfig {merged.source}, context {chosen.name}",
        )


def _load(paths: str | Path | Iterable[str | Path] | None, settings: ClientSettings) -> Kubeconfig:
    if isinstance(paths, (str, Path)):
        return load_file(Path(paths))
    tried = settings.kubeconfig_paths() if paths is None else tuple(map(Path, paths))
    merged = load_files(tried)
    if not merged.files:
        raise ConfigError(
            f"no configuration: {_tried(tried)}; set KUBECONFIG to a file, or run inside a pod with"
            " a ServiceAccount"
        )
    return merged


def _tried(paths: tuple[Path, ...]) -> str:
    if not paths:
        return "neither KUBECONFIG nor HOME is set"
    names = ", ".join(map(str, paths))
    return f"{names} does not exist" if len(paths) == 1 else f"none of {names} exists"


def _context(merged: Kubeconfig, asked: str | None) -> Entry[Context]:
    name = asked or merged.current_context
    if not name and not merged.contexts:
        raise ConfigError(f"{merged.source}: has no contexts; is it a kubeconfig, and complete?")
    if not name:
        raise ConfigError(
            f"{merged.source}: no current-context is set; choose one of {_known(merged.contexts)}"
            " (kubectl config use-context NAME)"
        )
    if name not in merged.contexts:
        where = "" if asked else "current-context: "
        raise ConfigError(
            f"{merged.source}: {where}there is no context {name!r}; there is"
            f" {_known(merged.contexts)}"
        )
    return merged.contexts[name]


def _referred(
    entries: dict[str, Entry[T]], context: Entry[Context], field: str, name: str
) -> Entry[T]:
    if name in entries:
        return entries[name]
    problem = f"there is no {field} {name!r}" if name else "is empty"
    raise context.place.at(field).error(f"{problem}; there is {_known(entries)}")


def _user(merged: Kubeconfig, context: Entry[Context]) -> Entry[User]:
    """Return the context's user; a context that names none is anonymous."""
    if not context.value.user:
        return Entry(name="", value=User(), place=context.place.at("user"))
    return _referred(merged.users, context, "user", context.value.user)


def _known(entries: Iterable[str]) -> str:
    return ", ".join(sorted(map(repr, entries))) or "none"
