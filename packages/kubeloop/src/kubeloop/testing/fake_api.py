"""An API server's reads and writes, in memory: what answers the requests of `FakeClient`s.

Objects live in one `FakeSource` for each resource, at one counter of versions. A request is answered
as an API server answers it, or refused for the same reason. `fake_client.py` says what is left out.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import unquote

import msgspec

from kubeloop.client.discovery import ResourceInfo
from kubeloop.client.errors import StatusCause
from kubeloop.client.request import APPLY, Request
from kubeloop.objects.gvk import GroupVersion, GroupVersionResource
from kubeloop.objects.list_watch import ListOptions
from kubeloop.objects.meta import DICT_ACCESS, JsonObject, make_key
from kubeloop.objects.owners import kind_of
from kubeloop.objects.patches import JsonPatch, MergePatch, apply_merge_patch, same_json
from kubeloop.objects.times import format_time
from kubeloop.testing.fake_copies import copied
from kubeloop.testing.fake_errors import api_error
from kubeloop.testing.fake_fields import Ownership, apply_json_patch
from kubeloop.testing.fake_source import FakeSource

if TYPE_CHECKING:
    from kubeloop.aio.clock import Clock
    from kubeloop.client.errors import ApiError

# By apiVersion: the kinds, each with its subresources; cluster-scoped ones have a star.
_BUILT_IN = {
    "admissionregistration.k8s.io/v1": (
        "*ValidatingWebhookConfiguration *MutatingWebhookConfiguration"
    ),
    "v1": "ConfigMap Secret ServiceAccount Event Endpoints LimitRange Service/status"
    " Pod/status/resize/eviction"
    " PersistentVolumeClaim/status ReplicationController/status/scale"
    " *Node/status *Namespace/status *PersistentVolume/status",
    "apps/v1": "Deployment/status/scale ReplicaSet/status/scale StatefulSet/status/scale"
    " DaemonSet/status ControllerRevision",
    "batch/v1": "Job/status CronJob/status",
    "autoscaling/v2": "HorizontalPodAutoscaler/status",
    "policy/v1": "PodDisruptionBudget/status",
    "networking.k8s.io/v1": "Ingress/status NetworkPolicy *IngressClass",
    "discovery.k8s.io/v1": "EndpointSlice",
    "coordination.k8s.io/v1": "Lease",
    "events.k8s.io/v1": "Event",
    "storage.k8s.io/v1": "*StorageClass",
    "rbac.authorization.k8s.io/v1": "Role RoleBinding *ClusterRole *ClusterRoleBinding",
    "apiextensions.k8s.io/v1": "*CustomResourceDefinition/status",
    "authorization.k8s.io/v1": "*SelfSubjectAccessReview",
}
_DEFINITIONS = GroupVersionResource("apiextensions.k8s.io", "v1", "customresourcedefinitions")
# Fields that a server sets itself, whatever a client sends.
_SERVERS_OWN = (
    *("uid", "creationTimestamp", "generation"),
    *("deletionTimestamp", "deletionGracePeriodSeconds"),
)
_SUFFIX = "bcdfghjklmnpqrstvwxz2456789"

#: Receives a resource, an object of it after a change, and whether it is gone.
OnChange: TypeAlias = Callable[[GroupVersionResource, JsonObject, bool], None]


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """The target of a path: a resource, perhaps one object of it, perhaps a part of that."""

    info: ResourceInfo
    namespace: str = ""
    name: str = ""
    subresource: str = ""


class FakeApi:
    """All objects of a fake server; see `FakeClient`."""

    def __init__(self, clock: Clock) -> None:
        self.on_change: list[OnChange] = []
        self.resources = {info.gvr: info for info in _built_in()}
        self._sources: dict[GroupVersionResource, FakeSource[JsonObject]] = {}
        self._ownership = Ownership()
        self._clock = clock
        self._version = 0
        self._made = 0

    def source(self, gvr: GroupVersionResource) -> FakeSource[JsonObject]:
        """Return the objects of a resource, at the present version."""
        if gvr not in self._sources:
            info = self.resources[gvr]
            made = FakeSource[JsonObject](api_version=gvr.api_version, kind=info.kind)
            made.ordered = True
            self._sources[gvr] = made
        found = self._sources[gvr]
        self._version = found.version = max(self._version, found.version)
        return found

    def put(self, obj: JsonObject, namespace: str) -> JsonObject:
        """Store an object whole, without any check; add server-set fields that it lacks."""
        info = next((i for i in self.resources.values() if i.gvk == kind_of(obj)), None)
        if info is None:
            raise ValueError(
                f"a FakeClient knows no {kind_of(obj)}: give it the CustomResourceDefinition first"
            )
        self._made += 1
        own: JsonObject = {
            "uid": str(uuid.UUID(int=self._made, version=4)),
            "creationTimestamp": format_time(self._clock.now()),
            "generation": 1,
        }
        own |= {"namespace": namespace} if info.namespaced else {}
        had = self.source(info.gvr).objects.get(
            DICT_ACCESS.key({"metadata": own | obj["metadata"]})
        )
        own |= {
            name: had["metadata"][name] for name in _SERVERS_OWN if had and name in had["metadata"]
        }
        after: JsonObject = {**obj, "metadata": own | obj["metadata"]}
        if had is not None:
            version, generation = (had["metadata"][n] for n in ("resourceVersion", "generation"))
            after["metadata"]["resourceVersion"] = version
            if same_json(had, after):
                return copied(had)
            if _content_differs(had, after) and after["metadata"]["generation"] == generation:
                after["metadata"]["generation"] += 1
        stored = self.source(info.gvr).put(_served(info.gvr, after))
        self._wrote(info.gvr, stored)
        return copied(stored)

    def delete(self, gvr: GroupVersionResource, namespace: str, name: str) -> None:
        """Delete an object, or mark it as deleted while it has finalizers."""
        info = self.resources[gvr]
        request = Request(method="DELETE", path="")
        self._delete(request, Place(info, namespace if info.namespaced else "", name), {})

    def place(self, path: str) -> Place:
        """Read a path. Raises the 404 of a server that does not serve it."""
        root, *parts = [unquote(part) for part in path.strip("/").split("/")]
        group, version = ("", parts.pop(0)) if root == "api" else (parts.pop(0), parts.pop(0))
        namespace = ""
        # Two parts are one namespace, and its own parts come after it; others are inside of it.
        if len(parts) > 2 and parts[0] == "namespaces" and parts[2] != "status":
            namespace, parts = parts[1], parts[2:]
        plural, name, subresource = (*parts, "", "")[:3]
        info = self.resources.get(GroupVersionResource(group, version, plural))
        if info is None or (name and info.namespaced is not bool(namespace)):
            raise api_error(404, "NotFound", "the server could not find the requested resource")
        if subresource and subresource not in info.subresources:
            raise api_error(404, "NotFound", f"{info.gvr} have no {subresource} in a FakeClient")
        return Place(info, namespace, name, subresource)

    def options(self, request: Request, place: Place) -> JsonObject:
        """Return what a list and a watch have in common; a namespace is one more field selector."""
        query = dict(request.query)
        fields = [f"metadata.namespace={place.namespace}"] if place.namespace else []
        fields += [query["fieldSelector"]] if "fieldSelector" in query else []
        return {
            "label_selector": query.get("labelSelector", ""),
            "field_selector": ",".join(fields),
            "resource_version": query.get("resourceVersion", ""),
            "resource_version_match": query.get("resourceVersionMatch", ""),
        }

    async def answer(self, request: Request) -> JsonObject:
        """Return the document that answers a request. Raises the refusal."""
        root, *version = request.path.strip("/").split("/")
        if root == "apis" and len(version) == 2:
            return self._discovered("/".join(version))
        place = self.place(request.path)
        body = msgspec.json.decode(request.body) if request.body else {}
        match request.method, bool(place.name):
            case "GET", False:
                answer = await self._list(request, place)
            case "GET", True:
                answer = _part(self._get(place), place.subresource)
            case "POST", False if place.info.kind == "SelfSubjectAccessReview":
                answer = body | {"status": {"allowed": True}}  # it authorizes everything
            case "POST", True if place.subresource == "eviction":
                answer = self._delete(request, place, body.get("deleteOptions") or {})
            case "POST", False:
                answer = self._create(request, place, body)
            case "PUT", True:
                answer = self._update(request, place, _whole(self._get(place), place, body))
            case "PATCH", True:
                answer = self._patch(request, place, body)
            case "DELETE", True:
                answer = self._delete(request, place, body)
            case "DELETE", False:
                answer = await self._list(request, place)
                for item in answer["items"]:
                    name, namespace = item["metadata"]["name"], item["metadata"].get("namespace")
                    one = dataclasses.replace(place, name=name, namespace=namespace or "")
                    self._delete(request, one, body)
            case _:
                raise api_error(405, "MethodNotAllowed", f"a FakeClient does not answer {request}")
        return answer

    def _discovered(self, version: str) -> JsonObject:
        found = [info for info in self.resources.values() if info.gvr.api_version == version]
        if not found:
            raise api_error(404, "NotFound", "the server could not find the requested resource")
        kinds = [{"name": one.gvr.resource, "kind": one.kind} for one in found]
        return {"kind": "APIResourceList", "groupVersion": version, "resources": kinds}

    async def _list(self, request: Request, place: Place) -> JsonObject:
        query = dict(request.query)
        options = ListOptions(
            **self.options(request, place),
            limit=int(query.get("limit", 0)),
            continue_token=query.get("continue", ""),
        )
        page = await self.source(place.info.gvr).list(options)
        metadata: JsonObject = {"resourceVersion": page.resource_version}
        metadata |= {"continue": page.continue_token} if page.continue_token else {}
        metadata |= {"remainingItemCount": page.remaining} if page.remaining else {}
        return {
            "apiVersion": place.info.gvr.api_version,
            "kind": f"{place.info.kind}List",
            "metadata": metadata,
            "items": page.items,
        }

    def _get(self, place: Place) -> JsonObject:
        found = self.source(place.info.gvr).objects.get(make_key(place.namespace, place.name))
        if found is None:
            raise _refusal(404, "NotFound", place, "not found")
        return copied(found)

    def _create(self, request: Request, place: Place, obj: JsonObject) -> JsonObject:
        metadata = {name: value for name, value in (obj.get("metadata") or {}).items() if value}
        if "resourceVersion" in metadata:
            raise api_error(
                400, "BadRequest", "resourceVersion should not be set on objects to be created"
            )
        self._made += 1
        if not metadata.get("name") and metadata.get("generateName"):
            metadata["name"] = metadata["generateName"] + _suffix(self._made)
        place = dataclasses.replace(place, name=metadata.get("name") or "")
        if not place.name:
            message = "name or generateName is required"
            raise api_error(
                422, "Invalid", f"{place.info.kind} is invalid: metadata.name: {message}"
            )
        if place.info.namespaced and not place.namespace:
            raise api_error(405, "MethodNotAllowed", "the server does not allow this method here")
        held = self.source(place.info.gvr).objects.get(make_key(place.namespace, place.name))
        if held is not None and "deletionTimestamp" in held["metadata"]:
            about = f'{place.info.full_name} "{place.name}"'
            raise api_error(
                409, "AlreadyExists", f"object is being deleted: {about} already exists"
            )
        if held is not None:
            raise _refusal(409, "AlreadyExists", place, "already exists")
        for field in ("deletionTimestamp", "deletionGracePeriodSeconds"):
            metadata.pop(field, None)
        metadata |= {
            "uid": str(uuid.UUID(int=self._made, version=4)),
            "creationTimestamp": format_time(self._clock.now()),
            "generation": 1,
        }
        metadata |= {"namespace": place.namespace} if place.namespace else {}
        typed = {"apiVersion": place.info.gvr.api_version, "kind": place.info.kind}
        obj = {**typed, **obj, "metadata": metadata}
        if "status" in place.info.subresources:
            obj.pop("status", None)  # that is written under its own path
        return self._store(request, place, None, obj)

    def _update(self, request: Request, place: Place, wanted: JsonObject) -> JsonObject:
        """Write an object that exists; `wanted` is whole."""
        before = self._get(place)
        had, metadata = before["metadata"], dict(wanted["metadata"])
        _check_identity(request, place, had, metadata)
        _check_finalizers(place, had, metadata)
        # What is empty is left out, as from every answer of a server.
        metadata = {n: v for n, v in metadata.items() if n not in _SERVERS_OWN and v}
        metadata |= {name: had[name] for name in _SERVERS_OWN if name in had}
        metadata["resourceVersion"] = had["resourceVersion"]
        after = wanted | {"metadata": metadata}
        if "status" in place.info.subresources and place.subresource != "status":
            after = {name: value for name, value in after.items() if name != "status"}
            after |= {"status": before["status"]} if "status" in before else {}
        if _content_differs(before, after):
            metadata["generation"] = had.get("generation", 0) + 1
        return self._store(request, place, before, after)

    def _patch(self, request: Request, place: Place, body: Any) -> JsonObject:
        if request.content_type == APPLY:
            return self._apply(request, place, body)
        if "force" in dict(request.query):
            forbidden = "force: Forbidden: may not be specified for non-apply patch"
            raise api_error(422, "Invalid", f"PatchOptions.meta.k8s.io is invalid: {forbidden}")
        before = self._get(place)
        part = _part(before, place.subresource)
        match request.content_type:
            case MergePatch.content_type:
                part = apply_merge_patch(part, body)
            case JsonPatch.content_type:
                part = apply_json_patch(part, body)
            case other:
                raise api_error(
                    415, "UnsupportedMediaType", f"a FakeClient knows no patch of type {other}"
                )
        return self._update(request, place, _whole(before, place, part))

    def _apply(self, request: Request, place: Place, content: JsonObject) -> JsonObject:
        query = dict(request.query)
        manager = query.get("fieldManager", "")
        if not (content.get("apiVersion") and content.get("kind")):
            raise api_error(400, "BadRequest", "an apply must name apiVersion and kind")
        before = self.source(place.info.gvr).objects.get(make_key(place.namespace, place.name))
        if before is None:
            metadata = content["metadata"] | {"resourceVersion": ""}
            before = answer = self._create(request, place, content | {"metadata": metadata})
        else:
            if place.subresource == "scale":
                # Of a Scale, only the replicas are the object's, in the object's own kind.
                metadata = {"resourceVersion": content["metadata"].get("resourceVersion")}
                replicas = (content.get("spec") or {}).get("replicas", 0)
                content = {"metadata": metadata, "spec": {"replicas": replicas}}
            force = query.get("force") == "true"
            wanted = self._ownership.applied(before, content, manager=manager, force=force)
            answer = self._update(request, place, wanted)
        if not query.get("dryRun"):
            self._ownership.claim(before, content, manager=manager)
        return answer

    def _delete(self, request: Request, place: Place, options: JsonObject) -> JsonObject:
        obj = self._get(place)
        metadata = obj["metadata"]
        for field, wanted in (options.get("preconditions") or {}).items():
            if metadata[field] != wanted:
                name = "UID" if field == "uid" else "ResourceVersion"
                why = (
                    f"the {name} in the precondition ({wanted}) does not match the {name} in record"
                )
                raise _refusal(409, "Conflict", place, f"{why} ({metadata[field]})")
        if metadata.get("finalizers"):
            if "deletionTimestamp" in metadata:
                return obj
            metadata["deletionTimestamp"] = format_time(self._clock.now())
            metadata["deletionGracePeriodSeconds"] = 0
            metadata["generation"] = metadata.get("generation", 0) + 1
            return self._store(request, place, None, obj)
        if not options.get("dryRun"):
            self._remove(place)
        return {"apiVersion": "v1", "kind": "Status", "status": "Success"}

    def _remove(self, place: Place) -> None:
        source = self.source(place.info.gvr)
        last = source.delete(place.name, namespace=place.namespace)
        self._version = source.version
        self._notify(place.info.gvr, last, gone=True)

    def _notify(self, gvr: GroupVersionResource, obj: JsonObject, *, gone: bool) -> None:
        for listener in list(self.on_change):
            listener(gvr, copied(obj), gone)

    def _store(
        self, request: Request, place: Place, before: JsonObject | None, obj: JsonObject
    ) -> JsonObject:
        """Store an object, unless nothing changed or it is a dry run; return the stored object."""
        query = dict(request.query)
        if query.get("dryRun") or (before is not None and same_json(before, obj)):
            return _part(obj, place.subresource)
        metadata = obj["metadata"]
        if "deletionTimestamp" in metadata and not metadata.get("finalizers"):
            self._remove(place)  # and no write before it: watchers see the end alone
            return _part(obj, place.subresource)
        stored = self.source(place.info.gvr).put(_served(place.info.gvr, obj))
        if request.content_type != APPLY:
            manager = query.get("fieldManager", "unknown")
            owner = f'"{manager}" using {place.info.gvr.api_version}'
            self._ownership.changed(before, stored, owner=owner)
        self._wrote(place.info.gvr, stored)
        return _part(copied(stored), place.subresource)

    def _wrote(self, gvr: GroupVersionResource, stored: JsonObject) -> None:
        """Count a write, and serve what a CustomResourceDefinition defines."""
        self._version = self._sources[gvr].version
        if gvr == _DEFINITIONS:
            self._define(stored["spec"])
        self._notify(gvr, stored, gone=False)

    def _define(self, spec: JsonObject) -> None:
        for version in spec["versions"]:
            defined = GroupVersionResource(spec["group"], version["name"], spec["names"]["plural"])
            self.resources[defined] = ResourceInfo(
                gvr=defined,
                kind=spec["names"]["kind"],
                namespaced=spec["scope"] == "Namespaced",
                verbs=frozenset({"get"}),
                subresources=frozenset(version.get("subresources") or ()),
            )


def _built_in() -> list[ResourceInfo]:
    found = []
    for api_version, kinds in _BUILT_IN.items():
        for entry in kinds.split():
            kind, *subresources = entry.lstrip("*").split("/")
            plural = kind.lower()
            if plural.endswith("y"):
                plural = f"{plural[:-1]}ies"
            elif plural != "endpoints":
                plural += "es" if plural.endswith("s") else "s"
            found.append(
                ResourceInfo(
                    gvr=GroupVersionResource(*GroupVersion.parse(api_version), plural),
                    kind=kind,
                    namespaced=not entry.startswith("*"),
                    verbs=frozenset({"get"}),
                    subresources=frozenset(subresources),
                )
            )
    return found


def _served(gvr: GroupVersionResource, obj: JsonObject) -> JsonObject:
    """Return what is stored: a definition says at once that it is served."""
    if gvr != _DEFINITIONS:
        return obj
    conditions = [{"type": kind, "status": "True"} for kind in ("NamesAccepted", "Established")]
    return obj | {"status": {"acceptedNames": obj["spec"]["names"], "conditions": conditions}}


def _content_differs(before: JsonObject, after: JsonObject) -> bool:
    """Whether a change is one of the generation: not of metadata or status alone."""
    changed = {n for n in before.keys() | after.keys() if before.get(n) != after.get(n)}
    return bool(changed - {"metadata", "status"})


def _suffix(number: int) -> str:
    """Return the end of a generated name: five letters that spell no word."""
    base = len(_SUFFIX)
    return "".join(_SUFFIX[number // base**place % base] for place in reversed(range(5)))


def _check_identity(request: Request, place: Place, had: JsonObject, metadata: JsonObject) -> None:
    """Refuse what was written for another name, another incarnation or an older state."""
    for field in ("name", "namespace", "uid", "resourceVersion"):
        has = had.get(field)
        sent = metadata.get(field) or has
        match field, request.method:
            case _ if sent == has:
                continue
            case "name" | "namespace", _:
                why = f"({sent}) does not match the {field} on the URL ({has})"
                raise api_error(400, "BadRequest", f"the {field} of the object {why}")
            case "uid", "PATCH":
                about = f'{place.info.kind} "{place.name}" is invalid: metadata.uid: Invalid value'
                raise api_error(422, "Invalid", f'{about}: "{sent}": field is immutable')
            case "uid", _:
                why = f"Precondition failed: UID in precondition: {sent}, UID in object meta: {has}"
                raise _refusal(409, "Conflict", place, why)
            case _:
                why = (
                    "the object has been modified; please apply your changes to the latest version"
                )
                raise _refusal(409, "Conflict", place, f"{why} and try again")


def _check_finalizers(place: Place, had: JsonObject, metadata: JsonObject) -> None:
    """Refuse new finalizers of an object that is being deleted."""
    new = set(metadata.get("finalizers") or ()) - set(had.get("finalizers") or ())
    if new and "deletionTimestamp" in had:
        message = "no new finalizers can be added if the object is being deleted"
        about = f'{place.info.kind} "{place.name}" is invalid: metadata.finalizers: Forbidden'
        cause = StatusCause("FieldValueForbidden", f"Forbidden: {message}", "metadata.finalizers")
        raise api_error(422, "Invalid", f"{about}: {message}", causes=(cause,))


def _refusal(code: int, reason: str, place: Place, message: str) -> ApiError:
    info = place.info
    about = f'{info.full_name} "{place.name}"'
    text = f"Operation cannot be fulfilled on {about}: {message}" if reason == "Conflict" else ""
    details = {"name": place.name, "group": info.gvr.group, "kind": info.gvr.resource}
    return api_error(code, reason, text or f"{about} {message}", **details)


def _part(obj: JsonObject, subresource: str) -> JsonObject:
    """Return what is read at a path: the object, or the Scale of it."""
    if subresource != "scale":
        return obj
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    metadata, selector = obj["metadata"], spec.get("selector") or {}
    labels = selector.get("matchLabels", selector)
    kept = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    return {
        "apiVersion": "autoscaling/v1",
        "kind": "Scale",
        "metadata": {name: metadata[name] for name in kept if name in metadata},
        "spec": {"replicas": spec.get("replicas", 1)},
        "status": {
            "replicas": status.get("replicas", 0),
            "selector": ",".join(f"{name}={value}" for name, value in labels.items()),
        },
    }


def _whole(before: JsonObject, place: Place, part: JsonObject) -> JsonObject:
    """Return the object with what was written at a path; a part is written at the version it has."""
    if not place.subresource:
        return part
    metadata = {**before["metadata"], "resourceVersion": part["metadata"].get("resourceVersion")}
    if place.subresource == "status":
        return {**before, "metadata": metadata, "status": part.get("status")}
    if place.subresource == "resize":
        return {**before, "metadata": metadata, "spec": part.get("spec")}
    replicas = (part.get("spec") or {}).get("replicas", 0)
    spec = {**(before.get("spec") or {}), "replicas": replicas}
    return {**before, "metadata": metadata, "spec": spec}
