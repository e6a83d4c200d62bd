"""An API server in memory, spoken to through the client's own calls; for tests in virtual time.

It keeps what the operator stands on: versions that grow, conflicts, merge and JSON patches, status
and scale as subresources, finalizers, uid preconditions, lists and watches. There is no schema, no
defaulting, no access control: what needs those is tested on a server.
"""

from __future__ import annotations

import asyncio
import copy
import datetime as dt
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, NamedTuple

import jsonpatch
import msgspec

from kubeloop.client.discovery import ResourceInfo
from kubeloop.client.errors import NoMatch
from kubeloop.client.request import Preconditions, check_name
from kubeloop.objects.codec import codec_for
from kubeloop.objects.gvk import GroupVersionResource
from kubeloop.objects.list_watch import ListOptions
from kubeloop.objects.meta import JsonObject
from kubeloop.objects.patches import JsonPatch, MergePatch, Patch
from kubeloop.objects.times import format_time
from kubeloop.testing.fake_errors import api_error
from kubeloop.testing.fake_source import FakeSource

KINDS = {
    "Deployment": ("apps", "v1", "deployments", {"scale", "status"}),
    "Service": ("", "v1", "services", set[str]()),
    "Pod": ("", "v1", "pods", {"status"}),
    "EndpointSlice": ("discovery.k8s.io", "v1", "endpointslices", set[str]()),
    "ElastiService": ("elasti.truefoundry.com", "v1alpha1", "elastiservices", {"status"}),
    "ScaledObject": ("keda.sh", "v1alpha1", "scaledobjects", {"status"}),
}
Key = tuple[str, str]


class Write(NamedTuple):
    """One write that a client made, in words that can be compared."""

    verb: str
    what: str
    name: str


class MemoryApi:
    """All objects, by resource. `on_change` hears of every change, after it was made."""

    def __init__(self, now: Callable[[], dt.datetime]) -> None:
        self._now = now
        self._version = 0
        self._objects: dict[str, dict[Key, JsonObject]] = {}
        self._views: dict[tuple[str, type[Any], str], FakeSource[Any]] = {}
        self.on_change: list[Callable[[str, JsonObject, bool], None]] = []

    # Objects

    def find(self, plural: str, namespace: str, name: str) -> JsonObject | None:
        return self._objects.get(plural, {}).get((namespace, name))

    def get(self, plural: str, namespace: str, name: str) -> JsonObject:
        found = self.find(plural, namespace, name)
        if found is None:
            raise api_error(404, "NotFound", f"{plural} {name} not found")
        return copy.deepcopy(found)

    def all(self, plural: str) -> Iterator[JsonObject]:
        return iter(list(self._objects.get(plural, {}).values()))

    def create(self, plural: str, obj: JsonObject) -> JsonObject:
        meta = obj["metadata"]
        if self.find(plural, meta.get("namespace", ""), meta["name"]) is not None:
            raise api_error(409, "AlreadyExists", f"{plural} {meta['name']} already exists")
        meta.setdefault("uid", f"uid-{plural}-{self._version + 1}")
        meta["creationTimestamp"] = format_time(self._now())
        meta["generation"] = 1
        return self._store(plural, obj)

    def update(self, plural: str, obj: JsonObject) -> JsonObject:
        meta = obj["metadata"]
        old = self.get(plural, meta.get("namespace", ""), meta["name"])
        if meta.get("resourceVersion") not in (None, "", old["metadata"]["resourceVersion"]):
            raise api_error(409, "Conflict", f"{plural} {meta['name']} has been modified")
        for field in ("uid", "creationTimestamp", "generation", "deletionTimestamp"):
            if field in old["metadata"]:
                meta[field] = old["metadata"][field]
        if meta.get("deletionTimestamp") and not meta.get("finalizers"):
            return self._remove(plural, old)
        if obj.get("spec") != old.get("spec"):
            meta["generation"] += 1
        meta["resourceVersion"] = old["metadata"]["resourceVersion"]
        return old if obj == old else self._store(plural, obj)

    def delete(self, plural: str, namespace: str, name: str, uid: str = "") -> JsonObject:
        old = self.get(plural, namespace, name)
        if uid and uid != old["metadata"]["uid"]:
            raise api_error(409, "Conflict", f"the uid of {name} is another")
        if old["metadata"].get("finalizers"):
            old["metadata"].setdefault("deletionTimestamp", format_time(self._now()))
            return self._store(plural, old)
        return self._remove(plural, old)

    def _store(self, plural: str, obj: JsonObject) -> JsonObject:
        self._version += 1
        obj = copy.deepcopy(obj)
        meta = obj["metadata"]
        meta["resourceVersion"] = str(self._version)
        namespace = meta.get("namespace", "")
        self._objects.setdefault(plural, {})[namespace, meta["name"]] = obj
        for view in self._views_of(plural, namespace):
            view.version = self._version - 1
            view.put(obj)
        self._tell(plural, obj, gone=False)
        return copy.deepcopy(obj)

    def _remove(self, plural: str, obj: JsonObject) -> JsonObject:
        self._version += 1
        meta = obj["metadata"]
        namespace = meta.get("namespace", "")
        del self._objects[plural][namespace, meta["name"]]
        for view in self._views_of(plural, namespace):
            view.version = self._version - 1
            view.delete(meta["name"], namespace=namespace)
        self._tell(plural, obj, gone=True)
        return obj

    def _tell(self, plural: str, obj: JsonObject, *, gone: bool) -> None:
        for listener in self.on_change:
            listener(plural, obj, gone)

    # Views for informers

    def view(self, plural: str, kind: type[Any], namespace: str) -> FakeSource[Any]:
        """Return a list and watch of a resource, its objects represented as `kind`."""
        key = (plural, kind, namespace)
        if key not in self._views:
            codec = codec_for(kind)
            view: FakeSource[Any] = FakeSource(
                namespace="",
                version=self._version,
                represent=lambda obj: codec.decode(msgspec.json.encode(obj)),
                access=codec.access,
            )
            for obj in self.all(plural):
                if namespace in ("", obj["metadata"].get("namespace", "")):
                    view.objects[
                        view.key(obj["metadata"]["name"], obj["metadata"]["namespace"])
                    ] = obj
            self._views[key] = view
        return self._views[key]

    def _views_of(self, plural: str, namespace: str) -> list[FakeSource[Any]]:
        return [
            view
            for (resource, _, place), view in self._views.items()
            if resource == plural and place in ("", namespace)
        ]


