"""The document by which a credential plugin is asked and answers: ExecCredential, on the wire.

Nothing that a plugin printed to its standard output is ever repeated in a message: it may be the
credential.
"""

from __future__ import annotations

import base64
import datetime as dt
from dataclasses import dataclass, field
from typing import Any

import msgspec

from kubeloop.client.auth.tls import ClientKeyPair
from kubeloop.client.errors import CredentialError

GROUP = "client.authentication.k8s.io"
API_VERSIONS = (f"{GROUP}/v1", f"{GROUP}/v1beta1")
# The cluster extension whose content is handed to plugins as `spec.cluster.config`.
CLUSTER_EXTENSION = f"{GROUP}/exec"


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginCredential:
    """The output of a plugin: a token, a certificate with its key, or both, and when it expires."""

    token: str = field(default="", repr=False)
    pair: ClientKeyPair | None = field(default=None, repr=False)
    expires: dt.datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterInfo:
    """The cluster as a plugin with `provideClusterInfo` receives it; `config` is its extension."""

    server: str
    server_name: str | None
    insecure: bool
    authority: bytes | None
    proxy: str | None
    config: Any = None

    def document(self) -> dict[str, Any]:
        """Return it in wire form, without what is unset."""
        authority = base64.b64encode(self.authority).decode() if self.authority else None
        optional = {
            "tls-server-name": self.server_name,
            "insecure-skip-tls-verify": self.insecure,
            "certificate-authority-data": authority,
            "proxy-url": self.proxy,
        }
        set_ones = {name: value for name, value in optional.items() if value}
        return {"server": self.server, **set_ones, "config": self.config}


class _Status(msgspec.Struct, frozen=True, rename="camel"):
    expiration_timestamp: dt.datetime | None = None
    token: str | None = None
    client_certificate_data: str | None = None
    client_key_data: str | None = None


class _ExecCredential(msgspec.Struct, frozen=True, rename="camel"):
    api_version: str = ""
    kind: str = ""
    status: _Status | None = None


def request(*, api_version: str, interactive: bool, cluster: ClusterInfo | None) -> str:
    """Return the JSON for the plugin's KUBERNETES_EXEC_INFO."""
    spec: dict[str, Any] = {"interactive": interactive}
    if cluster is not None:
        spec["cluster"] = cluster.document()
    document = {"apiVersion": api_version, "kind": "ExecCredential", "spec": spec}
    return msgspec.json.encode(document).decode()


def parse(output: bytes, *, api_version: str, origin: str, now: dt.datetime) -> PluginCredential:
    """Read a plugin's standard output. Raises `CredentialError` that starts with `origin`."""
    document = _decode(output, origin)
    if document.kind != "ExecCredential" or document.api_version != api_version:
        raise CredentialError(
            f"{origin}: the plugin answered with apiVersion {document.api_version!r}, kind"
            f" {document.kind!r}; the kubeconfig asks for {api_version!r}, 'ExecCredential'."
            " Make the user entry's exec.apiVersion the one that the plugin speaks"
        )
    if document.status is None:
        raise CredentialError(f"{origin}: the plugin's answer has no status")
    return PluginCredential(
        token=_token(document.status, origin),
        pair=_pair(document.status, origin),
        expires=_expiry(document.status, origin, now),
    )


def _decode(output: bytes, origin: str) -> _ExecCredential:
    if not output.strip():
        raise CredentialError(f"{origin}: the plugin printed nothing to its standard output")
    try:
        return msgspec.json.decode(output, type=_ExecCredential)
    except msgspec.ValidationError as error:
        raise CredentialError(f"{origin}: the plugin's answer is malformed: {error}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CredentialError(
            f"{origin}: the plugin printed something that is not JSON; it must print an"
            " ExecCredential to its standard output and everything else to standard error"
        ) from error


def _token(status: _Status, origin: str) -> str:
    given = status.token or status.client_certificate_data or status.client_key_data
    if not given:
        raise CredentialError(
            f"{origin}: the plugin's status has neither a token nor a clientCertificateData with"
            " clientKeyData"
        )
    return status.token or ""


def _pair(status: _Status, origin: str) -> ClientKeyPair | None:
    certificate, key = status.client_certificate_data, status.client_key_data
    if bool(certificate) != bool(key):
        missing = "clientKeyData" if certificate else "clientCertificateData"
        raise CredentialError(
            f"{origin}: the plugin's status lacks {missing}; certificate and key come together"
        )
    if not certificate or not key:
        return None
    return ClientKeyPair(
        certificate=certificate.encode(),
        key=key.encode(),
        certificate_origin=f"{origin}: status.clientCertificateData",
        key_origin=f"{origin}: status.clientKeyData",
    )


def _expiry(status: _Status, origin: str, now: dt.datetime) -> dt.datetime | None:
    expires = status.expiration_timestamp
    if expires is None:
        return None
    if expires.tzinfo is None:
        raise CredentialError(
            f"{origin}: the plugin's expirationTimestamp {expires.isoformat()} has no time zone;"
            " expected RFC 3339, for example 2030-01-31T12:00:00Z"
        )
    if expires <= now:
        raise CredentialError(
            f"{origin}: the plugin gave a credential that expired at {expires.isoformat()}; log in"
            " with it again, or set this machine's clock"
        )
    return expires
