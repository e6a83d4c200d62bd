"""Reviews answered from RBAC and from ServiceAccount tokens: `kubectl auth can-i` and `whoami`.

And the way to a token: `serviceaccounts/token`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

import msgspec

from devkube.apiserver import calls, status
from devkube.apiserver.auth import UserInfo
from devkube.apiserver.calls import ApiResponse, Attributes, Call
from devkube.apiserver.storage import ObjectStore
from devkube.apiserver.validation.names import Stamps
from devkube.auth.gate import RbacGate
from devkube.auth.jwt import TokenError
from devkube.auth.service_accounts import ACCOUNTS, NODES, PODS, ServiceAccountTokens, TokenBinding
from kubeloop.objects.meta import JsonObject

_GROUP = "authentication.k8s.io"
_SHORTEST = 10 * 60
_LONGEST = 1 << 32
_DEFAULT = 60 * 60


class ResourceAttributes(msgspec.Struct):
    """A request about objects, as a review describes it."""

    namespace: str = ""
    verb: str = ""
    group: str = ""
    version: str = ""
    resource: str = ""
    subresource: str = ""
    name: str = ""


class NonResourceAttributes(msgspec.Struct):
    """A request about a path."""

    path: str = ""
    verb: str = ""


class ReviewSpec(msgspec.Struct, rename="camel"):
    """The specs of all reviews in one; each kind looks at its own part."""

    resource_attributes: ResourceAttributes | None = None
    non_resource_attributes: NonResourceAttributes | None = None
    user: str = ""
    uid: str = ""
    groups: list[str] | None = None
    extra: dict[str, list[str]] | None = None
    namespace: str = ""
    token: str = ""
    audiences: list[str] | None = None

    def attributes(self) -> Attributes:
        """Return the request that an access review is about."""
        about, path = self.resource_attributes, self.non_resource_attributes
        if about is not None:
            return Attributes(path="", **msgspec.structs.asdict(about))
        assert path is not None
        return Attributes(verb=path.verb, path=path.path)


class RbacReviews:
    """Answers the create-only resources of authentication and authorisation."""

    def __init__(self, gate: RbacGate, tokens: ServiceAccountTokens) -> None:
        self._gate = gate
        self._tokens = tokens
        self._answers: Mapping[str, Callable[[Call, ReviewSpec], Awaitable[JsonObject]]] = {
            "SelfSubjectAccessReview": self._own,
            "SubjectAccessReview": self._others,
            "SelfSubjectRulesReview": self._rules,
            "SelfSubjectReview": self._whoami,
            "TokenReview": self._token_of,
        }

    @property
    def kinds(self) -> Sequence[str]:
        """The kinds that are reviews."""
        return tuple(self._answers)

    async def answer(self, call: Call) -> ApiResponse:
        """Answer a review with itself, its status filled in."""
        if call.attributes.verb != "create" or call.name:
            raise status.method_not_allowed()
        review = calls.read_body(call)
        spec = calls.convert(review.get("spec") or {}, ReviewSpec, "spec")
        found = await self._answers[call.resource.kind](call, spec)
        shown = {
            "kind": call.resource.kind,
            "apiVersion": call.resource.api_version(call.served),
            "metadata": {**(review.get("metadata") or {}), "creationTimestamp": None},
            "spec": review.get("spec") or {},
            "status": found,
        }
        if call.resource.kind == "SelfSubjectReview":
            del shown["spec"]
        return ApiResponse(body=msgspec.json.encode(shown), code=201)

    async def _own(self, call: Call, spec: ReviewSpec) -> JsonObject:
        _check(call, spec, subject=False)
        return await self._decide(call.user, spec.attributes())

    async def _others(self, call: Call, spec: ReviewSpec) -> JsonObject:
        _check(call, spec, subject=True)
        return await self._decide(_subject(spec), spec.attributes())

    async def _decide(self, user: UserInfo, attributes: Attributes) -> JsonObject:
        rbac = self._gate.rbac
        if await self._gate.allows(user, attributes):
            reason = rbac.decide(user, attributes) or ""
            return {"allowed": True, "reason": reason} if reason else {"allowed": True}
        problems = rbac.problems(user, attributes.namespace)
        return {"allowed": False, "reason": problems} if problems else {"allowed": False}

    async def _rules(self, call: Call, spec: ReviewSpec) -> JsonObject:
        if not spec.namespace:
            raise status.bad_request("no namespace on request")
        rules = self._gate.rbac.policy.rules_for(call.user, spec.namespace)
        shown = [msgspec.to_builtins(rule) for rule in rules]
        problems = self._gate.rbac.problems(call.user, spec.namespace)
        found: JsonObject = {
            "resourceRules": [rule for rule in shown if "resources" in rule],
            "nonResourceRules": [
                {"verbs": rule["verbs"], "nonResourceURLs": rule["nonResourceURLs"]}
                for rule in shown
                if "nonResourceURLs" in rule
            ],
            "incomplete": False,
        }
        return {**found, "evaluationError": problems} if problems else found

    async def _whoami(self, call: Call, spec: ReviewSpec) -> JsonObject:
        return {"userInfo": _info(call.user)}

    async def _token_of(self, call: Call, spec: ReviewSpec) -> JsonObject:
        if not spec.token:
            raise status.bad_request("token is required for TokenReview in authentication")
        wanted = spec.audiences or list(self._tokens.audiences)
        if not self._tokens.is_ours(spec.token):
            return {"user": {}, "error": "invalid bearer token"}
        try:
            user, audiences = self._tokens.verify(spec.token, wanted)
        except TokenError as error:
            return {"user": {}, "error": f"[invalid bearer token, {error}]"}
        return {"authenticated": True, "user": _info(user), "audiences": audiences}


def _check(call: Call, spec: ReviewSpec, *, subject: bool) -> None:
    errors = []
    about, path = spec.resource_attributes, spec.non_resource_attributes
    if (about is None) is (path is None):
        text = "exactly one of nonResourceAttributes or resourceAttributes must be specified"
        errors.append(status.invalid("spec.resourceAttributes", None, text))
    if subject and not spec.user and not spec.groups:
        text = "at least one of user or group must be specified"
        errors.append(status.invalid("spec.user", "", text))
    if errors:
        raise call.resource.invalid("", errors)


def _subject(spec: ReviewSpec) -> UserInfo:
    extra = {key: tuple(values) for key, values in (spec.extra or {}).items()}
    return UserInfo(name=spec.user, uid=spec.uid, groups=tuple(spec.groups or ()), extra=extra)


def _info(user: UserInfo) -> JsonObject:
    info: JsonObject = {"username": user.name}
    if user.uid:
        info["uid"] = user.uid
    info["groups"] = list(user.groups)
    if user.extra:
        info["extra"] = {name: list(values) for name, values in user.extra.items()}
    return info


class ObjectRef(msgspec.Struct, rename="camel"):
    """The object that a token is bound to."""

    kind: str = ""
    api_version: str = ""
    name: str = ""
    uid: str = ""


class TokenSpec(msgspec.Struct, rename="camel"):
    """The requested token."""

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
        unreadable = "TokenRequest cannot be read"
        spec = calls.convert(calls.read_body(call), TokenRequest, unreadable).spec
        account = self._existing(ACCOUNTS, call.key, "serviceaccounts", call.name)
        uid = account["metadata"]["uid"]
        _check_lifetime(call, spec.expiration_seconds)
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
        if (ref.api_version, ref.kind) != ("v1", "Pod"):
            shown = f"{ref.api_version}, Kind={ref.kind}"
            raise status.bad_request(f"cannot bind token to object of type {shown}")
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


def _check_lifetime(call: Call, seconds: int | None) -> None:
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
