"""Subresources that are more than a part of an object, and reviews.

Scale shows the replicas of any workload under one shape. Bindings put pods on nodes, evictions delete
them within disruption budgets, finalize ends a namespace. Reviews are questions that look like objects
and are never stored: access reviews ask the gate what it would say to a request, token reviews ask for
the user of a token.
"""

from __future__ import annotations

import copy
import dataclasses
from typing import TYPE_CHECKING, Any

import msgspec

from devkube.apiserver import calls, status
from devkube.apiserver.auth import ANONYMOUS, AUTHENTICATED, RequestCredentials, UserInfo
from devkube.apiserver.calls import ApiResponse, Attributes
from devkube.apiserver.patch import patching
from devkube.apiserver.registry.resources import dig
from devkube.apiserver.registry.verbs import Deleter, DeletionRequest
from devkube.apiserver.status import invalid
from devkube.apiserver.tables.cells import selector as show_selector
from devkube.apiserver.validation.workloads import selects

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping

    from devkube.apiserver.auth import Gate
    from devkube.apiserver.calls import Call
    from devkube.apiserver.registry.resources import ScalePaths
    from devkube.apiserver.registry.writer import ObjectWriter
    from devkube.apiserver.storage import StoredObject
    from kubeloop.objects.meta import JsonObject


_APPLIES = (patching.APPLY, patching.APPLY_JSON)


class ScaleSubresource:
    """Answers `/scale`."""

    def __init__(self, writer: ObjectWriter) -> None:
        self._writer = writer

    def answer(self, call: Call) -> ApiResponse:
        """Show or change the replicas."""
        record = self._writer.existing(call)
        paths = call.served.scale
        if paths is None:
            raise status.no_such_path()
        obj = call.served.load(record.decode())
        match call.attributes.verb:
            case "get":
                return _answer(call, obj, paths)
            case "update":
                wanted = calls.read_body(call)
            case "patch":
                wanted = self._patched(call, _shown(call, obj, paths))
            case _:
                raise status.method_not_allowed()
        return self._change(call, record, wanted, paths)

    def _patched(self, call: Call, shown: JsonObject) -> JsonObject:
        if call.content_type in _APPLIES:
            return {**shown, **calls.read_yaml(call.body)}
        return patching.changed(call, shown)

    def _change(
        self, call: Call, record: StoredObject, wanted: JsonObject, paths: ScalePaths
    ) -> ApiResponse:
        replicas = _replicas(call, wanted)
        obj = call.served.load(record.decode())
        new = copy.deepcopy(obj)
        metadata = wanted.get("metadata")
        version = metadata.get("resourceVersion") if isinstance(metadata, dict) else None
        uid = metadata.get("uid") if isinstance(metadata, dict) else None
        if uid and uid != obj["metadata"]["uid"]:
            raise call.resource.conflict(
                call.name, f"Precondition failed: UID in precondition: {uid}"
            )
        new["metadata"]["resourceVersion"] = version or obj["metadata"]["resourceVersion"]
        _plant(new, paths.spec.split("."), replicas)
        written = self._writer.update(call, new, record)
        return _answer(call, written.obj, paths)


def _replicas(call: Call, wanted: JsonObject) -> int:
    spec = wanted.get("spec")
    value = spec.get("replicas", 0) if isinstance(spec, dict) else 0
    if isinstance(value, bool) or not isinstance(value, int):
        raise status.bad_request(
            'Scale in version "v1" cannot be handled as a Scale: json: cannot unmarshal spec.replicas'
            " into Go struct field ScaleSpec.spec.replicas of type int32"
        )
    if value < 0:
        error = invalid("spec.replicas", value, "must be greater than or equal to 0")
        raise status.invalid_object("autoscaling", "Scale", call.name, [error])
    return value


def _plant(obj: JsonObject, path: list[str], value: Any) -> None:
    for key in path[:-1]:
        below = obj.setdefault(key, {})
        if not isinstance(below, dict):
            below = obj[key] = {}
        obj = below
    obj[path[-1]] = value


