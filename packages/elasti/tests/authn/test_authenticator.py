"""Who is let in, who keeps the keys, and what happens while they change or cannot be had."""

from __future__ import annotations

import asyncio
import datetime as dt

import pytest
from tests.authn.issuing import AUDIENCE, ISSUER, NOW, USER, Signer, key_set
from tests.log_lines import capture_logs

from elasti.api.parsing import SettingsError
from elasti.authn.authenticator import (
    DECISION_TTL,
    MAX_CACHED_DECISIONS,
    STALE_TTL,
    AccessDenied,
    CallerAuthenticator,
    FallbackVerifier,
    TokenReviewForbidden,
    TokenReviewVerifier,
)
from elasti.authn.jwks import FileKeySource, JwksVerifier, TokenIssuer
from elasti.authn.settings import AuthenticationMode, AuthnSettings, parse_authentication_mode
from elasti.authn.tokens import TokenDecision, VerifierUnavailable, read_keys
from kubeloop.client.errors import TransportError

pytestmark = pytest.mark.virtual_time


class Clock:
    """Wall time that goes with the loop's."""

    def now(self) -> dt.datetime:
        return dt.datetime.fromtimestamp(NOW + asyncio.get_running_loop().time(), dt.UTC)


class Source:
    """An issuer's documents; `down` says why they cannot be read."""

    def __init__(self, *signers: Signer) -> None:
        self.signers = list(signers)
        self.down = ""
        self.reads = 0
        self.takes = 0.0

    async def read(self) -> TokenIssuer:
        self.reads += 1
        await asyncio.sleep(self.takes)
        if self.down:
            raise VerifierUnavailable(self.down)
        keys = read_keys(key_set(*(signer.jwk() for signer in self.signers)))
        return TokenIssuer(frozenset({ISSUER}), keys)


class Reviews:
    """An API server that knows some tokens."""

    def __init__(self, **users: str) -> None:
        self.users = users
        self.failure: VerifierUnavailable | None = None
        self.asked = 0

    async def verify(self, token: str) -> TokenDecision:
        self.asked += 1
        if self.failure is not None:
            raise self.failure
        return TokenDecision(self.users.get(token, ""), "unknown")

    async def ready(self) -> str:
        await self.verify("")
        return "by TokenReview"


def signatures(source: Source) -> JwksVerifier:
    return JwksVerifier(source, audience=AUDIENCE, clock=Clock())


def callers(verifier, *allowed: str) -> CallerAuthenticator:
    return CallerAuthenticator(verifier, audience=AUDIENCE, allowed=allowed, clock=Clock())


async def denied(who: CallerAuthenticator, header: str) -> int:
    with pytest.raises(AccessDenied) as caught:
        await who.admit(header)
    return caught.value.status


# Letting in


@pytest.mark.parametrize("token", ["\udcff", "\xe9", "a\udc80b"])
async def test_a_token_that_is_not_text_is_refused_without_a_review(token: str):
    # What a server makes of a header that is not UTF-8 cannot be written back.
    assert await denied(callers(None, "*"), f"Bearer {token}") == 401


async def test_the_right_caller_is_let_in_and_remembered():
    reviews = Reviews(good=USER)
    who = callers(reviews, "system:serviceaccount:elasti:*")
    assert await who.admit("Bearer good") == USER
    assert await who.admit("bearer  good ") == USER
    assert reviews.asked == 1


@pytest.mark.parametrize(
    "header", ["", "Basic abc", "Bearer", "Bearer ", "Bearer bad", "Bearer " + "x" * 20000]
)
async def test_callers_without_a_valid_token_are_refused(header: str):
    assert await denied(callers(Reviews(good=USER), "*"), header) == 401


async def test_a_stranger_with_a_good_token_is_refused():
    who = callers(Reviews(good=USER), "system:serviceaccount:elasti:operator", "bob*")
    with pytest.raises(AccessDenied, match="ELASTI_ALLOWED_CALLERS") as caught:
        await who.admit("Bearer good")
    assert caught.value.status == 403


async def test_an_empty_list_admits_no_caller():
    assert await denied(callers(Reviews(good=USER)), "Bearer good") == 403


async def test_a_verdict_is_kept_for_a_minute_good_or_bad():
    reviews = Reviews(good=USER)
    who = callers(reviews, USER)
    for _ in range(5):
        await who.admit("Bearer good")
        await denied(who, "Bearer bad")
    assert reviews.asked == 2
    del reviews.users["good"]
    await asyncio.sleep(DECISION_TTL)
    assert await denied(who, "Bearer good") == 401


async def test_what_is_remembered_is_bounded_and_holds_no_token():
    reviews = Reviews(good=USER)
    who = callers(reviews, USER)
    await who.admit("Bearer good")
    for number in range(MAX_CACHED_DECISIONS + 200):
        await denied(who, f"Bearer bad-{number}")
    assert len(who._refused) == MAX_CACHED_DECISIONS
    assert b"bad" not in b"".join(who._refused)
    asked = reviews.asked
    assert await who.admit("Bearer good") == USER
    assert reviews.asked == asked, "a flood of bad tokens pushes no good one out"


