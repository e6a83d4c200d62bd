"""Reviews: questions that look like objects and are never stored.

Access reviews ask the gate what it would say to a request; token reviews ask who a token is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from elasti.devcluster.apiserver import calls, status
from elasti.devcluster.apiserver.answers import Answer
from elasti.devcluster.apiserver.auth import ANONYMOUS, AUTHENTICATED, Credentials, User
from elasti.devcluster.apiserver.request import Attributes

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from elasti.devcluster.apiserver.auth import Gate
    from elasti.devcluster.apiserver.calls import Call
    from kubeloop.objects.meta import JsonObject


class Reviews:
    """Answers the create-only resources of authentication and authorisation."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._kinds: Mapping[str, Callable[[Call, JsonObject], Awaitable[JsonObject]]] = {
            "SelfSubjectAccessReview": self._own_access,
            "SubjectAccessReview": self._access,
            "LocalSubjectAccessReview": self._access,
            "SelfSubjectRulesReview": self._own_rules,
            "SelfSubjectReview": self._self,
            "TokenReview": self._token,
        }

    def covers(self, call: Call) -> bool:
        """Whether the call's resource is a review."""
        return call.resource.kind in self._kinds and not call.resource.custom

    async def answer(self, call: Call) -> Answer:
        """Answer a review with itself, its status filled in."""
        if call.attributes.verb != "create" or call.name:
            raise status.method_not_allowed()
        review = calls.read_body(call)
        review["apiVersion"] = call.resource.api_version(call.served)
        review["kind"] = call.resource.kind
        review.setdefault("metadata", {})
        review["status"] = await self._kinds[call.resource.kind](call, review)
        return Answer(body=msgspec.json.encode(review), code=201)

    async def _own_access(self, call: Call, review: JsonObject) -> JsonObject:
        return await self._judge(call.user, _spec(review))

    async def _access(self, call: Call, review: JsonObject) -> JsonObject:
        spec = _spec(review)
        groups = [group for group in _list(spec.get("groups")) if isinstance(group, str)]
        user = User(name=str(spec.get("user", "")), groups=tuple(groups))
        return await self._judge(user, spec)

    async def _judge(self, user: User, spec: JsonObject) -> JsonObject:
        allowed = await self._gate.allows(user, _attributes(spec))
        return {"allowed": True} if allowed else {"allowed": False, "reason": "no rule allows it"}

    async def _own_rules(self, call: Call, review: JsonObject) -> JsonObject:
        everything = {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}
        paths = {"verbs": ["*"], "nonResourceURLs": ["*"]}
        known = call.user.is_admin
        return {
            "resourceRules": [everything] if known else [],
            "nonResourceRules": [paths] if known else [],
            "incomplete": not known,
        }

    async def _self(self, call: Call, review: JsonObject) -> JsonObject:
        return {"userInfo": _user_info(call.user)}

    async def _token(self, call: Call, review: JsonObject) -> JsonObject:
        token = _spec(review).get("token")
        if not isinstance(token, str) or not token:
            return {"user": {}, "error": "no token was given"}
        try:
            user = await self._gate.identify(Credentials(token=token))
        except status.StatusError as error:
            return {"user": {}, "error": str(error)}
        if user is ANONYMOUS or AUTHENTICATED not in user.groups:
            return {"user": {}, "error": "the token is not known"}
        return {
            "authenticated": True,
            "user": _user_info(user),
            "audiences": _list(_spec(review).get("audiences")),
        }


def _spec(review: JsonObject) -> JsonObject:
    spec = review.get("spec")
    return spec if isinstance(spec, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _user_info(user: User) -> JsonObject:
    info: JsonObject = {"username": user.name, "groups": list(user.groups)}
    if user.uid:
        info["uid"] = user.uid
    if user.extra:
        info["extra"] = {name: list(values) for name, values in user.extra.items()}
    return info


def _attributes(spec: JsonObject) -> Attributes:
    about = spec.get("resourceAttributes")
    if isinstance(about, dict):
        text = {name: value for name, value in about.items() if isinstance(value, str)}
        return Attributes(
            verb=text.get("verb", ""),
            path="",
            group=text.get("group", ""),
            version=text.get("version", ""),
            resource=text.get("resource", ""),
            subresource=text.get("subresource", ""),
            namespace=text.get("namespace", ""),
            name=text.get("name", ""),
        )
    plain = spec.get("nonResourceAttributes")
    if not isinstance(plain, dict):
        raise status.bad_request(
            "spec: exactly one of nonResourceAttributes or resourceAttributes must be specified"
        )
    return Attributes(verb=str(plain.get("verb", "")), path=str(plain.get("path", "")))
