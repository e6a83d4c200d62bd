"""The configuration of a process inside a pod: the Service's address and the mounted account.

Token and CA are files that the kubelet replaces while we run; both are followed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kubeloop.client.certificates import PemSource
from kubeloop.client.composed_credentials import ComposedCredentials, NoCertificate
from kubeloop.client.endpoint import Endpoint
from kubeloop.client.errors import ConfigError
from kubeloop.client.tls import TlsContexts
from kubeloop.client.tokens import FileToken

if TYPE_CHECKING:
    from kubeloop.client.credentials import Credentials
    from kubeloop.client.settings import ClientSettings

_HOST, _PORT = "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"


def is_in_cluster(settings: ClientSettings) -> bool:
    """Whether this process runs in a pod that has a ServiceAccount."""
    present = bool(settings.service_host and settings.service_port)
    return present and (settings.serviceaccount_dir / "token").exists()


def endpoint(settings: ClientSettings) -> Endpoint:
    """Return the API server's address. Raises `ConfigError` outside a pod."""
    host, port = settings.service_host, settings.service_port
    if not host or not port:
        raise ConfigError(
            f"not in a cluster: {_HOST} and {_PORT} are not both set; inside a pod the kubelet sets"
            " them, elsewhere use a kubeconfig"
        )
    bracketed = f"[{host}]" if ":" in host and not host.startswith("[") else host
    try:
        return Endpoint.parse(f"https://{bracketed}:{port}")
    except ConfigError as error:
        raise ConfigError(f"{_HOST}={host!r}, {_PORT}={port!r}: {error}") from error


def credentials(settings: ClientSettings) -> Credentials:
    """Return the ServiceAccount's credentials, read once to find mistakes. Raises `ConfigError`."""
    directory = settings.serviceaccount_dir
    token = FileToken(directory / "token", origin="ServiceAccount token")
    token.current()
    tls = TlsContexts(authority=PemSource(origin="ServiceAccount CA", path=directory / "ca.crt"))
    tls.context()
    return ComposedCredentials(headers=token, certificates=NoCertificate(), tls=tls)


def namespace(settings: ClientSettings) -> str:
    """Return the pod's namespace; `default` where the kubelet mounted none."""
    path = settings.serviceaccount_dir / "namespace"
    try:
        return path.read_text("utf-8").strip() or "default"
    except FileNotFoundError:
        return "default"
    except (OSError, ValueError) as error:
        raise ConfigError(f"ServiceAccount namespace: cannot read {path}: {error}") from error
