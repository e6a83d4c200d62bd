"""TLS contexts: whom we trust, what we present, and when a new context is due.

A context cannot be changed under open connections, so a rotated CA bundle or client certificate
makes a new one. The old object's replacement is the signal for a transport to let its pooled
connections go.

Trust follows Kubernetes' own clients, not Python's defaults of the day: any certificate in the
bundle is an anchor (cluster CAs are often intermediates, or the server's own certificate), and
OpenSSL's strict profile is off because CAs made by older tools lack the extensions it wants.
"""

from __future__ import annotations

import logging
import ssl
from typing import TYPE_CHECKING

from kubeloop.client.certificates import KeyPair, present, trust
from kubeloop.client.errors import ConfigError

if TYPE_CHECKING:
    from kubeloop.client.certificates import PemSource

_LOG = logging.getLogger(__name__)

_Inputs = tuple[bytes | None, KeyPair | None]


class TlsContexts:
    """Makes the context for the present trust and identity, and keeps it while neither changes.

    `authority` is the CA bundle, None for the system's. `insecure` verifies nothing at all.
    """

    def __init__(self, *, authority: PemSource | None = None, insecure: bool = False) -> None:
        if insecure and authority is not None:
            raise ConfigError(
                f"{authority.origin}: a certificate authority and insecure-skip-tls-verify exclude"
                " each other; remove one of them"
            )
        self._authority = authority
        self._insecure = insecure
        self._inputs: _Inputs | None = None
        self._context: ssl.SSLContext | None = None

    def context(self, pair: KeyPair | None = None) -> ssl.SSLContext:
        """Return the context that presents `pair`. Raises `ConfigError`.

        Files that are half rotated (a new certificate beside an old key) do not break a client
        that has a working context: it stays until the files fit together again.
        """
        inputs = (self._authority.read() if self._authority else None, pair)
        if self._context is None or self._inputs is None:
            context = self._build(*inputs)
        elif inputs == self._inputs:
            return self._context
        else:
            context = self._rebuild(inputs, self._context, had_pair=self._inputs[1] is not None)
        self._inputs, self._context = inputs, context
        return context

    def _rebuild(
        self, inputs: _Inputs, working: ssl.SSLContext, *, had_pair: bool
    ) -> ssl.SSLContext:
        try:
            return self._build(*inputs)
        except ConfigError as error:
            # A context that presents nobody is no substitute for one that should present us.
            if inputs[1] is not None and not had_pair:
                raise
            _LOG.warning("keeping the previous TLS material: %s", error)
            return working

    def authority_pem(self) -> bytes | None:
        """Return the CA bundle's present content, as exec plugins are told it."""
        return self._authority.read() if self._authority else None

    @property
    def insecure(self) -> bool:
        """Whether nothing is verified."""
        return self._insecure

    def _build(self, authority: bytes | None, pair: KeyPair | None) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.hostname_checks_common_name = False
        # The only protocol that this package speaks; a server must not choose HTTP/2.
        context.set_alpn_protocols(["http/1.1"])
        self._set_trust(context, authority)
        if pair is not None:
            present(context, pair)
        return context

    def _set_trust(self, context: ssl.SSLContext, authority: bytes | None) -> None:
        if self._insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        elif authority is None:
            context.load_default_certs(ssl.Purpose.SERVER_AUTH)
        else:
            assert self._authority is not None
            context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
            trust(context, authority, origin=self._authority.origin)
