"""The way to a token: `serviceaccounts/token`."""

from __future__ import annotations

import msgspec

from devkube.apiserver import calls, status
from devkube.apiserver.calls import ApiResponse, Call
from devkube.apiserver.storage import ObjectStore
from devkube.apiserver.validation.names import Stamps
from devkube.auth.service_accounts import ACCOUNTS, NODES, PODS, ServiceAccountTokens, TokenBinding
from kubeloop.objects.meta import JsonObject

_GROUP = "authentication.k8s.io"
_SHORTEST = 10 * 60
_LONGEST = 1 << 32
_DEFAULT = 60 * 60


class ObjectRef(msgspec.Struct, rename="camel"):
    """What a token is to be bound to."""

    kind: str = ""
    api_version: str = ""
    name: str = ""
    uid: str = ""


class TokenSpec(msgspec.Struct, rename="camel"):
    """What is wanted."""

    audiences: list[str] | None = None
    expiration_seconds: int | None = None
    bound_object_ref: ObjectRef | None = None


class TokenRequest(msgspec.Struct):
    """The body."""

    spec: TokenSpec = msgspec.field(default_factory=TokenSpec)


class TokenRequests:
    """Answers requests for tokens."""

    def __init__(self, *, store: ObjectStore, stamps: Stamps, tokens: ServiceAccountTokens) -> None:
        self._store = store
        self._stamps = stamps
        self._tokens = tokens

    def answer(self, call: Call) -> ApiResponse:
        """Issue a token for the account that the path names."""
        if call.attributes.verb != "create":
            raise status.method_not_allowed()
        request = _read(call)
        account = self._existing(ACCOUNTS, call.key, "serviceaccounts", call.name)
        uid = account["metadata"]["uid"]
        _check(call, request.spec.expiration_seconds)
        spec = request.spec
        seconds = _DEFAULT if spec.expiration_seconds is None else spec.expiration_seconds
        audiences = spec.audiences or list(self._tokens.audiences)
        bound = self._bound(call, spec.bound_object_ref)
        now = self._stamps.now()
        token = self._tokens.issue(
            namespace=call.namespace,
            account=call.name,
            uid=uid,
            audiences=audiences,
            seconds=seconds,
            bound=bound,
        )
        shown: JsonObject = {
            "kind": "TokenRequest",
            "apiVersion": f"{_GROUP}/v1",
            "metadata": {
                "name": call.name,
                "namespace": call.namespace,
                "uid": uid,
                "creationTimestamp": now,
            },
            "spec": {
                "audiences": audiences,
                "expirationSeconds": seconds,
                "boundObjectRef": _shown(spec.bound_object_ref),
            },
            "status": {"token": token, "expirationTimestamp": self._stamps.now(ahead=seconds)},
        }
        return ApiResponse(body=msgspec.json.encode(shown), code=201)

    def _existing(self, collection: str, key: str, resource: str, name: str) -> JsonObject:
        record = self._store.collection(collection).get(key)
        if record is None:
            raise status.not_found("", resource, name)
        return record.decode()

    def _bound(self, call: Call, ref: ObjectRef | None) -> TokenBinding:
        if ref is None:
            return TokenBinding()
        match ref.api_version, ref.kind:
            case "v1", "Pod":
                return self._to_pod(call, ref)
            case _:
                shown = f"{ref.api_version}, Kind={ref.kind}"
                raise status.bad_request(f"cannot bind token to object of type {shown}")

    def _to_pod(self, call: Call, ref: ObjectRef) -> TokenBinding:
        pod = self._existing(PODS, f"{call.namespace}/{ref.name}", "pods", ref.name)
        spec = pod.get("spec") or {}
        if spec.get("serviceAccountName", "default") != call.name:
            raise status.bad_request(
                f'cannot bind token for serviceaccount "{call.name}" to pod running with different'
                " serviceaccount name."
            )
        node = spec.get("nodeName", "")
        record = self._store.collection(NODES).get(node) if node else None
        return TokenBinding(
            name=ref.name,
            uid=_same(ref, pod),
            node=node,
            node_uid=record.decode()["metadata"]["uid"] if record is not None else "",
        )


def _read(call: Call) -> TokenRequest:
    try:
        return msgspec.convert(calls.read_body(call), TokenRequest)
    except msgspec.ValidationError as error:
        raise status.bad_request(f"TokenRequest cannot be read: {error}") from error


def _check(call: Call, seconds: int | None) -> None:
    text = ""
    if seconds is not None and seconds < _SHORTEST:
        text = "may not specify a duration less than 10 minutes"
    elif seconds is not None and seconds > _LONGEST:
        text = "may not specify a duration larger than 2^32 seconds"
    if text:
        error = status.invalid("spec.expirationSeconds", seconds, text)
        raise status.invalid_object(_GROUP, "TokenRequest", call.name, [error])


def _same(ref: ObjectRef, obj: JsonObject) -> str:
    uid = str(obj["metadata"]["uid"])
    if ref.uid not in ("", uid):
        why = (
            f"the UID in the bound object reference ({ref.uid}) does not match the UID in record."
            " The object might have been deleted and then recreated"
        )
        raise status.conflict("", ref.kind, ref.name, why)
    return uid


def _shown(ref: ObjectRef | None) -> JsonObject | None:
    return None if ref is None else {k: v for k, v in msgspec.to_builtins(ref).items() if v}
