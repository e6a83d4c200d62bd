"""Callers of both programs, with tokens that real issuers signed, checked in both ways.

What the ways differ in is said by a test: the API server knows that an account was deleted, its keys do
not; there a token lives until it ends.
"""

from __future__ import annotations

import base64
import contextlib
import datetime as dt
import json
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from tests.authn.issuing import Signer
from tests.operator.accounts import Account, confined_operator
from tests.operator.rig import Rig
from tests.operator.servers import CONTROLPLANE, everywhere

from elasti.api.wire import ACTIVITY_PATH, OPERATOR_AUDIENCE, RESOLVER_AUDIENCE, ActivityReport
from elasti.authn.authenticator import authenticator_for
from elasti.authn.settings import AuthenticationMode, AuthnSettings
from elasti.resolver.admin import AdminServer
from elasti.resolver.metrics import Readiness
from elasti.resolver.projections import ServiceKey
from kubeloop.client import Client, Forbidden, request
from tests.controlplane.rig import ControlPlane

pytestmark = [everywhere, pytest.mark.timeout(180)]

ways = pytest.mark.parametrize("way", [AuthenticationMode.TOKEN_REVIEW, AuthenticationMode.JWKS])


class Later:
    """Wall time so many seconds from now."""

    def __init__(self, seconds: float) -> None:
        self._by = dt.timedelta(seconds=seconds)

    def now(self) -> dt.datetime:
        return dt.datetime.now(dt.UTC) + self._by


def forged(token: str) -> str:
    """The same token, signed by somebody else under the same key's name."""
    head, body = (json.loads(_unpack(part)) for part in token.split(".")[:2])
    return Signer(head["alg"], kid=head["kid"]).sign(head, body)


def _unpack(part: str) -> bytes:
    return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))


@ways
async def test_only_the_right_account_wakes(rig: Rig, tmp_path: Path, way: AuthenticationMode):
    if way is AuthenticationMode.JWKS:
        await confined_operator(rig, tmp_path, rig.namespace)
    await rig.web(replicas=0)
    resolver = await Account(rig, "resolver").create()
    stranger = await Account(rig, "stranger", rig.namespace).create()
    doomed = await Account(rig, "doomed").create()
    left = await doomed.token(OPERATOR_AUDIENCE)
    await doomed.delete()
    async with rig.operator(authenticate=True, authentication=way) as operator:
        await rig.becomes("Proxy")
        good = await resolver.token(OPERATOR_AUDIENCE)
        body, signature = good.rsplit(".", 1)
        attempts = {
            await resolver.token("https://elsewhere"): 401,
            await resolver.token(): 401,
            forged(good): 401,
            f"{body}.{signature[:-8]}AAAAAAAA": 401,
            f"{body}.": 401,
            await stranger.token(OPERATOR_AUDIENCE): 403,
            left: 401 if way is AuthenticationMode.TOKEN_REVIEW else 202,
        }
        for token, expected in attempts.items():
            code, said = await rig.wake(operator, "web", Authorization=f"Bearer {token}")
            assert (code, token in str(said)) == (expected, False), said
        code, _ = await rig.wake(operator, "web", Authorization=f"Bearer {good}")
        assert code == 202
        assert await rig.replicas() == 1


async def test_a_token_ends(rig: Rig, tmp_path: Path):
    await confined_operator(rig, tmp_path, rig.namespace)
    await rig.web(replicas=0)
    resolver = await Account(rig, "resolver").create()
    bearer = await resolver.bearer(OPERATOR_AUDIENCE)
    rig.clock = Later(3600 + 61)
    async with rig.operator(authenticate=True, authentication=AuthenticationMode.JWKS) as operator:
        code, said = await rig.wake(operator, "web", **bearer)
        assert (code, "it has expired" in said["message"]) == (401, True)


async def test_a_token_from_the_future_is_not_valid_yet(rig: Rig, tmp_path: Path):
    await confined_operator(rig, tmp_path, rig.namespace)
    resolver = await Account(rig, "resolver").create()
    bearer = await resolver.bearer(OPERATOR_AUDIENCE)
    rig.clock = Later(-120)
    async with rig.operator(authenticate=True, authentication=AuthenticationMode.JWKS) as operator:
        code, said = await rig.wake(operator, "web", **bearer)
        assert (code, "it is not valid yet" in said["message"]) == (401, True)


class View:
    """A resolver that has seen one Service."""

    async def activity(self, key: ServiceKey, *, hold: bool | None = None) -> ActivityReport | None:
        return ActivityReport(held=1, open=2) if key.service == "web" else None

    async def readiness(self) -> Readiness:
        return Readiness(ok=True, text="ok")

    async def metrics(self) -> bytes:
        return b""


