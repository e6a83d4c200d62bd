"""ServiceAccount tokens: asked for, used, reviewed, and no longer believed."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from tests.apiserver.harness import pod
from tests.auth.support import ACCOUNTS, PODS, guarded

from devkube.auth.jwt import SigningKey, TokenError
from devkube.auth.service_accounts import ISSUER

REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"
WHOAMI = "/apis/authentication.k8s.io/v1/selfsubjectreviews"


def claims(token: str) -> dict[str, Any]:
    body = token.split(".")[1]
    return json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))


async def code_for(cluster, token: str, path: str = "/version/x") -> int:
    """What an otherwise unknown caller with the token gets."""
    async with cluster.user("") as nobody:
        return (await nobody.send("GET", path, token=token)).code


async def believed(cluster, token: str) -> bool:
    return await code_for(cluster, token, "/api") == 200


async def test_a_token_is_its_account(cluster):
    made = await cluster.account()
    token = await cluster.token()
    async with cluster.user("") as nobody:
        me = await nobody.send("POST", WHOAMI, {}, token=token)
    info = me["status"]["userInfo"]
    assert info["username"] == "system:serviceaccount:default:robot"
    assert info["uid"] == made["metadata"]["uid"]
    assert info["groups"] == [
        "system:serviceaccounts",
        "system:serviceaccounts:default",
        "system:authenticated",
    ]
    assert info["extra"]["authentication.kubernetes.io/credential-id"] == [
        f"JTI={claims(token)['jti']}"
    ]


async def test_a_request_for_a_token_is_answered_as_kubernetes_does(cluster):
    made = await cluster.account()
    reply = await cluster.admin.create(f"{ACCOUNTS}/robot/token", {"spec": {}})
    assert (reply["kind"], reply["apiVersion"]) == ("TokenRequest", "authentication.k8s.io/v1")
    assert reply["spec"] == {
        "audiences": [ISSUER],
        "expirationSeconds": 3600,
        "boundObjectRef": None,
    }
    found = claims(reply["status"]["token"])
    assert found["exp"] - found["iat"] == 3600
    assert (found["iss"], found["aud"]) == (ISSUER, [ISSUER])
    assert found["sub"] == "system:serviceaccount:default:robot"
    assert found["kubernetes.io"] == {
        "namespace": "default",
        "serviceaccount": {"name": "robot", "uid": made["metadata"]["uid"]},
    }


@pytest.mark.parametrize(
    ("body", "code", "text"),
    [
        (
            {"spec": {"expirationSeconds": 599}},
            422,
            (
                "spec.expirationSeconds: Invalid value: 599: may not specify a duration less than 10"
                " minutes"
            ),
        ),
        ({"spec": {"expirationSeconds": 2**32 + 1}}, 422, "larger than 2^32 seconds"),
        ({"spec": {"expirationSeconds": "soon"}}, 400, "expirationSeconds"),
        (
            {"spec": {"boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": "gone"}}},
            404,
            'pods "gone" not found',
        ),
        (
            {"spec": {"boundObjectRef": {"kind": "Widget", "apiVersion": "v1", "name": "w"}}},
            400,
            "cannot bind token to object of type",
        ),
    ],
)
async def test_a_token_that_cannot_be_is_refused(cluster, body, code, text):
    await cluster.account()
    reply = await cluster.admin.create(f"{ACCOUNTS}/robot/token", body)
    assert reply.code == code
    assert text in reply["message"]


async def test_a_token_takes_an_account_and_the_right_to_ask(cluster):
    assert (await cluster.admin.create(f"{ACCOUNTS}/none/token", {})).code == 404
    await cluster.account()
    assert (await cluster.admin.get(f"{ACCOUNTS}/robot/token")).code == 405
    async with cluster.user("x") as x:
        assert (await x.create(f"{ACCOUNTS}/robot/token", {})).code == 403


async def test_a_token_expires(cluster):
    await cluster.account()
    token = await cluster.token(expirationSeconds=600)
    cluster.clock.pass_by(590)
    assert await believed(cluster, token)
    cluster.clock.pass_by(11)
    assert await code_for(cluster, token, "/api") == 401


async def test_a_token_goes_with_its_account(cluster):
    await cluster.account()
    token = await cluster.token()
    assert await believed(cluster, token)
    await cluster.admin.delete(f"{ACCOUNTS}/robot")
    assert await code_for(cluster, token, "/api") == 401
    await cluster.account()
    assert await code_for(cluster, token, "/api") == 401, "another account of the same name"


async def test_a_token_goes_with_the_pod_that_it_is_bound_to(cluster):
    await cluster.account()
    made = await cluster.admin.create(PODS, pod("p", serviceAccountName="robot", nodeName="n"))
    assert made.code == 201, made
    token = await cluster.token(boundObjectRef={"kind": "Pod", "apiVersion": "v1", "name": "p"})
    bound = claims(token)["kubernetes.io"]
    assert bound["pod"] == {"name": "p", "uid": made["metadata"]["uid"]}
    assert bound["node"] == {"name": "n", "uid": ""}
    assert await believed(cluster, token)
    await cluster.admin.delete(f"{PODS}/p", gracePeriodSeconds="0")
    assert await code_for(cluster, token, "/api") == 401


async def test_a_pod_in_its_grace_period_is_believed_for_a_minute(cluster):
    await cluster.account()
    body = pod("p", serviceAccountName="robot", nodeName="n", terminationGracePeriodSeconds=600)
    await cluster.admin.create(PODS, body)
    token = await cluster.token(
        expirationSeconds=3600, boundObjectRef={"kind": "Pod", "apiVersion": "v1", "name": "p"}
    )
    gone = await cluster.admin.delete(f"{PODS}/p")
    assert gone["metadata"]["deletionTimestamp"]
    assert await believed(cluster, token)
    cluster.clock.pass_by(600 + 70)
    assert await code_for(cluster, token, "/api") == 401


async def test_a_token_is_bound_only_to_a_pod_of_its_account(cluster):
    await cluster.account()
    await cluster.admin.create(PODS, pod("p"))
    ref = {"kind": "Pod", "apiVersion": "v1", "name": "p"}
    reply = await cluster.admin.create(f"{ACCOUNTS}/robot/token", {"spec": {"boundObjectRef": ref}})
    assert (reply.code, "different serviceaccount name" in reply["message"]) == (400, True)


async def test_a_token_for_another_audience_is_nothing_to_the_api_server(cluster):
    await cluster.account()
    token = await cluster.token(audiences=["elasti-operator"])
    assert await code_for(cluster, token, "/api") == 401


@pytest.mark.parametrize("token", ["rubbish", "a.b.c", "..", "x" * 5000])
async def test_an_unknown_token_is_unauthorized_not_anonymous(cluster, token):
    async with cluster.user("") as nobody:
        reply = await nobody.send("GET", "/version", token=token)
    assert (reply.code, reply["reason"]) == (401, "Unauthorized")


async def test_a_forged_token_is_refused(cluster):
    await cluster.account()
    token = await cluster.token()
    head, body, signature = token.split(".")
    other = SigningKey.create().sign(claims(token))
    richer = {**claims(token), "sub": "system:serviceaccount:kube-system:root"}
    packed = base64.urlsafe_b64encode(json.dumps(richer).encode()).rstrip(b"=").decode()
    none = base64.urlsafe_b64encode(b'{"alg":"none"}').rstrip(b"=").decode()
    for forged in (
        other,
        f"{head}.{packed}.{signature}",
        f"{none}.{body}.",
        f"{head}.{body}.{'A' * 86}",
        f"{head}.{body}.",
    ):
        assert await code_for(cluster, forged, "/api") == 401


async def test_tokens_survive_a_restart(tmp_path):
    keys = tmp_path / "keys"
    assert SigningKey.kept_in(keys).id == SigningKey.kept_in(keys).id
    assert (keys / "sa.key").stat().st_mode & 0o077 == 0
    token = SigningKey.kept_in(keys).sign({"a": 1})
    assert SigningKey.kept_in(keys).claims(token) == {"a": 1}
    with pytest.raises(TokenError):
        SigningKey.create().claims(token)
    async with guarded():
        pass


# Reviews of tokens


async def test_a_token_review_has_the_user_and_the_audiences(cluster):
    await cluster.account()
    token = await cluster.token(audiences=["elasti-operator", "other"])

    async def review(*audiences: str) -> dict[str, Any]:
        spec = {"token": token, **({"audiences": list(audiences)} if audiences else {})}
        return (await cluster.admin.create(REVIEWS, {"spec": spec}))["status"]

    good = await review("elasti-operator", "third")
    assert (good["authenticated"], good["audiences"]) == (True, ["elasti-operator"])
    assert good["user"]["username"] == "system:serviceaccount:default:robot"
    for wrong in (await review(), await review("third")):
        assert "authenticated" not in wrong
        assert "is invalid for the target audiences" in wrong["error"]


async def test_a_review_of_rubbish_is_an_answer_too(cluster):
    reply = await cluster.admin.create(REVIEWS, {"spec": {"token": "rubbish"}})
    assert (reply.code, reply["status"]) == (
        201,
        {"user": {}, "error": "invalid bearer token"},
    )
    assert (await cluster.admin.create(REVIEWS, {"spec": {}})).code == 400


# The issuer's documents


async def test_anybody_trusted_can_check_tokens_with_the_published_keys(cluster):
    def number(text: str) -> int:
        return int.from_bytes(base64.urlsafe_b64decode(text + "=="), "big")

    await cluster.account()
    token = await cluster.token()
    async with cluster.user("") as nobody:
        assert (await nobody.get("/openid/v1/jwks")).code == 403
        discovery = await nobody.send("GET", "/.well-known/openid-configuration", token=token)
        keys = await nobody.send("GET", "/openid/v1/jwks", token=token)
    assert discovery["issuer"] == claims(token)["iss"]
    assert discovery["jwks_uri"].endswith("/openid/v1/jwks")
    (key,) = keys["keys"]
    public = ec.EllipticCurvePublicNumbers(
        number(key["x"]), number(key["y"]), ec.SECP256R1()
    ).public_key()
    signed, _, signature = token.rpartition(".")
    raw = base64.urlsafe_b64decode(signature + "==")
    parts = (int.from_bytes(raw[:32], "big"), int.from_bytes(raw[32:], "big"))
    public.verify(encode_dss_signature(*parts), signed.encode(), ec.ECDSA(hashes.SHA256()))


# What admission does for pods


async def test_a_pod_gets_its_token_mounted(cluster):
    await cluster.account()
    made = await cluster.admin.create(PODS, pod("p", serviceAccountName="robot"))
    spec = made["spec"]
    (volume,) = spec["volumes"]
    assert volume["name"].startswith("kube-api-access-")
    sources = volume["projected"]["sources"]
    assert [list(source) for source in sources] == [
        ["serviceAccountToken"],
        ["configMap"],
        ["downwardAPI"],
    ]
    (mount,) = spec["containers"][0]["volumeMounts"]
    assert mount == {
        "name": volume["name"],
        "readOnly": True,
        "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount",
    }


async def test_a_pod_of_an_unknown_account_is_refused(cluster):
    reply = await cluster.admin.create(PODS, pod("p", serviceAccountName="none"))
    assert reply.code == 403
    assert reply["message"] == (
        'pods "p" is forbidden: error looking up service account default/none: serviceaccount'
        ' "none" not found'
    )


async def test_a_token_is_mounted_unless_pod_or_account_say_no(cluster):
    await cluster.admin.create(
        ACCOUNTS, {"metadata": {"name": "shy"}, "automountServiceAccountToken": False}
    )
    asked: dict[str, dict[str, Any]] = {
        "a": {"serviceAccountName": "shy"},
        "b": {"serviceAccountName": "shy", "automountServiceAccountToken": True},
        "c": {"automountServiceAccountToken": False},
    }
    mounted = {}
    for name, spec in asked.items():
        made = await cluster.admin.create(PODS, pod(name, **spec))
        mounted[name] = "volumes" in made["spec"]
    assert mounted == {"a": False, "b": True, "c": False}
