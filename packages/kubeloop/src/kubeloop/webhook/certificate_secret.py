"""Certificates in a Secret that several programs share, renewed by one of them.

The decision what is to be renewed is `certificates.renewed`. It needs the package cryptography, which takes a
quarter of a small program's memory, so `renewed_apart` makes it in a process of its own.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import dataclasses
import datetime as dt
import logging
import sys
from typing import TYPE_CHECKING

import msgspec

from kubeloop.client.errors import ConfigError, Conflict, NotFound
from kubeloop.objects.meta import JsonObject

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from kubeloop.client.resource import Resource

_FIELDS = ("ca.crt", "ca.key", "tls.crt", "tls.key")
_PATIENCE = 30.0

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Lifetimes:
    """How long certificates live. Each is renewed when a third of its life is left."""

    authority: dt.timedelta = dt.timedelta(days=730)
    serving: dt.timedelta = dt.timedelta(days=90)
    settle: dt.timedelta = dt.timedelta(minutes=5)
    """From a new authority in the configuration to its first certificate: API servers and other
    replicas have heard of it by then."""


@dataclasses.dataclass(frozen=True, slots=True)
class CertificateSet:
    """What the Secret holds, PEM: authorities (the newest last) and its key, certificate and its key."""

    authorities: bytes
    authority_key: bytes = dataclasses.field(repr=False)
    certificate: bytes
    key: bytes = dataclasses.field(repr=False)


class RenewalOrder(msgspec.Struct, frozen=True):
    """What the other process is asked: the arguments of `certificates.renewed`."""

    found: CertificateSet | None
    hosts: tuple[str, ...]
    now: dt.datetime
    lifetimes: Lifetimes


async def renewed_apart(order: RenewalOrder) -> CertificateSet:
    """Return what the Secret is to hold, as another process decides. Raises OSError and TimeoutError."""
    command = (sys.executable, "-m", "kubeloop.webhook.certificates")
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, stderr=pipe)
    try:
        async with asyncio.timeout(_PATIENCE):
            made, error = await process.communicate(msgspec.json.encode(order))
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    if process.returncode:
        reason = error.decode(errors="replace").strip().rpartition("\n")[2]
        raise OSError(f"no certificate was made: {reason or process.returncode}")
    return msgspec.json.decode(made, type=CertificateSet)


@dataclasses.dataclass(frozen=True, eq=False)
class CertificateSecret:
    """A Secret with an authority and the certificate that it signs.

    `renew` returns what it is to hold, for what it holds; `may_create` is for programs that may create Secrets.
    """

    secrets: Resource[JsonObject]
    name: str
    renew: Callable[[CertificateSet | None], Awaitable[CertificateSet]]
    _: dataclasses.KW_ONLY
    may_create: bool = True

    async def current(self) -> CertificateSet:
        """Renew what must be renewed, and return what the Secret holds. Raises `KubeError`."""
        for _ in range(10):
            try:
                secret = await self.secrets.get(self.name)
            except NotFound:
                if not self.may_create:
                    raise
                secret = {}
            values = (_field(secret, field) for field in _FIELDS)
            found = CertificateSet(*values) if secret else None
            wanted = await self.renew(found)
            if wanted == found:
                return wanted
            made = (wanted.authorities, wanted.authority_key, wanted.certificate, wanted.key)
            data = {
                field: base64.b64encode(value).decode()
                for field, value in zip(_FIELDS, made, strict=True)
            }
            metadata = secret.get("metadata") or {"name": self.name}
            stored = {"type": "kubernetes.io/tls"} | secret | {"metadata": metadata, "data": data}
            try:
                await (self.secrets.replace if secret else self.secrets.create)(stored)
            except (Conflict, NotFound):
                continue  # another replica was faster: take what it made
            _log.info("certificates renewed in Secret %s", self.name)
            return wanted
        raise ConfigError(f"Secret {self.name} is changed by another program again and again")


def _field(secret: JsonObject, name: str) -> bytes:
    try:
        return base64.b64decode((secret.get("data") or {}).get(name) or "", validate=True)
    except binascii.Error:
        return b""  # as damaged as what is not PEM