@contextlib.asynccontextmanager
async def admin_port(client: Client, settings: AuthnSettings, *allowed: str) -> AsyncIterator[str]:
    """The resolver's admin port, guarded; yields the URL of `/activity`."""
    callers = authenticator_for(client, settings, audience=RESOLVER_AUDIENCE, allowed=allowed)
    server = AdminServer(View(), callers=callers)
    await server.start(host="127.0.0.1")
    try:
        yield f"http://127.0.0.1:{server.port}{ACTIVITY_PATH}?namespace=shop&service=web"
    finally:
        await server.aclose()


async def ask(url: str, headers: dict[str, str]) -> int:
    async with aiohttp.ClientSession() as session, session.get(url, headers=headers) as answer:
        await answer.read()
        return answer.status


@pytest.mark.parametrize("way", [AuthenticationMode.AUTO, AuthenticationMode.JWKS])
async def test_an_account_without_any_right_knows_its_callers(
    rig: Rig, tmp_path: Path, way: AuthenticationMode
):
    resolver = await Account(rig, "resolver").create()
    operator = await Account(rig, "operator").create()
    stranger = await Account(rig, "stranger", rig.namespace).create()
    async with Client(await resolver.config(tmp_path)) as client:
        async with admin_port(client, AuthnSettings(authentication=way), operator.user) as url:
            assert await ask(url, {}) == 401
            assert await ask(url, await operator.bearer(OPERATOR_AUDIENCE)) == 401
            assert await ask(url, await stranger.bearer(RESOLVER_AUDIENCE)) == 403
            assert await ask(url, await operator.bearer(RESOLVER_AUDIENCE)) == 200


async def test_an_account_that_may_not_review_says_what_to_do(rig: Rig, tmp_path: Path):
    resolver = await Account(rig, "resolver").create()
    async with Client(await resolver.config(tmp_path)) as client:
        settings = AuthnSettings(authentication=AuthenticationMode.TOKEN_REVIEW)
        async with admin_port(client, settings, "*") as url:
            bearer = await resolver.bearer(RESOLVER_AUDIENCE)
            async with aiohttp.ClientSession() as session, session.get(url, headers=bearer) as said:
                assert said.status == 503
                assert "ELASTI_AUTHENTICATION=JWKS" in await said.text()


async def test_keys_that_an_installer_gives_need_no_server(rig: Rig, tmp_path: Path):
    operator = await Account(rig, "operator").create()
    keys = tmp_path / "keys.json"
    asked = request.get("/openid/v1/jwks", accept="application/jwk-set+json")
    keys.write_bytes((await rig.client.send(asked)).body)
    token = await operator.token(RESOLVER_AUDIENCE)
    issuer = json.loads(_unpack(token.split(".")[1]))["iss"]
    settings = AuthnSettings(
        authentication=AuthenticationMode.JWKS, token_keys_file=str(keys), token_issuers=(issuer,)
    )
    async with Client(rig.config) as client:
        async with admin_port(client, settings, operator.user) as url:
            assert await ask(url, {"Authorization": f"Bearer {token}"}) == 200
        other = AuthnSettings(
            authentication=AuthenticationMode.JWKS,
            token_keys_file=str(keys),
            token_issuers=("https://other",),
        )
        async with admin_port(client, other, operator.user) as url:
            assert await ask(url, {"Authorization": f"Bearer {token}"}) == 401


async def test_what_a_plain_account_may_read_of_the_issuer(
    rig: Rig, tmp_path: Path, place: ControlPlane | None, request: pytest.FixtureRequest
):
    """The default binding that JWKS stands on; without it, the message names it."""
    bindings = rig.client.resource("rbac.authorization.k8s.io/v1/clusterrolebindings")
    found = await bindings.get("system:service-account-issuer-discovery")
    assert [subject["name"] for subject in found["subjects"]] == ["system:serviceaccounts"]
    if request.node.callspec.params["rig"] == CONTROLPLANE:
        assert place is not None
        return  # the session's server is everybody's; the binding stays
    await bindings.delete("system:service-account-issuer-discovery")
    resolver = await Account(rig, "resolver").create()
    async with Client(await resolver.config(tmp_path)) as client:
        settings = AuthnSettings(authentication=AuthenticationMode.AUTO)
        callers = authenticator_for(client, settings, audience=RESOLVER_AUDIENCE, allowed=("*",))
        assert callers is not None
        with pytest.raises(Forbidden):
            await client.resource("v1/pods", namespace=rig.namespace).get("any")
        with pytest.raises(Exception, match="system:service-account-issuer-discovery") as caught:
            await callers.admit(f"Bearer {await resolver.token(RESOLVER_AUDIENCE)}")
        assert getattr(caught.value, "status", 0) == 503