async def test_a_known_caller_is_let_in_while_tokens_cannot_be_checked():
    reviews = Reviews(good=USER)
    who = callers(reviews, USER)
    await who.admit("Bearer good")
    await denied(who, "Bearer bad")
    await asyncio.sleep(DECISION_TTL)
    reviews.failure = VerifierUnavailable("away")
    asked = reviews.asked
    for _ in range(5):
        assert await who.admit("Bearer good") == USER
    assert reviews.asked == asked + 1, "one waits for the server, not each"
    assert await denied(who, "Bearer bad") == 503
    assert await denied(who, "Bearer new") == 503
    await asyncio.sleep(STALE_TTL)
    assert await denied(who, "Bearer good") == 503


async def test_a_known_caller_waits_for_no_queue_of_tokens_while_the_server_hangs():
    class Resource:
        hangs = False

        async def create(self, body, *, timeout):
            if self.hangs:
                await asyncio.sleep(timeout)
                raise TransportError("no answer")
            return {
                "status": {
                    "authenticated": True,
                    "audiences": [AUDIENCE],
                    "user": {"username": USER},
                }
            }

    class Server:
        reviews = Resource()

        def resource(self, _path):
            return self.reviews

    loop, server = asyncio.get_running_loop(), Server()
    verifier = TokenReviewVerifier(server, audience=AUDIENCE)  # type: ignore[arg-type]  # enough of it
    who = callers(verifier, "*")
    assert await who.admit("Bearer good") == USER
    server.reviews.hangs = True
    await asyncio.sleep(DECISION_TTL)
    strangers = [asyncio.create_task(denied(who, f"Bearer {number}")) for number in range(100)]
    await asyncio.sleep(1)
    began = loop.time()
    assert await who.admit("Bearer good") == USER
    assert loop.time() - began <= 8
    assert set(await asyncio.gather(*strangers)) == {503}


async def test_a_known_caller_is_not_let_in_past_the_end_of_the_token():
    signer, source = Signer(), Source()
    source.signers.append(signer)
    who = callers(signatures(source), USER)
    token = signer.token(exp=NOW + 100)
    await who.admit(f"Bearer {token}")
    source.down = "away"
    await asyncio.sleep(100 + 61)
    assert await denied(who, f"Bearer {token}") in (401, 503)


async def test_what_could_not_be_checked_is_for_later_and_not_remembered():
    reviews = Reviews(good=USER)
    reviews.failure = VerifierUnavailable("away")
    who = callers(reviews, USER)
    assert await denied(who, "Bearer good") == 503
    reviews.failure = None
    assert await who.admit("Bearer good") == USER


async def test_no_decision_outlives_its_token():
    signer = Signer()
    who = callers(signatures(Source(signer)), USER)
    token = signer.token(exp=NOW + 20)
    await who.admit(f"Bearer {token}")
    await asyncio.sleep(20 + 61)
    with pytest.raises(AccessDenied, match="expired"):
        await who.admit(f"Bearer {token}")


async def test_how_callers_are_checked_is_logged_once():
    source = Source(Signer())
    source.down = "the keys are locked away"
    with capture_logs() as lines:
        task = asyncio.create_task(callers(signatures(source), USER).run())
        await asyncio.sleep(300)
        source.down = ""
        await asyncio.sleep(300)
        reads = source.reads
        await asyncio.sleep(3000)
        assert source.reads == reads
        task.cancel()
    refused, checked = lines
    assert refused["log_level"] == "error"
    assert "the keys are locked away" in refused["reason"]
    assert (checked["event"], checked["log_level"]) == ("callers are checked", "info")
    assert ISSUER in checked["how"]


# Keeping keys


async def test_keys_are_read_once_for_many_callers():
    signer = Signer()
    source = Source(signer)
    source.takes = 1.0
    verifier = signatures(source)
    tokens = [signer.token(jti=str(number)) for number in range(20)]
    verdicts = await asyncio.gather(*(verifier.verify(token) for token in tokens))
    assert {verdict.user for verdict in verdicts} == {USER}
    assert source.reads == 1


async def test_a_new_key_is_read_when_a_token_names_it():
    old, new = Signer(kid="old"), Signer("ES256", kid="new")
    source = Source(old)
    verifier = signatures(source)
    assert (await verifier.verify(old.token())).user == USER
    await asyncio.sleep(60)
    source.signers = [old, new]
    assert (await verifier.verify(new.token())).user == USER
    assert (await verifier.verify(old.token())).user == USER
    assert source.reads == 2


async def test_unknown_keys_make_no_flood_of_reads():
    signer = Signer()
    source = Source(signer)
    verifier = signatures(source)
    await verifier.verify(signer.token())
    await asyncio.sleep(1)
    refused = 0
    for number in range(1000):
        try:
            verdict = await verifier.verify(Signer("ES256", kid=f"made-up-{number}").token())
        except VerifierUnavailable:
            pass
        else:
            assert not verdict.user
            refused += 1
        await asyncio.sleep(0.1)
    assert source.reads <= 1 + 10
    assert refused == source.reads - 1
    assert (await verifier.verify(signer.token())).user == USER


