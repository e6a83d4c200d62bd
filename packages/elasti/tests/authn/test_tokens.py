"""Tokens and keys as values: what is believed, and every reason not to believe."""

from __future__ import annotations

import hashlib
import hmac
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.authn.issuing import AUDIENCE, ISSUER, NOW, USER, Signer, claims, key_set, pack, rsa_key

from elasti.authn.tokens import (
    LEEWAY,
    InvalidToken,
    KeySetError,
    check_signature,
    parse_token,
    read_keys,
    user_of,
)

ALGORITHMS = ("RS256", "ES256", "ES384", "ES512")


def judge(token: str, keys: bytes, *, now: float = NOW + 10) -> str:
    """Everything that a token goes through; BadToken for an unknown key too."""
    parsed = parse_token(token)
    key = read_keys(keys).get(parsed.header.kid)
    if key is None:
        raise InvalidToken("unknown key")
    check_signature(parsed, key)
    return user_of(parsed.claims, issuers={ISSUER}, audience=AUDIENCE, now=now)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_what_the_cluster_signed_is_believed(algorithm: str):
    signer = Signer(algorithm)
    assert judge(signer.token(), key_set(signer.jwk())) == USER


@pytest.mark.parametrize("audience", [AUDIENCE, [AUDIENCE], ["other", AUDIENCE]])
def test_one_audience_of_several_is_enough(audience):
    signer = Signer()
    assert judge(signer.token(aud=audience), key_set(signer.jwk())) == USER


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"iss": "https://elsewhere"}, "somebody else"),
        ({"iss": ISSUER + "/"}, "somebody else"),
        ({"aud": ["https://kubernetes.default.svc"]}, "another audience"),
        ({"aud": []}, "another audience"),
        ({"aud": AUDIENCE + "2"}, "another audience"),
        ({"exp": NOW - LEEWAY}, "expired"),
        ({"nbf": NOW + 10 + LEEWAY + 1}, "not valid yet"),
        ({"iat": NOW + 10 + LEEWAY + 1}, "not valid yet"),
        ({"exp": None}, "claims cannot be read"),
        ({"iss": None}, "claims cannot be read"),
        ({"sub": None}, "claims cannot be read"),
        ({"aud": None}, "claims cannot be read"),
        ({"exp": "soon"}, "claims cannot be read"),
        ({"exp": True}, "claims cannot be read"),
        ({"sub": "system:admin"}, "no ServiceAccount"),
        ({"sub": "system:serviceaccount:elasti:other"}, "no ServiceAccount"),
        ({"kubernetes.io": None}, "no ServiceAccount"),
    ],
)
def test_a_good_signature_under_bad_claims_is_worth_nothing(changes, why: str):
    signer = Signer()
    with pytest.raises(InvalidToken, match=why):
        judge(signer.token(**changes), key_set(signer.jwk()))


def test_clocks_may_differ_a_little():
    signer = Signer()
    keys = key_set(signer.jwk())
    assert judge(signer.token(exp=NOW), keys, now=NOW + LEEWAY - 1) == USER
    assert judge(signer.token(nbf=NOW, iat=NOW), keys, now=NOW - LEEWAY + 1) == USER


@pytest.mark.parametrize("algorithm", ["none", "None", "NONE", "", "HS256", "RS384", "PS256"])
def test_a_header_cannot_choose_how_it_is_checked(algorithm: str):
    signer = Signer()
    token = signer.token({"alg": algorithm, "kid": signer.kid})
    for text in (token, token.rpartition(".")[0] + "."):
        with pytest.raises(InvalidToken, match="another way"):
            judge(text, key_set(signer.jwk()))


def test_a_public_key_is_no_shared_secret():
    signer = Signer()
    jwk = signer.jwk()
    signed = ".".join(
        pack(json.dumps(part).encode()) for part in ({"alg": "HS256", "kid": signer.kid}, claims())
    )
    for secret in (json.dumps(jwk).encode(), jwk["n"].encode()):
        forged = pack(hmac.new(secret, signed.encode(), hashlib.sha256).digest())
        with pytest.raises(InvalidToken):
            judge(f"{signed}.{forged}", key_set(jwk))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_another_key_of_the_same_name_is_refused(algorithm: str):
    ours, theirs = Signer(algorithm), Signer(algorithm, number=1)
    with pytest.raises(InvalidToken, match="signature is wrong"):
        judge(theirs.token(), key_set(ours.jwk()))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_signature_of_another_size_is_refused(algorithm: str):
    signer = Signer(algorithm)
    head, body, signature = signer.token().split(".")
    for wrong in ("", signature[:-4], signature + "AAAA"):
        with pytest.raises(InvalidToken, match="signature is wrong"):
            judge(f"{head}.{body}.{wrong}", key_set(signer.jwk()))


@pytest.mark.parametrize("algorithm", ["ES256", "ES512"])
def test_a_signature_of_zeros_is_refused(algorithm: str):
    signer = Signer(algorithm)
    head, body, signature = signer.token().split(".")
    with pytest.raises(InvalidToken, match="signature is wrong"):
        judge(f"{head}.{body}.{'A' * len(signature)}", key_set(signer.jwk()))


