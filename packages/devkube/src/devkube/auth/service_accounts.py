"""ServiceAccount tokens: issued, and valid while what they are bound to exists.

The issuer's public documents let others check tokens without asking the API server.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from aiohttp import web

from devkube.apiserver import status
from devkube.apiserver.auth import AUTHENTICATED, UserInfo
from devkube.apiserver.calls import ApiResponse, Attributes
from devkube.apiserver.core import NonResourcePaths
from devkube.apiserver.registry.admission import AdmissionOperation, AdmissionReview
from devkube.apiserver.storage import ObjectStore
from devkube.apiserver.validation.names import Stamps
from devkube.auth.gate import account_groups
from devkube.auth.jwt import SigningKey, TokenError, peek
from devkube.auth.policy import ACCOUNT_PREFIX
from kubeloop.objects.meta import JsonObject

ISSUER = "https://kubernetes.default.svc.cluster.local"
ACCOUNTS, PODS, NODES = "/serviceaccounts", "/pods", "/nodes"
_PRIVATE = "kubernetes.io"
_EXTRA = "authentication.kubernetes.io"
# How long after its deletion began an object still counts, as in Kubernetes.
_LEEWAY = dt.timedelta(seconds=60)
KEYS = "/openid/v1/jwks"
CONFIGURATION = "/.well-known/openid-configuration"
MOUNT_PATH = "/var/run/secrets/kubernetes.io/serviceaccount"
_PREFIX = "kube-api-access-"
_LIFETIME = 3607


class _Meta(msgspec.Struct, rename="camel"):
    uid: str = ""
    deletion_timestamp: dt.datetime | None = None


class BoundObject(msgspec.Struct):
    """As much of a stored object as a token is bound to."""

    metadata: _Meta


_read = msgspec.json.Decoder(BoundObject).decode


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TokenBinding:
    """The pod that a token is bound to beside its account, and its node; empty for none."""

    name: str = ""
    uid: str = ""
    node: str = ""
    node_uid: str = ""


@dataclasses.dataclass(eq=False, kw_only=True)
class ServiceAccountTokens:
    """Issues tokens and answers whose they are."""

    store: ObjectStore
    stamps: Stamps
    key: SigningKey
    issuer = ISSUER
    audiences = (ISSUER,)

    def issue(
        self,
        *,
        namespace: str,
        account: str,
        uid: str,
        audiences: Sequence[str],
        seconds: int,
        bound: TokenBinding,
    ) -> str:
        """Return a new token."""
        now = int(self.stamps.moment().timestamp())
        private: JsonObject = {
            "namespace": namespace,
            "serviceaccount": {"name": account, "uid": uid},
        }
        if bound.name:
            private["pod"] = {"name": bound.name, "uid": bound.uid}
        if bound.node:
            private["node"] = {"name": bound.node, "uid": bound.node_uid}
        return self.key.sign(
            {
                "aud": list(audiences),
                "exp": now + seconds,
                "iat": now,
                "iss": self.issuer,
                "jti": self.stamps.uid(),
                _PRIVATE: private,
                "nbf": now,
                "sub": f"{ACCOUNT_PREFIX}{namespace}:{account}",
            }
        )

    def is_ours(self, token: str) -> bool:
        """Whether a token claims to come from here; nothing is checked yet."""
        claims = peek(token)
        return isinstance(claims, dict) and claims.get("iss") == self.issuer

    def verify(self, token: str, audiences: Sequence[str]) -> tuple[UserInfo, list[str]]:
        """Return whose token it is, and those of the audiences that it is for; raises TokenError."""
        claims = self.key.claims(token)
        now = self.stamps.moment().timestamp()
        if now >= claims["exp"]:
            raise TokenError("service account token has expired")
        if now + _LEEWAY.total_seconds() < claims["nbf"]:
            raise TokenError("service account token is not valid yet")
        meant = [audience for audience in audiences if audience in claims["aud"]]
        if not meant:
            raise TokenError(
                f"token audiences {_go(claims['aud'])} is invalid for the target audiences"
                f" {_go(audiences)}"
            )
        self._check_objects(claims[_PRIVATE])
        return _user(claims), meant

    def _check_objects(self, private: JsonObject) -> None:
        namespace, account = private["namespace"], private["serviceaccount"]
        self._check_object(ACCOUNTS, f"{namespace}/{account['name']}", account["uid"])
        if pod := private.get("pod"):
            self._check_object(PODS, f"{namespace}/{pod['name']}", pod["uid"])

    def _check_object(self, collection: str, key: str, uid: str) -> None:
        record = self.store.collection(collection).get(key)
        if record is None:
            raise TokenError(f"service account token has been invalidated: {collection[1:]} {key}")
        metadata = _read(record.data).metadata
        if metadata.uid != uid:
            raise TokenError(f"{collection[1:]} {key} is not the one that the token was made for")
        gone = metadata.deletion_timestamp
        if gone is not None and gone < self.stamps.moment() - _LEEWAY:
            raise TokenError(f"{collection[1:]} {key} has been deleted")


def _user(claims: JsonObject) -> UserInfo:
    private = claims[_PRIVATE]
    extra: dict[str, tuple[str, ...]] = {f"{_EXTRA}/credential-id": (f"JTI={claims['jti']}",)}
    for kind in ("node", "pod"):
        if bound := private.get(kind):
            extra[f"{_EXTRA}/{kind}-name"] = (bound["name"],)
            extra[f"{_EXTRA}/{kind}-uid"] = (bound["uid"],)
    return UserInfo(
        name=claims["sub"],
        uid=private["serviceaccount"]["uid"],
        groups=(*account_groups(private["namespace"]), AUTHENTICATED),
        extra=extra,
    )


def _go(values: Sequence[Any]) -> str:
    return "[" + " ".join(f'"{value}"' for value in values) + "]"


def serve_issuer(tokens: ServiceAccountTokens, paths: NonResourcePaths) -> None:
    """Answer the two paths of OpenID discovery."""

    async def keys(
        _request: web.BaseRequest, attributes: Attributes, _user: UserInfo
    ) -> ApiResponse:
        _read_only(attributes)
        body = msgspec.json.encode(tokens.key.public_keys())
        return ApiResponse(body=body, content_type="application/jwk-set+json")

    async def configuration(
        request: web.BaseRequest, attributes: Attributes, _user: UserInfo
    ) -> ApiResponse:
        _read_only(attributes)
        document = {
            "issuer": tokens.issuer,
            "jwks_uri": f"https://{request.host}{KEYS}",
            "response_types_supported": ["id_token"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": ["ES256"],
        }
        return ApiResponse(body=msgspec.json.encode(document))

    paths.serve(KEYS, keys)
    paths.serve(CONFIGURATION, configuration)


def _read_only(attributes: Attributes) -> None:
    if attributes.verb != "get":
        raise status.method_not_allowed()


class ServiceAccountAdmission:
    """The admission plugin: what a new pod gets of its account.

    The account must exist, and its token is mounted as in Kubernetes: a projected volume
    `kube-api-access-xxxxx` with a token bound to the pod, the cluster's CA from the ConfigMap
    `kube-root-ca.crt`, and the namespace.
    """

    def __init__(self, *, store: ObjectStore, stamps: Stamps) -> None:
        self._store = store
        self._stamps = stamps

    def admit(self, review: AdmissionReview) -> None:
        """Complete a new pod."""
        if (
            review.operation is not AdmissionOperation.CREATE
            or review.resource.stored_in != PODS
            or review.subresource
        ):
            return
        spec = review.obj.get("spec")
        if not isinstance(spec, dict):
            return
        name = spec.get("serviceAccountName") or spec.get("serviceAccount") or "default"
        spec["serviceAccountName"] = name
        account = self._account(review, name)
        if _wants_token(spec, account):
            self._mount(spec)

    def _account(self, review: AdmissionReview, name: str) -> JsonObject:
        metadata = review.obj["metadata"]
        key = f"{metadata['namespace']}/{name}"
        record = self._store.collection(ACCOUNTS).get(key)
        if record is not None:
            return record.decode()
        if name == "default":
            # It is made with its namespace, a moment later; Kubernetes waits for it as well.
            return {}
        why = f'error looking up service account {key}: serviceaccount "{name}" not found'
        shown = metadata.get("name") or metadata.get("generateName", "")
        raise status.forbidden_object("", "pods", shown, why)

    def _mount(self, spec: JsonObject) -> None:
        lacking = [
            container
            for container in _containers(spec)
            if not any(
                mount.get("mountPath") == MOUNT_PATH
                for mount in container.get("volumeMounts") or ()
            )
        ]
        if not lacking:
            return
        volume = self._volume(spec)
        for container in lacking:
            mounts = container.get("volumeMounts") or []
            mount = {"name": volume, "readOnly": True, "mountPath": MOUNT_PATH}
            container["volumeMounts"] = [*mounts, mount]

    def _volume(self, spec: JsonObject) -> str:
        volumes = spec.get("volumes") or []
        for volume in volumes:
            if volume.get("name", "").startswith(_PREFIX):
                return str(volume["name"])
        name = self._stamps.name(_PREFIX)
        spec["volumes"] = [*volumes, {"name": name, "projected": _projection()}]
        return name


def _wants_token(spec: JsonObject, account: JsonObject) -> bool:
    own = spec.get("automountServiceAccountToken")
    if own is not None:
        return bool(own)
    return account.get("automountServiceAccountToken") is not False


def _containers(spec: JsonObject) -> Iterator[dict[str, Any]]:
    for field in ("initContainers", "containers"):
        for container in spec.get(field) or ():
            if isinstance(container, dict):
                yield container


def _projection() -> JsonObject:
    namespace = {"apiVersion": "v1", "fieldPath": "metadata.namespace"}
    return {
        "defaultMode": 0o644,
        "sources": [
            {"serviceAccountToken": {"expirationSeconds": _LIFETIME, "path": "token"}},
            {
                "configMap": {
                    "name": "kube-root-ca.crt",
                    "items": [{"key": "ca.crt", "path": "ca.crt"}],
                }
            },
            {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": namespace}]}},
        ],
    }
