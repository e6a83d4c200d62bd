"""TLS: PEM certificates and keys, and the contexts made of them.

A context cannot be changed under open connections, so a rotated CA bundle or client certificate
makes a new one. The new object is the signal for a transport to drop its pooled connections.

Trust follows Kubernetes' own clients, not Python's defaults of the day: any certificate in the
bundle is an anchor (cluster CAs are often intermediates, or the server's own certificate), and
OpenSSL's strict profile is off because CAs made by older tools lack the extensions it wants.

Python's ssl loads a client certificate only from files. Inline data therefore passes through an
anonymous in-memory file (Linux) or a private temporary directory that is gone when the call
returns: a key is never on disk where another user could read it, nor after the call.
"""

from __future__ import annotations

import asyncio.sslproto
import contextlib
import logging
import os
import re
import ssl
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from kubeloop.client.auth.watched_file import WatchedFile
from kubeloop.client.errors import ConfigError, CredentialError

_CERTIFICATE = re.compile(
    rb"-----BEGIN (?:X509 |TRUSTED )?CERTIFICATE-----.+?-----END (?:X509 |TRUSTED )?CERTIFICATE-----",
    re.DOTALL,
)
_KEY = re.compile(rb"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY-----")
_ENCRYPTED = re.compile(
    rb"-----BEGIN ENCRYPTED PRIVATE KEY-----|^Proc-Type: 4,ENCRYPTED", re.MULTILINE
)

# Where Linux shows a process its own descriptors as files.
_MEMORY_FILES = "/proc/self/fd"


# Two TLS records. asyncio takes 256 KiB for each connection and keeps them while it is idle, which is
# most of a quiet watch's memory; 16 KiB take twice the processor time of a big list, 32 KiB a third more.
_READ_BUFFER = 32 * 1024

_LOG = logging.getLogger(__name__)


def shrink_read_buffers() -> None:
    """Make asyncio read TLS into 32 KiB for each connection, not 256 KiB, from now on.

    For programs, because it changes the whole process. Loops with a TLS of their own, such as uvloop, ignore it.
    """
    asyncio.sslproto.SSLProtocol.max_size = _READ_BUFFER


class PemSource:
    """PEM text from a setting itself or from a file; `origin` names the setting, for errors."""

    def __init__(self, *, origin: str, data: bytes | None = None, path: Path | None = None) -> None:
        if (data is None) == (path is None):
            raise ValueError("exactly one of data and path must be given")
        self.origin = origin if path is None else f"{origin} ({path})"
        self._data = data
        self._file = WatchedFile(path, origin=origin) if path is not None else None

    def read(self) -> bytes:
        """Return the present content, the same object while unchanged. Raises `CredentialError`."""
        if self._file is not None:
            return self._file.read()
        assert self._data is not None
        return self._data

    def forget(self) -> None:
        """Read the file again next time; inline data stays."""
        if self._file is not None:
            self._file.forget()

    def __repr__(self) -> str:
        return f"PemSource({self.origin!r})"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientKeyPair:
    """A client certificate (with intermediates) and its key. Equal content is equal."""

    certificate: bytes
    key: bytes = field(repr=False)
    certificate_origin: str = field(compare=False)
    key_origin: str = field(compare=False)


def trust_bundle(context: ssl.SSLContext, pem: bytes, *, origin: str) -> None:
    """Trust the certificates in a PEM bundle and no others. Raises `ConfigError`."""
    blocks = _CERTIFICATE.findall(pem)
    if not blocks:
        raise ConfigError(f"{origin}: contains no PEM certificate; {_describe(pem)}")
    # Only the blocks: bundles carry comments in any encoding, which OpenSSL would refuse.
    bundle = b"\n".join(blocks).decode("ascii", errors="replace")
    try:
        context.load_verify_locations(cadata=bundle)
    except (ssl.SSLError, ValueError, TypeError) as error:
        raise ConfigError(
            f"{origin}: one of its {len(blocks)} certificates cannot be decoded ({_reason(error)});"
            " it is cut off or damaged"
        ) from error


