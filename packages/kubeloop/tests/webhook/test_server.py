"""The server: TLS from a Secret or files, rotation without a restart, configurations kept current."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import datetime as dt
import ssl
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.certs import make_authority
from tests.webhook.reviews import post, review, trusting

from kubeloop.client.errors import ConfigError, CredentialError, Forbidden
from kubeloop.metrics.library import LibraryMetrics
from kubeloop.metrics.text import exposition
from kubeloop.objects.meta import JsonObject
from kubeloop.objects.patches import MergePatch
from kubeloop.operator import make_manager
from kubeloop.testing.fake_client import FakeClient
from kubeloop.testing.fake_errors import api_error
from kubeloop.webhook import Admission, AdmissionRequest, AdmissionServer, Denied, Lifetimes
from tests.waiting import eventually

VALIDATING = "admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
MUTATING = "admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
MAP: JsonObject = {"metadata": {"name": "a"}, "data": {"a": "1"}}


class Hand:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.time = dt.datetime.now(dt.UTC)

    def now(self) -> dt.datetime:
        return self.time


def make_admission(**options: Any) -> Admission:
    options.setdefault("url", "https://localhost:1")
    admission = Admission("maps", host="127.0.0.1", port=0, **options)

    @admission.validating("v1/configmaps")
    async def refuse_secrets(obj: JsonObject, request: AdmissionRequest[JsonObject]) -> None:
        if "password" in obj.get("data", {}):
            raise Denied("data.password belongs into a Secret")

    return admission


@contextlib.asynccontextmanager
async def serving(
    client: FakeClient, admission: Admission | None = None, **options: Any
) -> AsyncIterator[AdmissionServer]:
    server = AdmissionServer(admission or make_admission(), client, period=0.05, **options)
    task = asyncio.create_task(server.run())
    ready = asyncio.create_task(server.wait_until_ready())
    try:
        await asyncio.wait([task, ready], return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
        yield server
    finally:
        task.cancel()
        ready.cancel()
        await asyncio.gather(task, ready, return_exceptions=True)


def secret(client: FakeClient, field: str) -> bytes:
    found = client.find("v1/secrets", "maps-webhook") or {"data": {}}
    return base64.b64decode(found["data"].get(field, ""))


def bundle(client: FakeClient) -> bytes:
    """The authorities that the API server trusts."""
    found = client.find(VALIDATING, "maps", namespace="") or {"webhooks": [{"clientConfig": {}}]}
    return base64.b64decode(found["webhooks"][0]["clientConfig"].get("caBundle", ""))


async def ask(port: int, trusted: bytes, body: bytes | None = None) -> tuple[int, str]:
    sent = review(MAP, path="v1/configmaps") if body is None else body
    return await post(port, "/refuse-secrets?timeout=10s", sent, tls=trusting(trusted))


async def test_it_makes_certificates_and_tells_the_api_server_whom_to_trust() -> None:
    client = FakeClient()
    async with serving(client) as server:
        await eventually(lambda: bundle(client))
        status, text = await ask(server.port, bundle(client))
        assert (status, '"allowed":true' in text) == (200, True)
        bad = review(MAP | {"data": {"password": "x"}}, path="v1/configmaps")
        status, text = await ask(server.port, bundle(client), bad)
        assert (status, "belongs into a Secret" in text) == (200, True)
    found = client.find("v1/secrets", "maps-webhook")
    assert found is not None
    assert found["type"] == "kubernetes.io/tls"
    assert found["data"].keys() == {"ca.crt", "ca.key", "tls.crt", "tls.key"}
    assert client.find(MUTATING, "maps", namespace="") is None, "there is no such function"


async def test_replicas_share_one_authority() -> None:
    client = FakeClient()
    async with serving(client) as one, serving(FakeClient(server=client)) as other:
        await eventually(lambda: bundle(client))
        for server in (one, other):
            assert (await ask(server.port, secret(client, "ca.crt")))[0] == 200


async def test_certificates_rotate_under_open_eyes() -> None:
    """Every request between two checks is answered, by what was trusted when it began."""
    client, clock = FakeClient(), Hand()
    lifetimes = Lifetimes(settle=dt.timedelta(minutes=5))
    async with serving(client, make_admission(lifetimes=lifetimes), clock=clock) as server:
        await eventually(lambda: bundle(client))
        first = bundle(client)
        seen = {secret(client, "tls.crt")}
        for _ in range(60):
            trusted = bundle(client)
            assert (await ask(server.port, trusted))[0] == 200
            # Fast enough to see an authority's two thirds of two years, slow enough for a settling.
            step = dt.timedelta(days=12) if trusted == first else dt.timedelta(minutes=2)
            clock.time += step
            await asyncio.sleep(0.15)
            seen.add(secret(client, "tls.crt"))
        assert bundle(client) != first
        assert first in bundle(client), "the old authority is still trusted"
        newest = bundle(client).removeprefix(first)
        assert (await ask(server.port, newest))[0] == 200, "the new one signs"
        assert len(seen) > 3


async def test_a_certificate_authority_that_is_lost_is_written_again() -> None:
    client = FakeClient()
    async with serving(client):
        await eventually(lambda: bundle(client))
        found = client.find(VALIDATING, "maps", namespace="") or {}
        found["webhooks"][0]["clientConfig"].pop("caBundle")
        found["webhooks"].append({"name": "other", "clientConfig": {"url": "https://other"}})
        client.put(found)
        await eventually(lambda: bundle(client))
        found = client.find(VALIDATING, "maps", namespace="") or {}
        assert "caBundle" not in found["webhooks"][1]["clientConfig"], "another's"
        client.remove(VALIDATING, "maps", namespace="")
        await eventually(lambda: bundle(client))


async def test_a_secret_that_is_removed_is_made_again() -> None:
    client = FakeClient()
    async with serving(client) as server:
        await eventually(lambda: bundle(client))
        before = bundle(client)
        client.remove("v1/secrets", "maps-webhook")
        await eventually(lambda: bundle(client) != before)
        await eventually(lambda: bundle(client) == secret(client, "ca.crt"))
        assert (await ask(server.port, bundle(client)))[0] == 200


async def test_only_the_authority_is_written_to_a_configuration_that_you_install() -> None:
    mine = {"name": "mine.maps.core", "clientConfig": {"url": "https://localhost:1/refuse-secrets"}}
    configuration = make_admission().configurations("default")[0]
    client = FakeClient(configuration | {"webhooks": [mine]})
    async with serving(client, make_admission(install=False)):
        await eventually(lambda: bundle(client))
    found = client.find(VALIDATING, "maps", namespace="") or {}
    assert [one["name"] for one in found["webhooks"]] == ["mine.maps.core"]


async def test_webhooks_that_a_program_has_no_longer_are_removed() -> None:
    client = FakeClient()
    old = make_admission()

    @old.mutating("v1/configmaps")
    async def label(obj: JsonObject, request: AdmissionRequest[JsonObject]) -> None: ...

    async with serving(client, old):
        await eventually(lambda: client.find(MUTATING, "maps", namespace=""))
    async with serving(client):
        await eventually(
            lambda: not (client.find(MUTATING, "maps", namespace="") or {}).get("webhooks")
        )


def write(directory: Path, issuer: Any, *names: str) -> None:
    issued = issuer.server(*names)
    (directory / "tls.crt").write_bytes(issued.certificate)
    (directory / "tls.key").write_bytes(issued.key)
    (directory / "ca.crt").write_bytes(issuer.pem)


async def test_mounted_certificates_are_served_and_read_again(tmp_path: Path) -> None:
    client, first, second = FakeClient(), make_authority("one"), make_authority("two")
    write(tmp_path, first)
    async with serving(client, make_admission(certificates=tmp_path)) as server:
        await eventually(lambda: bundle(client) == first.pem)
        assert (await ask(server.port, first.pem))[0] == 200
        (tmp_path / "tls.key").write_bytes(b"half a rotation")
        await asyncio.sleep(0.2)
        assert (await ask(server.port, first.pem))[0] == 200, "the last good one stays"
        write(tmp_path, second)
        await eventually(lambda: bundle(client) == second.pem)
        assert (await ask(server.port, second.pem))[0] == 200
    assert client.find("v1/secrets", "maps-webhook") is None


async def test_without_a_mounted_certificate_it_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(CredentialError, match=r"tls\.crt: No such file.*mount a Secret"):
        async with serving(FakeClient(), make_admission(certificates=tmp_path)):
            pass


async def test_without_cryptography_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "kubeloop.webhook.certificates", raising=False)
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(ConfigError, match=r"install 'kubeloop\[webhook\]', or mount"):
        async with serving(FakeClient()):
            pass


async def test_a_server_without_webhooks_is_named() -> None:
    client = FakeClient()

    def refuse(request: Any, _done: bool) -> None:
        if "webhookconfigurations" in request.path:
            raise api_error(404, "NotFound", "the server could not find the requested resource")

    client.on_write = refuse
    with pytest.raises(ConfigError, match=r"no ValidatingWebhookConfigurations.*install=False"):
        await AdmissionServer(make_admission(), client).run()


async def test_requests_are_counted_by_webhook_and_code() -> None:
    client, metrics = FakeClient(), LibraryMetrics()
    async with serving(client, metrics=metrics) as server:
        await eventually(lambda: bundle(client))
        assert (await ask(server.port, bundle(client)))[0] == 200
        assert (await ask(server.port, bundle(client), b"{}"))[0] == 400
        tls = trusting(bundle(client))
        assert (await post(server.port, "/other", b"{}", tls=tls))[0] == 400
    shown = exposition(metrics.families()).decode()
    for line in (
        'controller_runtime_webhook_requests_total{webhook="/refuse-secrets",code="200"} 1',
        'controller_runtime_webhook_requests_total{webhook="/refuse-secrets",code="400"} 1',
        'controller_runtime_webhook_latency_seconds_count{webhook="/refuse-secrets"} 2',
    ):
        assert line in shown
    assert "/other" not in shown


async def test_missing_rights_are_named() -> None:
    client = FakeClient()

    def refuse(_request: Any, _done: bool) -> None:
        raise api_error(403, "Forbidden", "no")

    client.on_write = refuse
    with pytest.raises(Forbidden) as refused:
        async with serving(client):
            pass
    assert "create and update on secrets" in refused.value.__notes__[0]


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        (b"not JSON", 400, "not an AdmissionReview"),
        (
            b'{"apiVersion":"admission.k8s.io/v1beta1","kind":"AdmissionReview"}',
            400,
            "admissionReviewVersions",
        ),
        (b" " * (7 * 1024 * 1024 + 1), 413, "longer than"),
        (b" " * (6 * 1024 * 1024), 400, "not an AdmissionReview"),
    ],
)
async def test_bad_requests_are_refused_and_the_next_is_answered(
    body: bytes, status: int, text: str
) -> None:
    client = FakeClient()
    async with serving(client) as server:
        await eventually(lambda: bundle(client))
        answered = await ask(server.port, bundle(client), body)
        assert answered[0] == status
        assert text in answered[1]
        assert (await ask(server.port, bundle(client)))[0] == 200


async def test_who_speaks_no_tls_or_trusts_another_gets_nothing() -> None:
    client = FakeClient()
    async with serving(client) as server:
        await eventually(lambda: bundle(client))
        body = review(MAP, path="v1/configmaps")
        with contextlib.suppress(ConnectionError):
            assert await post(server.port, "/refuse-secrets", body, tls=None) == (0, "")
        with pytest.raises(ssl.SSLCertVerificationError):
            await ask(server.port, make_authority().pem)
        assert (await ask(server.port, bundle(client)))[0] == 200


async def test_an_address_as_the_name_is_certified_and_served() -> None:
    """Without a name in the handshake (SNI), as for an address."""
    client = FakeClient()
    async with serving(client, make_admission(url="https://127.0.0.1:1")) as server:
        await eventually(lambda: bundle(client))
        body = review(MAP, path="v1/configmaps")
        tls = trusting(bundle(client))
        answer = await post(server.port, "/refuse-secrets", body, tls=tls, name="127.0.0.1")
        assert answer[0] == 200


async def test_a_server_that_is_away_for_a_while_does_not_end_it() -> None:
    client = FakeClient()

    def away(_request: Any, _done: bool) -> None:
        raise api_error(503, "ServiceUnavailable", "away")

    async with serving(client) as server:
        await eventually(lambda: bundle(client))
        client.on_write = away
        configurations = client.resource(VALIDATING)
        found = client.find(VALIDATING, "maps", namespace="") or {}
        found["webhooks"][0]["clientConfig"].pop("caBundle")
        client.put(found)
        await asyncio.sleep(0.3)
        assert bundle(client) == b""
        client.on_write = None
        await eventually(lambda: bundle(client))
        assert (await ask(server.port, bundle(client)))[0] == 200
        assert await configurations.patch("maps", MergePatch({"metadata": {"labels": {"a": "b"}}}))


async def test_the_manager_of_an_operator_has_it() -> None:
    client, admission = FakeClient(), make_admission()
    manager = make_manager(client, admission=admission, health_port=None)
    task = asyncio.create_task(manager.run())
    await eventually(lambda: bundle(client))
    manager.stop()
    await task
