from __future__ import annotations

import asyncio
import datetime as dt

import pytest

from kubeloop.client.auth.exec_credential import PluginCredential
from kubeloop.client.auth.exec_plugin import PluginIdentity
from kubeloop.client.auth.tls import ClientKeyPair
from kubeloop.client.errors import CredentialError
from kubeloop.testing.virtual_time import VirtualClock

pytestmark = pytest.mark.virtual_time


class FakePlugin:
    """Takes a second and gives token 1, 2, 3, ...; fails while told to."""

    origin = "cfg: exec"

    def __init__(self, clock, *, life=None, pair=None, token="t{}"):
        self.clock = clock
        self.life = life
        self.pair = pair
        self.token = token
        self.runs = 0
        self.broken = False

    async def run(self):
        self.runs += 1
        await asyncio.sleep(1)
        if self.broken:
            raise CredentialError("cfg: exec: plugin is broken")
        expires = self.clock.now() + dt.timedelta(seconds=self.life) if self.life else None
        return PluginCredential(token=self.token.format(self.runs), pair=self.pair, expires=expires)


def make(**options):
    clock = VirtualClock()
    plugin = FakePlugin(clock, **options)
    return plugin, PluginIdentity(plugin, clock=clock)


def of(token):
    return {"Authorization": f"Bearer {token}"}


def pair(name):
    return ClientKeyPair(certificate=name, key=name, certificate_origin="o", key_origin="o")


async def test_concurrent_requests_share_one_run():
    plugin, identity = make()
    results = await asyncio.gather(*(identity.headers() for _ in range(20)), identity.key_pair())
    assert results == [of("t1")] * 20 + [None]
    assert plugin.runs == 1


async def test_a_credential_without_an_expiry_is_kept_indefinitely():
    plugin, identity = make()
    await identity.headers()
    await asyncio.sleep(1e6)
    assert await identity.headers() == of("t1")
    assert plugin.runs == 1


async def test_a_credential_is_renewed_half_a_minute_before_it_expires():
    plugin, identity = make(life=3600)
    await identity.headers()
    await asyncio.sleep(3569.9)
    assert await identity.headers() == of("t1")
    await asyncio.sleep(0.2)
    assert await identity.headers() == of("t2")
    assert plugin.runs == 2


async def test_a_short_life_is_renewed_in_its_last_tenth():
    _, identity = make(life=10)
    await identity.headers()
    await asyncio.sleep(8.9)
    assert await identity.headers() == of("t1")
    await asyncio.sleep(0.2)
    assert await identity.headers() == of("t2")


async def test_a_failed_renewal_keeps_the_valid_credential_and_pauses(caplog):
    plugin, identity = make(life=3600)
    await identity.headers()
    plugin.broken = True
    await asyncio.sleep(3571)
    assert await identity.headers() == of("t1")
    assert await identity.headers() == of("t1")
    assert plugin.runs == 2
    assert "plugin is broken" in caplog.text
    assert "t1" not in caplog.text
    await asyncio.sleep(5)
    await identity.headers()
    assert plugin.runs == 3
    plugin.broken = False
    await asyncio.sleep(5)
    assert await identity.headers() == of("t4")


async def test_an_expired_credential_is_not_used_when_the_plugin_fails():
    plugin, identity = make(life=3600)
    await identity.headers()
    plugin.broken = True
    await asyncio.sleep(3601)
    with pytest.raises(CredentialError, match="plugin is broken"):
        await identity.headers()


async def test_after_a_401_the_plugin_is_run_again():
    plugin, identity = make()
    identity.invalidate(await identity.headers())
    assert await identity.headers() == of("t2")
    identity.invalidate()
    assert await identity.headers() == of("t3")
    assert plugin.runs == 3


async def test_late_401s_to_an_old_token_run_nothing():
    plugin, identity = make()
    old = await identity.headers()
    identity.invalidate(old)
    await identity.headers()
    for _ in range(10):
        identity.invalidate(old)
    assert await identity.headers() == of("t2")
    assert plugin.runs == 2


async def test_a_refused_credential_is_not_kept_when_the_plugin_fails():
    plugin, identity = make(life=3600)
    refused = await identity.headers()
    plugin.broken = True
    identity.invalidate(refused)
    with pytest.raises(CredentialError, match="plugin is broken"):
        await identity.headers()
    plugin.broken = False
    assert await identity.headers() == of("t3")


async def test_a_failure_is_not_remembered():
    plugin, identity = make()
    plugin.broken = True
    with pytest.raises(CredentialError):
        await identity.headers()
    plugin.broken = False
    assert await identity.headers() == of("t2")


async def test_certificates_alone_send_no_header():
    _, identity = make(pair=pair(b"p"), token="")
    assert await identity.headers() == {}
    assert await identity.key_pair() == pair(b"p")


async def test_a_new_certificate_replaces_the_old_one():
    plugin, identity = make(pair=pair(b"1"), life=60)
    assert await identity.key_pair() == pair(b"1")
    plugin.pair = pair(b"2")
    await asyncio.sleep(60)
    assert await identity.key_pair() == pair(b"2")


async def test_a_token_unfit_for_a_header_is_refused_unprinted():
    plugin, identity = make(token="se\nsame")
    with pytest.raises(CredentialError, match="cfg: exec: the token") as caught:
        await identity.headers()
    assert "same" not in str(caught.value)
    plugin.token = "good"
    assert await identity.headers() == of("good")


async def test_cancelling_one_request_does_not_end_run_of_others():
    plugin, identity = make()
    first, second = (asyncio.create_task(identity.headers()) for _ in range(2))
    await asyncio.sleep(0.5)
    first.cancel()
    assert await second == of("t1")
    assert plugin.runs == 1
