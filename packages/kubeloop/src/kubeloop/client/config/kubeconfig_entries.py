"""A kubeconfig's entries applied: a cluster becomes endpoint and trust, a user credentials.

Precedence is kubectl's. A token file goes before an inline token, which serves while the file
cannot be read. A plugin is only run where the entry has neither token nor password nor client
certificate of its own. A client certificate may go together with a token.
"""

from __future__ import annotations

import base64
import binascii
import logging
import os
from typing import TYPE_CHECKING

from kubeloop.client.auth.credentials import (
    ComposedCredentials,
    Credentials,
    FileToken,
    FixedHeaders,
    HeaderSource,
    NoCertificate,
    PemCertificate,
    basic,
    bearer,
)
from kubeloop.client.auth.exec_credential import API_VERSIONS, CLUSTER_EXTENSION, GROUP, ClusterInfo
from kubeloop.client.auth.exec_plugin import ExecPlugin, ExecSpec, InteractiveMode, PluginIdentity
from kubeloop.client.auth.identity import Impersonation
from kubeloop.client.auth.tls import PemSource, TlsContexts
from kubeloop.client.config.endpoint import Endpoint
from kubeloop.client.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kubeloop.aio.clock import Clock
    from kubeloop.client.config.kubeconfig import (
        AuthInfo,
        Cluster,
        ConfigLocation,
        ExecConfig,
        KubeconfigEntry,
    )


_LOG = logging.getLogger(__name__)


def endpoint_of(entry: KubeconfigEntry[Cluster]) -> Endpoint:
    """Return where the cluster's server is. Raises `ConfigError`."""
    cluster = entry.value
    if not cluster.server:
        raise entry.location.at("server").error(
            "is empty; give the API server's URL, for example https://10.0.0.1:6443"
        )
    try:
        endpoint = Endpoint.parse(cluster.server, server_name=cluster.tls_server_name)
    except ConfigError as error:
        raise entry.location.at("server").error(str(error)) from error
    try:
        return endpoint.through(cluster.proxy_url)
    except ConfigError as error:
        raise entry.location.at("proxy-url").error(str(error)) from error


def tls_of(entry: KubeconfigEntry[Cluster]) -> TlsContexts:
    """Return how the cluster's server is trusted. Raises `ConfigError`."""
    cluster = entry.value
    return TlsContexts(
        authority=pem_source(
            entry.location,
            "certificate-authority",
            data=cluster.certificate_authority_data,
            path=cluster.certificate_authority,
        ),
        insecure=cluster.insecure_skip_tls_verify,
    )


def cluster_info(entry: KubeconfigEntry[Cluster], tls: TlsContexts) -> ClusterInfo:
    """Return what a plugin with `provideClusterInfo` receives about the cluster."""
    cluster = entry.value
    extensions = {item.name: item.extension for item in cluster.extensions}
    return ClusterInfo(
        server=cluster.server,
        server_name=cluster.tls_server_name or None,
        insecure=cluster.insecure_skip_tls_verify,
        authority=tls.authority_pem(),
        proxy=cluster.proxy_url or None,
        config=extensions.get(CLUSTER_EXTENSION),
    )


def pem_source(location: ConfigLocation, field: str, *, data: str, path: str) -> PemSource | None:
    """Return the source of a field that has a `-data` twin, which wins; None without either."""
    if data:
        inline = location.at(f"{field}-data")
        return PemSource(origin=str(inline), data=_decode(inline, data))
    if path:
        return PemSource(origin=str(location.at(field)), path=location.resolve(path))
    return None


def _decode(location: ConfigLocation, text: str) -> bytes:
    try:
        # Line breaks are legal in YAML's block scalars and mean nothing.
        return base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError) as error:
        remedy = "it is PEM itself: encode it (base64 -w0)" if "-----BEGIN" in text else str(error)
        raise location.error(f"is not base64; {remedy}") from error


def credentials_of(
    entry: KubeconfigEntry[AuthInfo],
    *,
    cluster: KubeconfigEntry[Cluster],
    tls: TlsContexts,
    environ: Mapping[str, str],
    clock: Clock,
) -> Credentials:
    """Return the user's credentials, with every file read once to find mistakes early.

    A plugin is not run yet. Raises `ConfigError`.
    """
    _refuse_conflicts(entry)
    certificates = _certificate(entry)
    headers = _headers(entry)
    exec_ = entry.value.exec
    if exec_ is not None and headers is None and certificates is None:
        tls.context()
        spec = exec_spec(exec_, entry.location.at("exec"))
        info = (lambda: cluster_info(cluster, tls)) if exec_.provide_cluster_info else None
        plugin = ExecPlugin(spec, environ=environ, clock=clock, cluster=info)
        identity = PluginIdentity(plugin, clock=clock)
        return ComposedCredentials(headers=identity, certificates=identity, tls=tls)
    tls.context(certificates.current() if certificates else None)
    return ComposedCredentials(
        headers=headers or FixedHeaders({}), certificates=certificates or NoCertificate(), tls=tls
    )


