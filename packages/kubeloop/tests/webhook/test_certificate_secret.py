"""Certificates in a shared Secret: made by another process, stored once, and only where that is allowed."""

from __future__ import annotations

import asyncio
import base64
import datetime as dt
import functools
import os
import sys
from pathlib import Path

import pytest
from cryptography import x509

from kubeloop.client.errors import NotFound
from kubeloop.testing.fake_client import FakeClient
from kubeloop.webhook.certificate_secret import (
    CertificateSecret,
    CertificateSet,
    Lifetimes,
    RenewalOrder,
    renewed_apart,
)
from tests.waiting import eventually

NOW = dt.datetime(2026, 5, 1, 12, tzinfo=dt.UTC)
NAME = "peers"


async def renew(
    found: CertificateSet | None, now: dt.datetime = NOW, hosts: tuple[str, ...] = ("a.internal",)
) -> CertificateSet:
    return await renewed_apart(RenewalOrder(found, hosts, now, Lifetimes()))


def certificate_secret(client: FakeClient, now: dt.datetime = NOW) -> CertificateSecret:
    secrets = client.resource("v1/secrets", namespace="default")
    return CertificateSecret(secrets, NAME, functools.partial(renew, now=now), may_create=False)


async def test_an_empty_secret_is_filled_and_then_left_alone() -> None:
    client = FakeClient()
    await client.resource("v1/secrets", namespace="default").create(
        {"metadata": {"name": NAME, "labels": {"a": "b"}}, "type": "Opaque"}
    )
    made = await certificate_secret(client).current()
    stored = client.find("v1/secrets", NAME)
    assert stored is not None
    assert (stored["type"], stored["metadata"]["labels"]) == ("Opaque", {"a": "b"})
    assert base64.b64decode(stored["data"]["tls.crt"]) == made.certificate
    assert await certificate_secret(client, NOW + dt.timedelta(days=1)).current() == made
    assert client.find("v1/secrets", NAME) == stored


async def test_without_the_right_to_create_a_missing_secret_is_reported() -> None:
    with pytest.raises(NotFound):
        await certificate_secret(FakeClient()).current()


async def test_another_process_makes_what_this_one_would() -> None:
    made = await renew(None)
    (leaf,) = x509.load_pem_x509_certificates(made.certificate)
    leaf.verify_directly_issued_by(x509.load_pem_x509_certificates(made.authorities)[0])
    assert await renew(made) == made


async def test_a_process_that_fails_says_why() -> None:
    with pytest.raises(OSError, match=r"no certificate was made: ValueError: .*A-label"):
        await renew(None, hosts=("ü.internal",))


async def test_a_cancelled_renewal_leaves_no_process(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hanging, started = tmp_path / "python", tmp_path / "started"
    hanging.write_text(f"#!/bin/sh\necho $$ > {started}\nexec sleep 600\n")
    hanging.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(hanging))
    renewing = asyncio.create_task(renew(None))
    await eventually(lambda: started.exists() and started.read_text())
    renewing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await renewing
    with pytest.raises(ProcessLookupError):
        os.kill(int(started.read_text()), 0)
