"""`ClientConfig`: all that a client must know before its first request, from any source.

`from_env` looks for a pod's own ServiceAccount first and for a kubeconfig second. Nothing here
touches the network, and no credential is obtained before it is needed.

`ClientSettings` is the environment, and this the only module of the client that reads it: once,
into a value that is passed on, so that a test or a program with several clients decides what each
of them sees. In a pod, token and CA are files that the kubelet replaces while the process runs;
both are read again when they change.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from kubeloop.aio.clock import Clock, SystemClock
from kubeloop.client.auth.credentials import (
    Anonymous,
    ComposedCredentials,
    Credentials,
    FileToken,
    NoCertificate,
)
from kubeloop.client.auth.tls import PemSource, TlsContexts
from kubeloop.client.config.endpoint import Endpoint
from kubeloop.client.errors import ConfigError
from kubeloop.objects.names import url_host

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kubeloop.client.auth.identity import Impersonation
    from kubeloop.client.config.kubeconfig import AuthInfo, Context, Kubeconfig, KubeconfigEntry


SERVICEACCOUNT_DIR = Path("/var/run/secrets/kubernetes.io/serviceaccount")


_HOST, _PORT = "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"
T = TypeVar("T")
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """Where configuration may be found. `environ` is what exec plugins inherit."""

    kubeconfig: str = ""
    service_host: str = ""
    service_port: str = ""
    home: Path | None = None
    serviceaccount_dir: Path = SERVICEACCOUNT_DIR
    environ: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def read(cls, environ: Mapping[str, str] | None = None) -> ClientSettings:
        """Read the process's environment, or the mapping given instead of it."""
        env = dict(os.environ if environ is None else environ)
        directory = env.get("KUBELOOP_SERVICEACCOUNT_DIR")
        return cls(
            kubeconfig=env.get("KUBECONFIG", ""),
            service_host=env.get("KUBERNETES_SERVICE_HOST", ""),
            service_port=env.get("KUBERNETES_SERVICE_PORT", ""),
            home=Path(env["HOME"]) if env.get("HOME") else None,
            serviceaccount_dir=Path(directory) if directory else SERVICEACCOUNT_DIR,
            environ=env,
        )

    def kubeconfig_paths(self) -> tuple[Path, ...]:
        """Return the files to merge: those KUBECONFIG lists, else ~/.kube/config."""
        if self.kubeconfig:
            listed = [Path(part) for part in self.kubeconfig.split(os.pathsep) if part]
            return tuple(dict.fromkeys(listed))
        return (self.home / ".kube" / "config",) if self.home else ()


def is_in_cluster(settings: ClientSettings) -> bool:
    """Whether this process runs in a pod that has a ServiceAccount."""
    present = bool(settings.service_host and settings.service_port)
    return present and (settings.serviceaccount_dir / "token").exists()


def in_cluster_endpoint(settings: ClientSettings) -> Endpoint:
    """Return the API server's address. Raises `ConfigError` outside a pod."""
    host, port = settings.service_host, settings.service_port
    if not host or not port:
        raise ConfigError(
            f"not in a cluster: {_HOST} and {_PORT} are not both set; inside a pod the kubelet sets"
            " them, elsewhere use a kubeconfig"
        )
    try:
        return Endpoint.parse(f"https://{url_host(host)}:{port}")
    except ConfigError as error:
        raise ConfigError(f"{_HOST}={host!r}, {_PORT}={port!r}: {error}") from error


def in_cluster_credentials(settings: ClientSettings) -> Credentials:
    """Return the ServiceAccount's credentials, read once to find mistakes. Raises `ConfigError`."""
    directory = settings.serviceaccount_dir
    token = FileToken(directory / "token", origin="ServiceAccount token")
    token.current()
    tls = TlsContexts(authority=PemSource(origin="ServiceAccount CA", path=directory / "ca.crt"))
    tls.context()
    return ComposedCredentials(headers=token, certificates=NoCertificate(), tls=tls)