def impersonation_of(entry: KubeconfigEntry[AuthInfo]) -> Impersonation | None:
    """Return the user to impersonate, if any. Raises `ConfigError`."""
    user = entry.value
    if not user.as_user:
        if user.as_groups or user.as_user_extra or user.as_uid:
            raise entry.location.at("as").error(
                "is empty, but as-uid, as-groups or as-user-extra is set; name the user to act as"
            )
        return None
    try:
        return Impersonation(
            user=user.as_user, uid=user.as_uid, groups=user.as_groups, extra=user.as_user_extra
        )
    except ConfigError as error:
        raise entry.location.error(str(error)) from error


def exec_spec(config: ExecConfig, location: ConfigLocation) -> ExecSpec:
    """Check an `exec` entry. Raises `ConfigError`."""
    if not config.command:
        raise location.at("command").error("is empty; name the plugin's command")
    return ExecSpec(
        # As kubectl: a bare name is looked up in PATH, a path is relative to the kubeconfig.
        command=str(location.resolve(config.command))
        if os.sep in config.command
        else config.command,
        args=config.args,
        env=_exec_env(config, location),
        api_version=_api_version(config, location),
        interactive_mode=_interactive_mode(config, location),
        install_hint=config.install_hint,
        origin=str(location),
    )


def _refuse_conflicts(entry: KubeconfigEntry[AuthInfo]) -> None:
    user, location = entry.value, entry.location
    if user.auth_provider is not None:
        raise location.at("auth-provider").credential_error(
            f"the provider {user.auth_provider.name!r} was removed from Kubernetes' clients in"
            " 1.26; use the platform's exec plugin instead (GKE: gke-gcloud-auth-plugin, AKS:"
            " kubelogin convert-kubeconfig, OIDC: kubectl oidc-login)"
        )
    if (user.token or user.token_file) and user.username:
        raise location.credential_error(
            "has both a token and a username; only one way to authenticate is allowed: remove one"
        )
    if user.password and not user.username:
        _LOG.warning("%s is ignored: there is no username beside it", location.at("password"))


def _headers(entry: KubeconfigEntry[AuthInfo]) -> HeaderSource | None:
    user, location = entry.value, entry.location
    inline = bearer(user.token, origin=str(location.at("token"))) if user.token else None
    if user.token_file:
        where = location.at("tokenFile")
        source = FileToken(where.resolve(user.token_file), origin=str(where), fallback=inline)
        source.current()
        return source
    if inline is not None:
        return FixedHeaders(inline)
    return FixedHeaders(basic(user.username, user.password)) if user.username else None


def _certificate(entry: KubeconfigEntry[AuthInfo]) -> PemCertificate | None:
    user, location = entry.value, entry.location
    certificate = pem_source(
        location,
        "client-certificate",
        data=user.client_certificate_data,
        path=user.client_certificate,
    )
    if certificate is None:
        return None
    key = pem_source(location, "client-key", data=user.client_key_data, path=user.client_key)
    if key is None:
        raise location.at("client-key").credential_error(
            "is missing; a client certificate needs client-key or client-key-data beside it"
        )
    return PemCertificate(certificate=certificate, key=key)


def _exec_env(config: ExecConfig, location: ConfigLocation) -> dict[str, str]:
    for index, variable in enumerate(config.env):
        if not variable.name or "=" in variable.name:
            raise location.at(f"env[{index}].name").error(
                f"{variable.name!r} cannot be a variable's name; give one without '='"
            )
    return {variable.name: variable.value for variable in config.env}


def _api_version(config: ExecConfig, location: ConfigLocation) -> str:
    if config.api_version not in API_VERSIONS:
        old = config.api_version == f"{GROUP}/v1alpha1"
        raise location.at("apiVersion").error(
            f"{config.api_version!r} {'is no longer' if old else 'is not'} supported; use"
            f" {' or '.join(API_VERSIONS)}, whichever the plugin speaks"
            + (" (update the plugin and write the kubeconfig again)" if old else "")
        )
    return config.api_version


def _interactive_mode(config: ExecConfig, location: ConfigLocation) -> InteractiveMode:
    if not config.interactive_mode and config.api_version == f"{GROUP}/v1beta1":
        return InteractiveMode.IF_AVAILABLE
    try:
        return InteractiveMode(config.interactive_mode)
    except ValueError:
        mode = config.interactive_mode
        problem = f"{mode!r} is not one of" if mode else "is missing; choose one of"
        raise location.at("interactiveMode").error(
            f"{problem} Never, IfAvailable, Always"
        ) from None
