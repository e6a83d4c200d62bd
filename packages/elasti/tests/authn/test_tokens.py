"""Tokens and keys as values: what is believed, and every reason not to believe."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json

import pytest
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from hypothesis import given
from hypothesis import strategies as st
from tests.authn.issuing import AUDIENCE, ISSUER, NOW, USER, Signer, claims, key_set, pack, rsa_key

from elasti.authn.tokens import (
    LEEWAY,
    InvalidToken,
    KeySetError,
    key_id,
    read_keys,
    user_of,
    verified_claims,
)

ALGORITHMS = ("RS256", "ES256", "ES384", "ES512")


def judge(token: str, keys: bytes, *, now: float = NOW + 10) -> str:
    """Everything that a token goes through; InvalidToken for an unknown key too."""
    key = read_keys(keys).get(key_id(token))
    if key is None:
        raise InvalidToken("unknown key")
    return user_of(verified_claims(token, key), issuers={ISSUER}, audience=AUDIENCE, now=now)


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
        ({"iss": "https://elsewhere"}, "not issued by"),
        ({"iss": ISSUER + "/"}, "not issued by"),
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
        with pytest.raises(InvalidToken, match="not signed with the algorithm"):
            judge(text, key_set(signer.jwk()))


def test_a_public_key_is_not_a_shared_secret():
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
        with pytest.raises(InvalidToken, match=r"signature is wrong|encoding cannot be read"):
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
def test_text_that_is_not_a_token_is_refused(text: str):
    with pytest.raises(InvalidToken):
        key_id(text)


_SIGNER = Signer("ES256")
_TOKEN = _SIGNER.token()
_KEYS = key_set(_SIGNER.jwk())
_KEY = read_keys(_KEYS)["key-1"]


@given(st.text(max_size=200))
def test_no_text_makes_it_fail_in_another_way(text: str):
    with pytest.raises(InvalidToken):
        judge(text, _KEYS)


@given(st.binary(max_size=80), st.binary(max_size=80), st.binary(max_size=80))
def test_no_bytes_make_it_fail_in_another_way(head: bytes, body: bytes, signature: bytes):
    token = f"{pack(head)}.{pack(body)}.{pack(signature)}"
    with pytest.raises(InvalidToken):
        key_id(token)
    with pytest.raises(InvalidToken):
        verified_claims(token, _KEY)


@pytest.mark.parametrize("nested", ["[" * 9000, '{"a":' * 2500], ids=["lists", "objects"])
def test_a_deeply_nested_token_is_refused(nested: str):
    text = nested.encode()
    for token in (f"{pack(text)}.e30.AA", _signed_raw(text)):
        with pytest.raises(InvalidToken):
            judge(token, _KEYS)


def test_the_last_of_a_repeated_claim_counts_for_everything():
    """Nothing reads a token twice, so two readers cannot disagree about it."""
    body = json.dumps(claims())[:-1] + ', "sub": "system:serviceaccount:kube-system:root"}'
    with pytest.raises(InvalidToken, match="no ServiceAccount"):
        judge(_signed_raw(body.encode()), _KEYS)


def test_a_repeated_header_field_cannot_choose_another_way():
    for head in (
        '{"alg":"ES256","kid":"key-1","alg":"none"}',
        '{"alg":"none","kid":"key-1","alg":"HS256"}',
    ):
        signed = f"{pack(head.encode())}.{pack(json.dumps(claims()).encode())}"
        for signature in ("", pack(_SIGNER._signature(signed.encode()))):
            with pytest.raises(InvalidToken, match="not signed with the algorithm"):
                judge(f"{signed}.{signature}", _KEYS)


@pytest.mark.parametrize("kid", ["../../etc/passwd", "key-1\0", "' OR 1=1 --", "KEY-1", "key-1 "])
def test_the_name_of_a_key_is_a_name_and_nothing_else(kid: str):
    with pytest.raises(InvalidToken, match="unknown key"):
        judge(_SIGNER.token({"alg": "ES256", "kid": kid}), _KEYS)


def test_a_payload_beside_the_token_is_not_taken():
    header = {"alg": "ES256", "kid": "key-1", "b64": False, "crit": ["b64"]}
    with pytest.raises(InvalidToken):
        judge(_SIGNER.token(header), _KEYS)
    with pytest.raises(InvalidToken):
        judge(_SIGNER.token({"alg": "ES256", "kid": "key-1", "b64": False}), _KEYS)


def test_the_other_form_of_an_elliptic_signature_is_refused_or_the_same_token():
    """(r, n - s) is a signature of the same claims: nobody gains a claim by it. DER is refused."""
    head, body, signature = _TOKEN.split(".")
    raw = base64.urlsafe_b64decode(signature + "==")
    order = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
    r, s = int.from_bytes(raw[:32], "big"), int.from_bytes(raw[32:], "big")
    other = pack(raw[:32] + (order - s).to_bytes(32, "big"))
    assert judge(f"{head}.{body}.{other}", _KEYS) == USER
    for forged in (encode_dss_signature(r, s), raw[:32] + bytes(32), bytes(32) + raw[32:]):
        with pytest.raises(InvalidToken, match="signature is wrong"):
            judge(f"{head}.{body}.{pack(forged)}", _KEYS)


def _signed_raw(body: bytes) -> str:
    head = pack(b'{"alg":"ES256","kid":"key-1"}')
    signed = f"{head}.{pack(body)}"
    return f"{signed}.{pack(_SIGNER._signature(signed.encode()))}"


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
    assert verified_claims(changed, _KEY) == verified_claims(_TOKEN, _KEY)


# Key sets


def test_keys_are_chosen_by_name():
    old, new = Signer("RS256", kid="old"), Signer("ES256", kid="new")
    keys = key_set(old.jwk(), new.jwk())
    assert judge(old.token(), keys) == judge(new.token(), keys) == USER
    with pytest.raises(InvalidToken):
        judge(new.token({"alg": "ES256", "kid": "old"}), keys)


def test_unusable_keys_are_skipped():
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
def test_an_unreadable_key_set_is_an_error(document: bytes):
    with pytest.raises(KeySetError, match="not a JSON Web Key Set"):
        read_keys(document)


def test_the_first_of_two_keys_of_one_name_counts():
    first, second = Signer(), Signer(number=1)
    keys = key_set(first.jwk(), second.jwk())
    assert judge(first.token(), keys) == USER
    with pytest.raises(InvalidToken):
        judge(second.token(), keys)