def test_claims_of_another_token_do_not_fit_the_signature():
    signer = Signer("ES256")
    head, _, signature = signer.token().split(".")
    _, body, _ = signer.token(sub="system:serviceaccount:kube-system:root").split(".")
    with pytest.raises(InvalidToken, match="signature is wrong"):
        judge(f"{head}.{body}.{signature}", key_set(signer.jwk()))


@pytest.mark.parametrize(
    "header",
    [
        {"alg": "RS256"},
        {"alg": "RS256", "kid": ""},
        {"alg": "RS256", "kid": "key-1", "crit": ["exp"]},
        {"alg": "RS256", "kid": 1},
        ["RS256"],
    ],
)
def test_a_strange_header_is_refused(header):
    signer = Signer()
    with pytest.raises(InvalidToken, match="header"):
        judge(signer.sign(header, claims()), key_set(signer.jwk()))


def test_keys_in_a_header_are_not_looked_at():
    ours, theirs = Signer(), Signer(number=1)
    header = {"alg": "RS256", "kid": "key-1", "jwk": theirs.jwk(), "jku": "https://evil/jwks"}
    with pytest.raises(InvalidToken, match="signature is wrong"):
        judge(theirs.token(header), key_set(ours.jwk()))


@pytest.mark.parametrize(
    "text", ["", "a", "a.b", "a.b.c.d", "..", "é.b.c", "a" * 20000, "e30.e30.", "e30=.e30.e30"]
)
def test_what_is_no_token_is_refused(text: str):
    with pytest.raises(InvalidToken):
        parse_token(text)


@given(st.text(max_size=200))
def test_no_text_makes_it_fail_in_another_way(text: str):
    with pytest.raises(InvalidToken):
        parse_token(text)


@given(st.binary(max_size=80), st.binary(max_size=80), st.binary(max_size=80))
def test_no_bytes_make_it_fail_in_another_way(head: bytes, body: bytes, signature: bytes):
    with pytest.raises(InvalidToken):
        parse_token(f"{pack(head)}.{pack(body)}.{pack(signature)}")


_SIGNER = Signer("ES256")
_TOKEN = _SIGNER.token()
_KEYS = key_set(_SIGNER.jwk())


@given(st.integers(0, len(_TOKEN) - 1), st.sampled_from("ABab01-_.= "))
def test_no_changed_character_passes(position: int, letter: str):
    changed = _TOKEN[:position] + letter + _TOKEN[position + 1 :]
    if changed == _TOKEN:
        return
    try:
        user = judge(changed, _KEYS)
    except InvalidToken:
        return
    # The last letter of a part has bits that mean nothing: the same token, spelled otherwise.
    assert user == USER
    assert parse_token(changed).signature == parse_token(_TOKEN).signature
    assert parse_token(changed).claims == parse_token(_TOKEN).claims


# Key sets


def test_several_keys_are_told_apart_by_name():
    old, new = Signer("RS256", kid="old"), Signer("ES256", kid="new")
    keys = key_set(old.jwk(), new.jwk())
    assert judge(old.token(), keys) == judge(new.token(), keys) == USER
    with pytest.raises(InvalidToken):
        judge(new.token({"alg": "ES256", "kid": "old"}), keys)


def test_what_is_no_usable_key_is_passed_over():
    good = Signer("ES256", kid="good")
    x_too_short = Signer("ES256", kid="short").jwk(x="AAAA")
    off_curve = Signer("ES256", kid="off").jwk(y=Signer("ES256").jwk()["y"])
    weak = rsa_key(1024, 9).public_key().public_numbers()
    bits = pack(weak.n.to_bytes(128, "big"))
    others = [
        Signer(kid="encrypts").jwk(use="enc"),
        Signer().jwk(kid=None),
        Signer(kid="lies").jwk(alg="ES256"),
        {"kty": "oct", "kid": "secret", "k": "c2VjcmV0"},
        {"kty": "OKP", "kid": "edwards", "crv": "Ed25519", "x": "AAAA"},
        {"kty": "EC", "kid": "curve", "crv": "secp256k1", "x": "AAAA", "y": "AAAA"},
        {"kty": "RSA", "kid": "weak", "n": bits, "e": "AQAB"},
        {"kty": "RSA", "kid": "junk", "n": "!!!", "e": "AQAB"},
        x_too_short,
        off_curve,
    ]
    assert set(read_keys(key_set(*others, good.jwk()))) == {"good"}
    with pytest.raises(KeySetError, match="none of its 10 keys"):
        read_keys(key_set(*others))


@pytest.mark.parametrize("document", [b"", b"[]", b"{}", b'{"keys":1}', b"\xff", b"<html>"])
def test_what_is_no_key_set_says_so(document: bytes):
    with pytest.raises(KeySetError, match="not a JSON Web Key Set"):
        read_keys(document)


def test_the_first_of_two_keys_of_one_name_counts():
    first, second = Signer(), Signer(number=1)
    keys = key_set(first.jwk(), second.jwk())
    assert judge(first.token(), keys) == USER
    with pytest.raises(InvalidToken):
        judge(second.token(), keys)
