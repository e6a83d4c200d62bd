"""Certificates are renewed in time, and an authority is trusted before it signs."""

from __future__ import annotations

import dataclasses
import datetime as dt

import pytest
from cryptography import x509
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

from kubeloop.webhook import Lifetimes
from kubeloop.webhook.certificate_secret import CertificateSet
from kubeloop.webhook.certificates import renewed

NOW = dt.datetime(2030, 1, 1, tzinfo=dt.UTC)
DAY, MINUTE = dt.timedelta(days=1), dt.timedelta(minutes=1)
HOSTS = ["web.shop.svc", "web.shop.svc.cluster.local"]
LIVES = Lifetimes()


def authorities(found: CertificateSet) -> list[x509.Certificate]:
    return x509.load_pem_x509_certificates(found.authorities)


def trusts(bundle: bytes, found: CertificateSet, now: dt.datetime) -> bool:
    """Whether a client with this bundle takes the certificate, by a verifier that is not ours."""
    store = Store(x509.load_pem_x509_certificates(bundle))
    verifier = PolicyBuilder().store(store).time(now).build_server_verifier(x509.DNSName(HOSTS[0]))
    try:
        verifier.verify(x509.load_pem_x509_certificate(found.certificate), [])
    except VerificationError:
        return False
    return True


def test_the_first_set_is_valid_and_stays() -> None:
    made = renewed(None, HOSTS, NOW, LIVES)
    assert trusts(made.authorities, made, NOW)
    assert renewed(made, HOSTS, NOW + 59 * DAY, LIVES) is made


def test_no_client_meets_a_certificate_that_it_does_not_trust_in_ten_years() -> None:
    """A client trusts what was published an hour ago; a replica serves what it read an hour ago."""
    lives = Lifetimes(settle=dt.timedelta(hours=2))
    now, found = NOW, renewed(None, HOSTS, NOW, lives)
    history = [found, found]
    serials, bundles = set(), set()
    while now < NOW + 3650 * DAY:
        # Hourly when something is under way, daily else: the decision depends on nothing else.
        now += dt.timedelta(hours=1) if history[-1] is not history[-2] else DAY
        found = renewed(found, HOSTS, now, lives)
        history.append(found)
        before = history[-2]
        # What did not change is trusted from its first day to its last, if it is on both.
        if found is not before or before is not history[-3]:
            for bundle in (found.authorities, before.authorities):
                assert trusts(bundle, before, now), now
            assert trusts(before.authorities, found, now), now
        serials.add(found.certificate)
        bundles.add(found.authorities)
    assert 50 < len(serials) < 75
    assert 6 < len({one.serial_number for found in history for one in authorities(found)}) < 10
    assert max(len(authorities(found)) for found in history) <= 3


def test_a_new_authority_signs_only_after_it_has_settled() -> None:
    made = renewed(None, HOSTS, NOW, LIVES)
    later = NOW + 500 * DAY
    current = renewed(made, HOSTS, later, LIVES)  # the certificate had expired
    assert current.authorities == made.authorities
    both = renewed(current, HOSTS, later, LIVES)
    assert len(authorities(both)) == 2
    assert both.certificate == current.certificate
    assert renewed(both, HOSTS, later + 4 * MINUTE, LIVES) is both
    switched = renewed(both, HOSTS, later + 6 * MINUTE, LIVES)
    assert switched.certificate != both.certificate
    assert switched.authorities == both.authorities
    assert renewed(switched, HOSTS, later + 7 * MINUTE, LIVES) is switched


def test_a_certificate_never_outlives_its_authority() -> None:
    lives = Lifetimes(authority=30 * DAY)
    made = renewed(None, HOSTS, NOW, lives)
    serving = x509.load_pem_x509_certificate(made.certificate)
    assert serving.not_valid_after_utc == authorities(made)[0].not_valid_after_utc


def test_other_names_are_certified_at_once_by_the_same_authority() -> None:
    made = renewed(None, ["old.shop.svc"], NOW, LIVES)
    new = renewed(made, HOSTS, NOW, LIVES)
    assert new.authorities == made.authorities
    assert trusts(made.authorities, new, NOW)


@pytest.mark.parametrize("field", ["authorities", "authority_key", "certificate", "key"])
@pytest.mark.parametrize("damage", [b"", b"no PEM", "other"])
def test_a_damaged_set_is_made_new(field: str, damage: bytes | str) -> None:
    made, other = (renewed(None, HOSTS, NOW, LIVES) for _ in range(2))
    broken = getattr(other, field) if isinstance(damage, str) else damage
    found = renewed(dataclasses.replace(made, **{field: broken}), HOSTS, NOW, LIVES)
    assert trusts(found.authorities, found, NOW)
    assert renewed(found, HOSTS, NOW, LIVES) is found


def test_a_lost_key_of_the_authority_costs_no_trust() -> None:
    made = renewed(None, HOSTS, NOW, LIVES)
    found = renewed(dataclasses.replace(made, authority_key=b""), HOSTS, NOW, LIVES)
    assert found.certificate == made.certificate
    assert trusts(made.authorities, found, NOW)
    assert authorities(found)[0] == authorities(made)[0]
    later = NOW + 6 * MINUTE
    signed = renewed(found, HOSTS, later, LIVES)
    assert signed.certificate != made.certificate
    assert trusts(found.authorities, signed, later)


@pytest.mark.parametrize("ahead", [8 * 60 * MINUTE, 70 * DAY, 500 * DAY])
def test_what_a_clock_that_was_ahead_made_is_replaced(ahead: dt.timedelta) -> None:
    from_the_future = renewed(None, HOSTS, NOW + ahead, LIVES)
    found = renewed(from_the_future, HOSTS, NOW, LIVES)
    assert trusts(found.authorities, found, NOW)


def test_after_a_long_rest_everything_is_new() -> None:
    made = renewed(None, HOSTS, NOW, LIVES)
    late = NOW + 3000 * DAY
    assert trusts((new := renewed(made, HOSTS, late, LIVES)).authorities, new, late)


def test_keys_are_not_shown() -> None:
    assert "PRIVATE" not in repr(renewed(None, HOSTS, NOW, LIVES))