class MemoryClient:
    """What the operator uses of a `Client`.

    `on_write` is called before and after every write, and may raise: what it raises after one is a
    crash that the server does not notice. `writes` are those that were made.
    """

    def __init__(self, api: MemoryApi) -> None:
        self.api = api
        self.writes: list[Write] = []
        self.reads: list[str] = []
        self.on_write: Callable[[Write, bool], None] | None = None
        self.refuse: Callable[[Write], Exception | None] = lambda _write: None
        self.mapper = self

    def resource(
        self, resource: str | GroupVersionResource, kind: type[Any] = dict, *, namespace: str = ""
    ) -> MemoryResource:
        gvr = GroupVersionResource.parse(resource) if isinstance(resource, str) else resource
        return MemoryResource(self, gvr, kind, namespace)

    async def by_kind(self, api_version: str, kind: str) -> ResourceInfo:
        group, version, plural, subresources = KINDS.get(kind, ("", "", "", set[str]()))
        if f"{group}/{version}".lstrip("/") != api_version:
            raise NoMatch(f"no kind {kind} in {api_version}")
        return ResourceInfo(
            gvr=GroupVersionResource(group, version, plural),
            kind=kind,
            namespaced=True,
            subresources=frozenset(subresources),
        )

    async def refresh(self) -> None:
        """Look for new kinds."""

    async def written(self, write: Write, make: Callable[[], JsonObject]) -> JsonObject:
        await asyncio.sleep(0)
        if (error := self.refuse(write)) is not None:
            raise error
        if self.on_write is not None:
            self.on_write(write, False)
        made = make()
        self.writes.append(write)
        if self.on_write is not None:
            self.on_write(write, True)
        return made


