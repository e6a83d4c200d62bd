"""A kubeconfig's user entry turned into credentials.

Precedence is kubectl's. A token file goes before an inline token, which serves while the file
cannot be read. A plugin is only run where the entry has neither token nor password nor client
certificate of its own. A client certificate may go together with a token.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from kubeloop.client.composed_credentials import (
    ComposedCredentials,
    NoCertificate,
    PemCertificate,
)
from kubeloop.client.credentials import Credentials, basic, bearer
from kubeloop.client.errors import ConfigError
from kubeloop.client.exec_credential import API_VERSIONS, GROUP
from kubeloop.client.exec_plugin import ExecPlugin, ExecSpec, InteractiveMode
from kubeloop.client.impersonation import Impersonation
from kubeloop.client.kubeconfig_cluster import cluster_info, pem_source
from kubeloop.client.plugin_identity import PluginIdentity
from kubeloop.client.tokens import FileToken, FixedHeaders, HeaderSource

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kubeloop.aio.clock import Clock
    from kubeloop.client.kubeconfig import Cluster, Entry, Exec, Place, User
    from kubeloop.client.tls import TlsContexts

_LOG = logging.getLogger(__name__)


def credentials_of(
    entry: Entry[User],
    *,
    cluster: Entry[Cluster],
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
        spec = exec_spec(exec_, entry.place.at("exec"))
        info = (lambda: cluster_info(cluster, tls)) if exec_.provide_cluster_info else None
        plugin = ExecPlugin(spec, environ=environ, clock=clock, cluster=info)
        identity = PluginIdentity(plugin, clock=clock)
        return ComposedCredentials(headers=identity, certificates=identity, tls=tls)
    tls.context(certificates.current() if certificates else None)
    return ComposedCredentials(
        headers=headers or FixedHeaders({}), certificates=certificates or NoCertificate(), tls=tls
    )


def impersonation_of(entry: Entry[User]) -> Impersonation | None:
    """Return whom the user acts as, if anyone. Raises `ConfigError`."""
    user = entry.value
    if not user.as_user:
        if user.as_groups or user.as_user_extra or user.as_uid:
            raise entry.place.at("as").error(
                "is empty, but as-uid, as-groups or as-user-extra is set; name the user to act as"
            )
        return None
    try:
        return Impersonation(
            user=user.as_user,
            uid=user.as_uid,
            groups=user.as_groups,
            extra=user.as_user_extra,
        )
    except ConfigError as error:
        raise entry.place.error(str(error)) from error


def exec_spec(config: Exec, place: Place) -> ExecSpec:
    """Check an `exec` entry. Raises `ConfigError`."""
    if not config.command:
        raise place.at("command").error("is empty; name the plugin's command")
    return ExecSpec(
        # As kubectl: a bare name is looked up in PATH, a path is relative to the kubeconfig.
        command=str(place.resolve(config.command)) if os.sep in config.command else config.command,
        args=config.args,
        env=_exec_env(config, place),
        api_version=_api_version(config, place),
        interactive_mode=_interactive_mode(config, place),
        install_hint=config.install_hint,
        origin=str(place),
    )


def _refuse_conflicts(entry: Entry[User]) -> None:
    user, place = entry.value, entry.place
    if user.auth_provider is not None:
        raise place.at("auth-provider").credential_error(
            f"the provider {user.auth_provider.name!r} was removed from Kubernetes' clients in"
            " 1.26; use the platform's exec plugin instead (GKE: gke-gcloud-auth-plugin, AKS:"
            " kubelogin convert-kubeconfig, OIDC: kubectl oidc-login)"
        )
    if (user.token or user.token_file) and user.username:
        raise place.credential_error(
            "has both a token and a username; only one way to authenticate is allowed: remove one"
        )
    if user.password and not user.username:
        _LOG.warning("%s is ignored: there is no username beside it", place.at("password"))


def _headers(entry: Entry[User]) -> HeaderSource | None:
    user, place = entry.value, entry.place
    inline = bearer(user.token, origin=str(place.at("token"))) if user.token else None
    if user.token_file:
        where = place.at("tokenFile")
        source = FileToken(where.resolve(user.token_file), origin=str(where), fallback=inline)
        source.current()
        return source
    if inline is not None:
        return FixedHeaders(inline)
    return FixedHeaders(basic(user.username, user.password)) if user.username else None


def _certificate(entry: Entry[User]) -> PemCertificate | None:
    user, place = entry.value, entry.place
    certificate = pem_source(
        place,
        "client-certificate",
        data=user.client_certificate_data,
        path=user.client_certificate,
    )
    if certificate is None:
        return None
    key = pem_source(place, "client-key", data=user.client_key_data, path=user.client_key)
    if key is None:
        raise place.at("client-key").credential_error(
            "is missing; a client certificate needs client-key or client-key-data beside it"
        )
    return PemCertificate(certificate=certificate, key=key)


def _exec_env(config: Exec, place: Place) -> dict[str, str]:
    for index, variable in enumerate(config.env):
        if not variable.name or "=" in variable.name:
            raise place.at(f"env[{index}].name").error(
                f"{variable.name!r} cannot be a variable's name; give one without '='"
            )
    return {variable.name: variable.value for variable in config.env}


def _api_version(config: Exec, place: Place) -> str:
    if config.api_version not in API_VERSIONS:
        old = config.api_version == f"{GROUP}/v1alpha1"
        raise place.at("apiVersion").error(
            f"{config.api_version!r} {'is no longer' if old else 'is not'} supported; use"
            f" {' or '.join(API_VERSIONS)}, whichever the plugin speaks"
            + (" (update the plugin and write the kubeconfig anew)" if old else "")
        )
    return config.api_version


def _interactive_mode(config: Exec, place: Place) -> InteractiveMode:
    if not config.interactive_mode and config.api_version == f"{GROUP}/v1beta1":
        return InteractiveMode.IF_AVAILABLE
    try:
        return InteractiveMode(config.interactive_mode)
    except ValueError:
        mode = config.interactive_mode
        problem = f"{mode!r} is none of" if mode else "is missing; choose one of"
        raise place.at("interactiveMode").error(f"{problem} Never, IfAvailable, Always") from None