def _shown(call: Call, obj: JsonObject, paths: ScalePaths) -> JsonObject:
    metadata = obj["metadata"]
    kept = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    state: JsonObject = {"replicas": _number(dig(obj, paths.status.split(".")))}
    if paths.selector:
        found = dig(obj, paths.selector.split("."))
        text = found if isinstance(found, str) else _selector_text(found)
        if text:
            state["selector"] = text
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {name: metadata[name] for name in kept if name in metadata},
        "spec": {"replicas": _number(dig(obj, paths.spec.split(".")))},
        "status": state,
    }


def _selector_text(found: Any) -> str:
    if not isinstance(found, dict) or not found:
        return ""
    if "matchLabels" not in found and "matchExpressions" not in found:
        found = {"matchLabels": found}  # a ReplicationController's selector is a plain map
    return show_selector(found)


def _number(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _answer(call: Call, obj: JsonObject, paths: ScalePaths) -> ApiResponse:
    return ApiResponse(body=msgspec.json.encode(_shown(call, obj, paths)), warnings=call.warnings)


_DONE = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}


class PodBinding:
    """Answers `pods/binding`."""

    def __init__(self, writer: ObjectWriter) -> None:
        self._writer = writer

    def answer(self, call: Call) -> ApiResponse:
        """Put a pod on a node, once."""
        if call.attributes.verb != "create":
            raise status.method_not_allowed()
        record = self._writer.existing(call)
        body = calls.read_body(call)
        metadata = body.get("metadata")
        if not isinstance(metadata, dict) or metadata.get("name") != call.name:
            raise status.bad_request("name in URL does not match name in Binding object")
        target = body.get("target")
        node = target.get("name") if isinstance(target, dict) else None
        if not isinstance(node, str) or not node:
            raise status.bad_request("binding: target.name must be the name of a node")
        pod = record.decode()
        if pod["metadata"].get("deletionTimestamp"):
            raise call.resource.conflict(
                call.name, f"pod {call.name} is being deleted, cannot be assigned to a host"
            )
        assigned = (pod.get("spec") or {}).get("nodeName")
        if assigned:
            raise call.resource.conflict(
                call.name, f'pod {call.name} is already assigned to node "{assigned}"'
            )
        self._writer.modify(call, record, lambda obj: self._bind(obj, node))
        return ApiResponse(body=msgspec.json.encode(_DONE), code=201)

    def _bind(self, pod: JsonObject, node: str) -> None:
        pod.setdefault("spec", {})["nodeName"] = node
        state = pod.setdefault("status", {})
        others = [c for c in state.get("conditions") or [] if c.get("type") != "PodScheduled"]
        since = self._writer.stamps.now()
        condition = {"type": "PodScheduled", "status": "True", "lastTransitionTime": since}
        state["conditions"] = [*others, condition]


_BUDGETS = "policy/poddisruptionbudgets"