class MemoryResource:
    """What the operator uses of a `Resource`, and of the subresources status and scale."""

    supports_watch_list = True

    def __init__(
        self,
        client: MemoryClient,
        gvr: GroupVersionResource,
        kind: type[Any],
        namespace: str,
        subresource: str = "",
    ) -> None:
        self.gvr = gvr
        self._client = client
        self._api = client.api
        self._kind = kind
        self._codec = codec_for(kind)
        self._namespace = namespace
        self._subresource = subresource
        self.access = self._codec.access

    def subresource(self, name: str, kind: type[Any] = dict) -> MemoryResource:
        return MemoryResource(self._client, self.gvr, kind, self._namespace, name)

    async def watch(self, options: Any) -> Any:
        return await self._view().watch(options)

    def _view(self) -> FakeSource[Any]:
        return self._api.view(self.gvr.resource, self._kind, self._namespace)

    async def get(self, name: str, *, namespace: str | None = None, **_options: Any) -> Any:
        await asyncio.sleep(0)
        check_name(name, self.gvr)
        self._client.reads.append(f"{self.gvr.resource}/{name}")
        return self._shown(self._api.get(self.gvr.resource, self._place(namespace), name))

    async def items(
        self, *, selector: str = "", namespace: str | None = None, **_options: Any
    ) -> AsyncIterator[Any]:
        self._client.reads.append(self.gvr.resource)
        view = self._api.view(self.gvr.resource, self._kind, self._place(namespace))
        page = await view.list(ListOptions(label_selector=selector))
        for item in page.items:
            yield item

    async def create(self, obj: Any, **_options: Any) -> Any:
        body = self._body(obj)
        name = body["metadata"]["name"]
        return await self._write("create", name, lambda: self._api.create(self.gvr.resource, body))

    async def replace(self, obj: Any, *, namespace: str | None = None, **_options: Any) -> Any:
        body = self._body(obj)
        name = body["metadata"]["name"]

        def make() -> JsonObject:
            if self._subresource == "scale":
                found = self._api.get(self.gvr.resource, self._place(namespace), name)
                found["spec"]["replicas"] = body["spec"]["replicas"]
                found["metadata"]["resourceVersion"] = body["metadata"]["resourceVersion"]
                return self._api.update(self.gvr.resource, found)
            found = self._api.get(self.gvr.resource, body["metadata"]["namespace"], name)
            return self._api.update(self.gvr.resource, found | body)

        return await self._write("replace", name, make)

    async def patch(
        self, name: str, patch: Patch, *, namespace: str | None = None, **_options: Any
    ) -> Any:
        def make() -> JsonObject:
            found = self._api.get(self.gvr.resource, self._place(namespace), name)
            return self._api.update(self.gvr.resource, _patched(found, patch))

        return await self._write("patch", name, make)

    async def delete(
        self,
        name: str,
        *,
        namespace: str | None = None,
        preconditions: Preconditions | None = None,
    ) -> Any:
        uid = preconditions.uid if preconditions else ""
        place = self._place(namespace)
        return await self._write(
            "delete", name, lambda: self._api.delete(self.gvr.resource, place, name, uid)
        )

    def _body(self, obj: Any) -> JsonObject:
        body: JsonObject = msgspec.json.decode(self._codec.encode(obj))
        if self._namespace:
            body["metadata"].setdefault("namespace", self._namespace)
        return body

    async def _write(self, verb: str, name: str, make: Callable[[], JsonObject]) -> Any:
        check_name(name, self.gvr)
        what = "/".join(filter(None, (self.gvr.resource, self._subresource)))
        return self._shown(await self._client.written(Write(verb, what, name), make))

    def _shown(self, obj: JsonObject) -> Any:
        if self._subresource == "scale":
            obj = {
                "metadata": obj["metadata"],
                "spec": {"replicas": obj["spec"].get("replicas", 1)},
                "status": {
                    "replicas": obj.get("status", {}).get("replicas", 0),
                    "selector": _selector_text(obj),
                },
            }
        return self._codec.decode(msgspec.json.encode(obj))

    def _place(self, namespace: str | None) -> str:
        return self._namespace if namespace is None else namespace

    # Last of all, because its name hides the builtin.
    async def list(self, options: ListOptions) -> Any:
        return await self._view().list(options)


def _selector_text(workload: JsonObject) -> str:
    labels = workload["spec"].get("selector", {}).get("matchLabels", {})
    return ",".join(f"{key}={value}" for key, value in labels.items())


def _patched(found: JsonObject, patch: Patch) -> JsonObject:
    if isinstance(patch, JsonPatch):
        try:
            changed: JsonObject = jsonpatch.apply_patch(found, list(patch.operations))
        except jsonpatch.JsonPatchException as error:
            raise api_error(422, "Invalid", str(error)) from None
        return changed
    assert isinstance(patch, MergePatch)
    return _merged(found, msgspec.json.decode(patch.body))


def _merged(found: Any, change: Any) -> Any:
    if not isinstance(change, dict):
        return change
    merged = dict(found) if isinstance(found, dict) else {}
    for name, value in change.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = _merged(merged.get(name), value)
    return merged