def in_cluster_namespace(settings: ClientSettings) -> str:
    """Return the pod's namespace; `default` if the kubelet mounted none."""
    path = settings.serviceaccount_dir / "namespace"
    try:
        return path.read_text("utf-8").strip() or "default"
    except FileNotFoundError:
        return "default"
    except (OSError, ValueError) as error:
        raise ConfigError(f"ServiceAccount namespace: cannot read {path}: {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """Where the server is and who we are."""

    endpoint: Endpoint
    credentials: Credentials
    source: str
    """Where this was written, for messages."""
    context: str = ""
    """The kubeconfig's context; empty in a cluster."""
    namespace: str = "default"
    impersonate: Impersonation | None = None

    @classmethod
    def from_env(
        cls, *, context: str | None = None, settings: ClientSettings | None = None
    ) -> ClientConfig:
        """Use the pod's ServiceAccount if there is one, else the kubeconfig.

        A `context` names an entry of a kubeconfig, so asking for one skips the ServiceAccount.
        Raises `ConfigError`.
        """
        settings = settings or ClientSettings.read()
        if context is None and is_in_cluster(settings):
            return cls.in_cluster(settings=settings)
        return cls.from_kubeconfig(context=context, settings=settings)

    @classmethod
    def in_cluster(cls, *, settings: ClientSettings | None = None) -> ClientConfig:
        """Use the ServiceAccount that the kubelet mounted. Raises `ConfigError` outside a pod."""
        settings = settings or ClientSettings.read()
        return cls(
            endpoint=in_cluster_endpoint(settings).through_environment(settings.environ),
            credentials=in_cluster_credentials(settings),
            namespace=in_cluster_namespace(settings),
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
            _load(paths, settings), context=context, settings=settings, clock=clock or SystemClock()
        )

    @classmethod
    def _from_merged(
        cls, merged: Kubeconfig, *, context: str | None, settings: ClientSettings, clock: Clock
    ) -> ClientConfig:
        from kubeloop.client.config.kubeconfig_entries import (  # noqa: PLC0415 -- with exec plugins half a MiB, which pods do without
            credentials_of,
            endpoint_of,
            impersonation_of,
            tls_of,
        )

        chosen = _context(merged, context)
        cluster = _referred(merged.clusters, chosen, "cluster", chosen.value.cluster)
        user = _user(merged, chosen)
        endpoint = endpoint_of(cluster).through_environment(settings.environ)
        # As kubectl: nothing that proves who we are is read for, or sent over, a plain connection.
        credentials: Credentials = Anonymous()
        if endpoint.is_secure:
            credentials = credentials_of(
                user, cluster=cluster, tls=tls_of(cluster), environ=settings.environ, clock=clock
            )
        elif user.value.has_credentials:
            _LOG.warning(
                "%s: its credentials are not used: %s is not https", user.location, endpoint
            )
        return cls(
            endpoint=endpoint,
            credentials=credentials,
            namespace=chosen.value.namespace or "default",
            impersonate=impersonation_of(user),
            source=f"kubeconfig {merged.source}, context {chosen.name}",
            context=chosen.name,
        )


def _load(paths: str | Path | Iterable[str | Path] | None, settings: ClientSettings) -> Kubeconfig:
    from kubeloop.client.config.kubeconfig import load_file, load_files  # noqa: PLC0415 -- as above

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


def _context(merged: Kubeconfig, asked: str | None) -> KubeconfigEntry[Context]:
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
            f"{merged.source}: {where}there is no context {name!r}; known"
            f" contexts: {_known(merged.contexts)}"
        )
    return merged.contexts[name]


def _referred(
    entries: dict[str, KubeconfigEntry[T]], context: KubeconfigEntry[Context], field: str, name: str
) -> KubeconfigEntry[T]:
    if name in entries:
        return entries[name]
    problem = f"there is no {field} {name!r}" if name else "is empty"
    raise context.location.at(field).error(f"{problem}; known {field}s: {_known(entries)}")


def _user(merged: Kubeconfig, context: KubeconfigEntry[Context]) -> KubeconfigEntry[AuthInfo]:
    """Return the context's user; a context that names none is anonymous."""
    from kubeloop.client.config.kubeconfig import AuthInfo, KubeconfigEntry  # noqa: PLC0415 -- as above

    if not context.value.user:
        return KubeconfigEntry(name="", value=AuthInfo(), location=context.location.at("user"))
    return _referred(merged.users, context, "user", context.value.user)


def _known(entries: Iterable[str]) -> str:
    return ", ".join(sorted(map(repr, entries))) or "none"