def present_certificate(context: ssl.SSLContext, pair: ClientKeyPair) -> None:
    """Make a context present a client certificate. Raises `CredentialError`."""
    _check_pair(pair)
    try:
        with _as_file(pair.certificate) as certificate, _as_file(pair.key) as key:
            # An empty password keeps OpenSSL from asking for one on the terminal.
            context.load_cert_chain(certificate, key, password="")
    except ssl.SSLError as error:
        raise CredentialError(_why_refused(pair, error)) from error


def _check_pair(pair: ClientKeyPair) -> None:
    if not _CERTIFICATE.search(pair.certificate):
        raise CredentialError(
            f"{pair.certificate_origin}: contains no PEM certificate; {_describe(pair.certificate)}"
        )
    if _ENCRYPTED.search(pair.key):
        raise CredentialError(
            f"{pair.key_origin}: the key is protected by a password; store it without one"
            " (openssl pkey -in KEY -out PLAIN)"
        )
    if not _KEY.search(pair.key):
        raise CredentialError(f"{pair.key_origin}: contains no PEM private key")


def _why_refused(pair: ClientKeyPair, error: ssl.SSLError) -> str:
    if error.reason == "KEY_VALUES_MISMATCH":
        return (
            f"{pair.key_origin}: the key does not match the certificate of"
            f" {pair.certificate_origin}; take both from the same issue"
        )
    return (
        f"{pair.certificate_origin} and {pair.key_origin}: OpenSSL cannot use them"
        f" ({_reason(error)}); one of them is cut off or damaged"
    )


def _describe(pem: bytes) -> str:
    if not pem.strip():
        return "it is empty"
    if _KEY.search(pem):
        return "it holds a private key instead"
    if pem[:1] == b"\x30":
        return "it looks like DER: convert it (openssl x509 -inform der)"
    return "expected -----BEGIN CERTIFICATE-----"


def _reason(error: Exception) -> str:
    return (isinstance(error, ssl.SSLError) and error.reason) or str(error)


@contextlib.contextmanager
def _as_file(content: bytes) -> Iterator[str]:
    """Give content a path that only this process can open, for the duration of the block."""
    try:
        descriptor = os.memfd_create("pem")
    except (AttributeError, OSError):
        with _in_private_directory(content) as path:
            yield path
        return
    try:
        path = f"{_MEMORY_FILES}/{descriptor}"
        if not Path(path).exists():
            with _in_private_directory(content) as path:
                yield path
            return
        _write_all(descriptor, content)
        yield path
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _in_private_directory(content: bytes) -> Iterator[str]:
    # mkdtemp makes the directory 0700, so the file is unreachable for others from its first byte.
    import tempfile  # noqa: PLC0415 -- loads every compression; pods have tokens, not key pairs

    with tempfile.TemporaryDirectory(prefix="kubeloop-") as directory:
        path = Path(directory) / "pem"
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            _write_all(descriptor, content)
        finally:
            os.close(descriptor)
        yield str(path)


def _write_all(descriptor: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]


_Inputs = tuple[bytes | None, ClientKeyPair | None]


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

    def context(self, pair: ClientKeyPair | None = None) -> ssl.SSLContext:
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
            # A context without a client certificate cannot replace one that should present ours.
            if inputs[1] is not None and not had_pair:
                raise
            _LOG.warning("keeping the previous TLS material: %s", error)
            return working

    def authority_pem(self) -> bytes | None:
        """Return the CA bundle's present content, as exec plugins receive it."""
        return self._authority.read() if self._authority else None

    @property
    def insecure(self) -> bool:
        """Whether nothing is verified."""
        return self._insecure

    def _build(self, authority: bytes | None, pair: ClientKeyPair | None) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.hostname_checks_common_name = False
        # The only protocol that this package speaks; a server must not choose HTTP/2.
        context.set_alpn_protocols(["http/1.1"])
        self._set_trust(context, authority)
        if pair is not None:
            present_certificate(context, pair)
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
            trust_bundle(context, authority, origin=self._authority.origin)
