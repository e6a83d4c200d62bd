"""Certificates and keys in PEM form, inline or in files, and their way into OpenSSL.

Python's ssl loads a client certificate only from files. Inline data therefore passes through an
anonymous in-memory file (Linux) or a private temporary directory that is gone when the call
returns: a key never lies on disk where another user could read it, nor after us.
"""

from __future__ import annotations

import contextlib
import os
import re
import ssl
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from kubeloop.client.errors import ConfigError, CredentialError
from kubeloop.client.watched_file import WatchedFile

if TYPE_CHECKING:
    from collections.abc import Iterator

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
        """Read the file anew next time; inline data stays."""
        if self._file is not None:
            self._file.forget()

    def __repr__(self) -> str:
        return f"PemSource({self.origin!r})"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyPair:
    """A client certificate (with intermediates) and its key. Equal content is equal."""

    certificate: bytes
    key: bytes = field(repr=False)
    certificate_origin: str = field(compare=False)
    key_origin: str = field(compare=False)


def trust(context: ssl.SSLContext, pem: bytes, *, origin: str) -> None:
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


def present(context: ssl.SSLContext, pair: KeyPair) -> None:
    """Make a context present a client certificate. Raises `CredentialError`."""
    _check_pair(pair)
    try:
        with _as_file(pair.certificate) as certificate, _as_file(pair.key) as key:
            # An empty password keeps OpenSSL from asking for one on the terminal.
            context.load_cert_chain(certificate, key, password="")
    except ssl.SSLError as error:
        raise CredentialError(_why_refused(pair, error)) from error


def _check_pair(pair: KeyPair) -> None:
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


def _why_refused(pair: KeyPair, error: ssl.SSLError) -> str:
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