async def test_a_key_that_was_withdrawn_ends_with_the_next_reading():
    old, new = Signer(kid="old"), Signer("ES256", kid="new")
    source = Source(old, new)
    verifier = signatures(source)
    assert (await verifier.verify(old.token())).user == USER
    source.signers = [new]
    await asyncio.sleep(601)
    verdict = await verifier.verify(old.token())
    assert (verdict.user, verdict.why) == ("", "it is signed with a key that is not the cluster's")


async def test_old_keys_serve_while_the_server_is_away():
    signer = Signer()
    source = Source(signer)
    verifier = signatures(source)
    await verifier.verify(signer.token())
    source.down = "away"
    await asyncio.sleep(2000)
    assert (await verifier.verify(signer.token())).user == USER


async def test_without_keys_nothing_is_logged_and_reading_is_paced():
    signer = Signer()
    source = Source(signer)
    source.down = "away"
    verifier = signatures(source)
    for _ in range(100):
        with pytest.raises(VerifierUnavailable, match="away"):
            await verifier.verify(signer.token())
        await asyncio.sleep(0.1)
    assert source.reads <= 12
    source.down = ""
    await asyncio.sleep(1)
    assert (await verifier.verify(signer.token())).user == USER


async def test_a_caller_that_leaves_does_not_disturb_the_others():
    signer = Signer()
    source = Source(signer)
    source.takes = 5.0
    verifier = signatures(source)
    first = asyncio.create_task(verifier.verify(signer.token()))
    second = asyncio.create_task(verifier.verify(signer.token()))
    await asyncio.sleep(1)
    first.cancel()
    assert (await second).user == USER
    assert source.reads == 1


async def test_keys_in_a_file_are_followed(tmp_path):
    old, new = Signer(kid="old"), Signer("ES256", kid="new")
    path = tmp_path / "keys.json"
    verifier = JwksVerifier(
        FileKeySource(path, issuers=(ISSUER,)), audience=AUDIENCE, clock=Clock()
    )
    with pytest.raises(VerifierUnavailable, match=r"ELASTI_TOKEN_KEYS_FILE: .*No such file"):
        await verifier.verify(old.token())
    path.write_bytes(b"<html>")
    await asyncio.sleep(2)
    with pytest.raises(VerifierUnavailable, match="not a JSON Web Key Set"):
        await verifier.verify(old.token())
    path.write_bytes(key_set(old.jwk()))
    await asyncio.sleep(2)
    assert (await verifier.verify(old.token())).user == USER
    path.write_bytes(key_set(new.jwk()))
    await asyncio.sleep(11)
    assert (await verifier.verify(new.token())).user == USER


# Choosing


async def test_reviews_come_first_if_they_are_allowed():
    reviews, source = Reviews(good=USER), Source(Signer())
    either = FallbackVerifier(reviews, signatures(source))
    assert await either.ready() == "by TokenReview"
    assert (await either.verify("good")).user == USER
    assert source.reads == 0


async def test_forbidden_reviews_are_replaced_by_signatures_and_tried_again_later():
    signer = Signer()
    reviews = Reviews(good=USER)
    reviews.failure = TokenReviewForbidden("may not")
    either = FallbackVerifier(reviews, signatures(Source(signer)))
    for _ in range(50):
        assert (await either.verify(signer.token())).user == USER
    assert reviews.asked == 1
    reviews.failure = None
    await asyncio.sleep(601)
    assert (await either.verify("good")).user == USER


async def test_signatures_are_not_trusted_because_the_server_is_away():
    signer = Signer()
    reviews = Reviews()
    reviews.failure = VerifierUnavailable("away")
    either = FallbackVerifier(reviews, signatures(Source(signer)))
    with pytest.raises(VerifierUnavailable, match="away"):
        await either.verify(signer.token())


async def test_if_neither_works_both_reasons_are_given():
    reviews, source = Reviews(), Source()
    reviews.failure, source.down = TokenReviewForbidden("no review"), "no keys"
    with pytest.raises(VerifierUnavailable, match="no review; and no keys"):
        await FallbackVerifier(reviews, signatures(source)).ready()


def test_the_ways_are_read_whatever_their_case():
    assert parse_authentication_mode("jwks") is AuthenticationMode.JWKS
    assert parse_authentication_mode("tokenreview") is AuthenticationMode.TOKEN_REVIEW
    with pytest.raises(ValueError, match="one of Auto, TokenReview, JWKS, None"):
        parse_authentication_mode("basic")


def test_keys_in_a_file_need_the_issuers_name():
    with pytest.raises(SettingsError, match="ELASTI_TOKEN_ISSUERS"):
        AuthnSettings(token_keys_file="/keys.json").check()
    AuthnSettings(token_keys_file="/keys.json", token_issuers=("https://x",)).check()
