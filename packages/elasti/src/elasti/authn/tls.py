"""TLS between operator and resolver, so that nothing on the way reads their tokens.

Both programs mount one Secret: `ca.crt`, the authorities to trust, and `tls.crt` with `tls.key`, which both present. Only
servers are authenticated by it, since tokens tell who calls. Peers are called by their pods' addresses, so the
certificate is for one fixed name, `TLS_NAME`.

Files are looked at again for each handshake, and open connections stay. What cannot be used leaves what was used before in
place. A bundle may name several authorities: a rotation lets every peer trust the new one first.

Version 0.2 speaks no TLS, and the Secret may not be there yet. Unless TLS is required, a peer that does not answer the
handshake is called in the clear, and so may we be, both with a warning. A peer whose certificate is refused is never
called in the clear: another program may answer there. Then wake requests go through the ElastiService, and targets stay
awake.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import math
import ssl
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from elasti.api.names import TLS_NAME
from elasti.authn.authenticator import AccessDenied
from elasti.logger import get_logger
from kubeloop.client.auth.tls import ClientKeyPair, PemSource, TlsContexts, present_certificate
from kubeloop.client.errors import ConfigError
from kubeloop.http.client import Answer, ConnectFailed, HttpClient

_WARN_EVERY = 60.0
# How many peers that spoke TLS are remembered, by URL.
_MOST_PEERS = 1024
# A server without TLS waits for the end of a request's head. This offer holds one, so it refuses at once; others ignore it.
_PROTOCOLS = ["http/1.1", "\r\n\r\n"]
_MEND = (
    "check that the pods of both programs mount the same Secret; if the operator makes its certificates, empty its"
    " `data`, and it recreates them"
)
_WAIT = "wait for the Secret's first certificates and for the upgrade of both programs; the next minor version refuses it"

_log = get_logger(__name__)


class PeerTls:
    """What this program presents and trusts, from the files of a directory; without one, TLS is off.

    `in_clear` counts calls that should have been secure, `sent` and `received`.
    """

    def __init__(self, directory: str = "", *, required: bool = False) -> None:
        names = ("ca.crt", "tls.crt", "tls.key")
        files = [PemSource(origin="TLS", path=Path(directory, name)) for name in names]
        self._is_on, self._required = bool(directory), required
        self._trusted, self._presented = TlsContexts(authority=files[0]), files[1:]
        self._pair: ClientKeyPair | None = None
        self._context: ssl.SSLContext | None = None
        self._quiet_until: dict[str, float] = {}
        self._secure: dict[str, None] = {}
        self.in_clear = {"sent": 0, "received": 0} if directory else {}

    def server_context(self) -> ssl.SSLContext | None:
        """Return what a server presents now; None if there is nothing to present."""
        if not self._is_on:
            return None
        certificate, key = self._presented
        try:
            pair = ClientKeyPair(
                certificate=certificate.read(),
                key=key.read(),
                certificate_origin=certificate.origin,
                key_origin=key.origin,
            )
            if pair != self._pair:
                self._pair = pair  # tried once, however many clients come
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
                context.minimum_version = ssl.TLSVersion.TLSv1_2
                context.set_alpn_protocols(_PROTOCOLS[:1])
                present_certificate(context, pair)
                self._context = context
                _log.info("certificate loaded", file=certificate.origin)
        except ConfigError as error:
            self._warn("certificate not usable", _MEND, error=str(error))
        except OSError as error:
            self._pair = None  # not the certificate's fault: the next client tries it again
            remedy = "raise the limit of open files, or see what uses them up"
            self._warn("certificate not loaded", remedy, error=str(error))
        return self._context

    def _client_context(self) -> ssl.SSLContext | None:
        """Return what a client trusts now; None if it knows no authority."""
        if not self._is_on:
            return None
        try:
            context = self._trusted.context()
        except ConfigError as error:
            self._warn("authorities not usable", _MEND, error=str(error))
            return None
        context.set_alpn_protocols(_PROTOCOLS)
        return context

    def admit(self, *, is_secure: bool) -> None:
        """Check how a call with a token came. Raises AccessDenied if it came in the clear and may not."""
        if is_secure or not self._is_on:
            return
        self.in_clear["received"] += 1
        if self._required:
            raise AccessDenied(426, "TLS is required here, and the call came in the clear")
        self._warn("call received in the clear", _WAIT)

    @contextlib.asynccontextmanager
    async def request(
        self,
        http: HttpClient,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str],
        timeout: float,
        body: bytes | None = None,
    ) -> AsyncIterator[Answer]:
        """Call a peer, whose URL begins with http://. Raises as `HttpClient.request`."""
        send = functools.partial(http.request, method, headers=headers, timeout=timeout, body=body)
        async with contextlib.AsyncExitStack() as stack:
            answer = None
            if (tls := self._client_context()) is not None:
                secured = send(url.replace("http:", "https:", 1), tls=tls, server_name=TLS_NAME)
                try:
                    answer = await stack.enter_async_context(secured)
                    self._note_secure(url)
                except ConnectFailed as error:
                    self._check_refusal(error, url)
            if answer is None:
                self._note_clear(url)
                answer = await stack.enter_async_context(send(url))
            yield answer

    def _check_refusal(self, error: ConnectFailed, url: str) -> None:
        """Raise the error again unless the peer speaks no TLS at all."""
        if isinstance(error.cause, ssl.SSLCertVerificationError):
            reason = error.cause.verify_message
            self._warn("certificate of a peer refused", _MEND, error=reason, peer=url)
            raise error
        # Some servers and proxies close without a word. One that spoke TLS before is restarting, and knows it still.
        closed = isinstance(error.cause, ConnectionError) and url not in self._secure
        refused = isinstance(error.cause, ConnectionRefusedError)
        if not isinstance(error.cause, ssl.SSLError) and (refused or not closed):
            raise error

    def _note_secure(self, url: str) -> None:
        self._secure.pop(url, None)
        self._secure[url] = None
        if len(self._secure) > _MOST_PEERS:
            del self._secure[next(iter(self._secure))]

    def _note_clear(self, url: str) -> None:
        if not self._is_on:
            return
        if self._required:
            raise ConnectFailed(ConnectionError("TLS is required, and one program has no TLS"))
        self.in_clear["sent"] += 1
        self._warn("call sent in the clear", _WAIT, peer=url)

    def _warn(self, message: str, remedy: str, **keys: Any) -> None:
        """Log it, but not for each call."""
        now = asyncio.get_running_loop().time()
        if now >= self._quiet_until.get(message, -math.inf):
            self._quiet_until[message] = now + _WARN_EVERY
            _log.warning(message, remedy=remedy, **keys)