class PodEviction:
    """Answers `pods/eviction`: a deletion that disruption budgets may refuse for now."""

    def __init__(self, writer: ObjectWriter) -> None:
        self._writer = writer
        self._deleter = Deleter(writer)

    def answer(self, call: Call) -> ApiResponse:
        """Delete the pod, or say 429."""
        if call.attributes.verb != "create":
            raise status.method_not_allowed()
        record = self._writer.existing(call)
        body = calls.read_body(call)
        pod = record.decode()
        counted = (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed")
        if counted:
            self._ask_budgets(call, pod)
        options = _options(body)
        if options.dry_run:
            call = dataclasses.replace(call, query={**call.query, "dryRun": "All"})
        self._deleter.delete(call, record, options)
        if counted and not call.dry_run:
            self._spend(call.namespace, pod)
        return ApiResponse(body=msgspec.json.encode(_DONE), code=201)

    def _ask_budgets(self, call: Call, pod: JsonObject) -> None:
        for budget in self._budgets(call.namespace, pod):
            state = budget.get("status") or {}
            if state.get("disruptionsAllowed", 0) > 0:
                continue
            name = budget["metadata"]["name"]
            needs, has = state.get("desiredHealthy", 0), state.get("currentHealthy", 0)
            raise status.failure(
                429,
                "TooManyRequests",
                "Cannot evict pod as it would violate the pod's disruption budget.",
                details={
                    "causes": [
                        {
                            "reason": "DisruptionBudget",
                            "message": f"The disruption budget {name} needs {needs} healthy pods and"
                            f" has {has} currently",
                        }
                    ]
                },
            )

    def _spend(self, namespace: str, pod: JsonObject) -> None:
        """Count the eviction at once, so that the next one does not outrun the controller."""
        store = self._writer.store
        collection = store.collection(_BUDGETS)
        for budget in list(self._budgets(namespace, pod)):
            state = budget["status"]
            state["disruptionsAllowed"] -= 1
            evicted = {pod["metadata"]["name"]: self._writer.stamps.now()}
            state["disruptedPods"] = {**state.get("disruptedPods", {}), **evicted}
            store.put(collection, f"{namespace}/{budget['metadata']['name']}", budget)

    def _budgets(self, namespace: str, pod: JsonObject) -> Iterator[JsonObject]:
        labels = pod["metadata"].get("labels") or {}
        for record in self._writer.store.collection(_BUDGETS).scan(namespace):
            budget = record.decode()
            selector = (budget.get("spec") or {}).get("selector")
            if selector is not None and selects(selector, labels):
                yield budget


def _options(body: JsonObject) -> DeletionRequest:
    try:
        return msgspec.convert(body.get("deleteOptions") or {}, DeletionRequest)
    except msgspec.ValidationError as error:
        raise status.bad_request(f"eviction: deleteOptions cannot be read: {error}") from error


class NamespaceFinalize:
    """Answers `namespaces/finalize`: the namespace controller's word that it is empty."""

    def __init__(self, writer: ObjectWriter) -> None:
        self._writer = writer

    def answer(self, call: Call) -> ApiResponse:
        """Set the finalizers; a namespace that is going and has none is gone."""
        if call.attributes.verb != "update":
            raise status.method_not_allowed()
        record = self._writer.existing(call)
        body = calls.read_body(call)
        spec = body.get("spec")
        finalizers = spec.get("finalizers") if isinstance(spec, dict) else None
        names = [name for name in finalizers or [] if isinstance(name, str)]

        def change(obj: JsonObject) -> None:
            obj["spec"] = {"finalizers": names} if names else {}

        written = self._writer.modify(call, record, change)
        return ApiResponse(body=msgspec.json.encode(written.obj))


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

    async def answer(self, call: Call) -> ApiResponse:
        """Answer a review with itself, its status filled in."""
        if call.attributes.verb != "create" or call.name:
            raise status.method_not_allowed()
        review = calls.read_body(call)
        review["apiVersion"] = call.resource.api_version(call.served)
        review["kind"] = call.resource.kind
        review.setdefault("metadata", {})
        review["status"] = await self._kinds[call.resource.kind](call, review)
        return ApiResponse(body=msgspec.json.encode(review), code=201)

    async def _own_access(self, call: Call, review: JsonObject) -> JsonObject:
        return await self._judge(call.user, _spec(review))

    async def _access(self, call: Call, review: JsonObject) -> JsonObject:
        spec = _spec(review)
        groups = [group for group in _list(spec.get("groups")) if isinstance(group, str)]
        user = UserInfo(name=str(spec.get("user", "")), groups=tuple(groups))
        return await self._judge(user, spec)

    async def _judge(self, user: UserInfo, spec: JsonObject) -> JsonObject:
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
            user = await self._gate.identify(RequestCredentials(token=token))
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


def _user_info(user: UserInfo) -> JsonObject:
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
