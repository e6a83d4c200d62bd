"""The objects of one resource: read, write, list and watch them.

A `Resource` is cheap and holds no state; make as many as are convenient. It may be bound to a
namespace (`within`), which every call may override.

`list` and `watch` are for two kinds of callers. With options, as informers call them, they are one
attempt on a connection of its own, without retries, because the reflector has its own rules for each
failure. With keywords, as people call them, `list` reads everything and `watch` is an iterator.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar, Unpack, overload

import msgspec

from kubeloop.client import request as requests
from kubeloop.client.changes import Change, carry_over, retry_on_conflict
from kubeloop.client.errors import error_from_object
from kubeloop.client.pager import Pager
from kubeloop.client.pipeline import ObjectCalls, RequestPipeline, WriteOptions, decode
from kubeloop.client.request import DeleteOptions, Preconditions, Propagation, delete
from kubeloop.client.subresource import Subresource
from kubeloop.objects.codec import Codec, codec_for
from kubeloop.objects.lazy import LazyObject
from kubeloop.objects.list_watch import ERROR, ListOptions, Page, WatchEvent, WatchOptions
from kubeloop.objects.meta import DICT_ACCESS, JsonObject
from kubeloop.objects.patches import same_json
from kubeloop.objects.selectors import LabelSelector, SelectorLike

if TYPE_CHECKING:
    import builtins

    from kubeloop.client.request import Request, ResourceScope
    from kubeloop.client.wire.streams import StreamTransport
    from kubeloop.client.wire.watch import WireWatch
    from kubeloop.objects.gvk import GroupVersionResource
    from kubeloop.objects.meta import MetaAccess
    from kubeloop.objects.patches import Patch

T = TypeVar("T")
S = TypeVar("S")


def applied_content(obj: Any, gvr: GroupVersionResource) -> JsonObject:
    """Return what an apply sends of an object. Raises ValueError if its kind is unknown."""
    if isinstance(obj, LazyObject):
        return obj.to_dict()
    content: JsonObject = msgspec.to_builtins(obj)
    if isinstance(obj, msgspec.Struct):
        # A manager must not own fields that it did not set, such as an empty uid or no labels.
        _drop_empty_parts(obj, content)
        metadata = content.get("metadata") or {}
        content["metadata"] = {name: value for name, value in metadata.items() if value}
        content["apiVersion"] = gvr.api_version
        content["kind"] = getattr(obj, "kind", "")
    if not content.get("kind") or not content.get("apiVersion"):
        raise ValueError(
            f"{gvr}: an apply says what the object is: set apiVersion and kind, or give"
            f" {type(obj).__name__} a field such as `kind: str = 'ConfigMap'`"
        )
    return content


def _drop_empty_parts(obj: Any, content: Any) -> None:
    """Take out the parts that a Struct makes by itself, such as a status, if nothing in them is set."""
    if isinstance(obj, msgspec.Struct) and isinstance(content, dict):
        for field in msgspec.structs.fields(obj):
            if field.encode_name not in content:
                continue
            _drop_empty_parts(getattr(obj, field.name), content[field.encode_name])
            made = isinstance(field.default_factory, type(msgspec.Struct))
            if made and not content[field.encode_name]:
                del content[field.encode_name]
    elif isinstance(obj, list | tuple) and isinstance(content, list | tuple):
        for item, part in zip(obj, content, strict=True):
            _drop_empty_parts(item, part)


class Resource(Generic[T]):
    """One resource of one server, its objects represented as T. Made by `Client.resource`.

    Objects are named by `name` and `namespace`; if neither the call nor the binding nor the object
    itself gives a namespace, the path has no namespace, as for cluster-scoped objects.
    """

    def __init__(
        self,
        scope: ResourceScope,
        *,
        codec: Codec[T],
        pipeline: RequestPipeline,
        streams: StreamTransport,
    ) -> None:
        self._scope = scope
        self._codec = codec
        self._pipeline = pipeline
        self._streams = streams
        self._calls = ObjectCalls(pipeline, codec)

    def __repr__(self) -> str:
        return f"<Resource {self._scope}>"

    @property
    def gvr(self) -> GroupVersionResource:
        """Group, version and plural."""
        return self._scope.gvr

    @property
    def namespace(self) -> str:
        """The namespace that it is bound to; empty for all of them, or none."""
        return self._scope.namespace

    @property
    def namespaced(self) -> bool | None:
        """Whether its objects have namespaces; None if discovery was not asked."""
        return self._scope.namespaced

    @property
    def access(self) -> MetaAccess:
        """How to read the metadata of the objects."""
        return self._codec.access

    @property
    def supports_watch_list(self) -> bool:
        """Whether a watch may be asked for its initial events; true of real servers."""
        return True

    def within(self, namespace: str) -> Resource[T]:
        """Return the same resource bound to a namespace; the empty one unbinds."""
        scope = dataclasses.replace(self._scope, namespace=namespace)
        return Resource(scope, codec=self._codec, pipeline=self._pipeline, streams=self._streams)

    def without_managed_fields(self) -> Resource[T]:
        """Return the same resource whose dictionaries come without metadata.managedFields.

        They are skipped over, not built and dropped. Other representations never have them.
        """
        codec = self._codec.without_managed_fields()
        return Resource(self._scope, codec=codec, pipeline=self._pipeline, streams=self._streams)

    # Reads of many.

    @overload
    async def list(self, options: ListOptions) -> Page[T]: ...

    @overload
    async def list(
        self,
        options: None = None,
        *,
        selector: SelectorLike = "",
        field_selector: str = "",
        namespace: str | None = None,
        timeout: float | None = None,
    ) -> builtins.list[T]: ...

    async def list(
        self,
        options: ListOptions | None = None,
        *,
        selector: SelectorLike = "",
        field_selector: str = "",
        namespace: str | None = None,
        timeout: float | None = None,
    ) -> Page[T] | builtins.list[T]:
        """Return all objects that match; `namespace=""` means of all namespaces.

        With options: one page, decoded as it arrives, in one attempt. Raises `KubeError`.
        """
        if options is not None:
            request = self._list_request(options, None)
            return await self._streams.list(request, self._codec, on_answer=options.on_answer)
        return await self.items(
            selector=selector, field_selector=field_selector, namespace=namespace, timeout=timeout
        ).to_list()

    @overload
    async def watch(self, options: WatchOptions) -> WireWatch[T]: ...

    @overload
    def watch(
        self,
        options: None = None,
        *,
        selector: SelectorLike = "",
        field_selector: str = "",
        namespace: str | None = None,
        resource_version: str = "",
        timeout_seconds: int = 0,
    ) -> AsyncIterator[WatchEvent[T]]: ...

    def watch(
        self,
        options: WatchOptions | None = None,
        *,
        selector: SelectorLike = "",
        field_selector: str = "",
        namespace: str | None = None,
        resource_version: str = "",
        timeout_seconds: int = 0,
    ) -> Any:
        """Iterate over what happens: first the objects that are there, as ADDED.

        With a `resource_version` only what came after it. It ends when the server ends it, and
        misses what happens then: for anything that lasts, use an informer. With options: open a
        watch; returns once the server accepted it, in one attempt. Raises `KubeError`.
        """
        if options is not None:
            return self._open_watch(options, None)
        wanted = WatchOptions(
            label_selector=str(LabelSelector.parse(selector)),
            field_selector=field_selector,
            resource_version=resource_version,
            timeout_seconds=timeout_seconds,
            allow_bookmarks=False,
        )
        return self._events(wanted, namespace)

    async def _events(
        self, options: WatchOptions, namespace: str | None
    ) -> AsyncIterator[WatchEvent[T]]:
        stream = await self._open_watch(options, namespace)
        try:
            while events := await stream.read():
                for event in events:
                    if event.type == ERROR:
                        status: Any = event.object
                        raise error_from_object(status)
                    yield event
        finally:
            await stream.close()

    async def _open_watch(self, options: WatchOptions, namespace: str | None) -> WireWatch[T]:
        path = self._scope.collection(namespace)
        return await self._streams.watch(
            requests.get(path, options.query(), accept=requests.accept(self._codec.projection)),
            self._codec,
            seconds=options.timeout_seconds,
        )

    # Reads.

    async def get(
        self,
        name: str,
        *,
        namespace: str | None = None,
        resource_version: str = "",
        timeout: float | None = None,
    ) -> T:
        """Read one object, by default the newest there is. Raises `NotFound`."""
        path = self._scope.resource_path(namespace).item(name)
        request = requests.get(
            path,
            {"resourceVersion": resource_version},
            accept=requests.accept(self._codec.projection),
        )
        with self._scope.hints(namespace):
            return await self._calls.call(request, timeout=timeout)

    def items(
        self,
        *,
        selector: SelectorLike = "",
        field_selector: str = "",
        namespace: str | None = None,
        page_size: int = 500,
        resource_version: str = "",
        allow_inconsistent: bool = False,
        timeout: float | None = None,
    ) -> Pager[T]:
        """Iterate over the objects, page by page, with retries; see `Pager`.

        `timeout` is for one page.
        """

        async def fetch(options: ListOptions) -> Page[T]:
            request = self._list_request(options, namespace)
            response = await self._pipeline.send(request, timeout=timeout)
            return decode(response, self._codec.decode_page)

        options = ListOptions(
            label_selector=str(LabelSelector.parse(selector)),
            field_selector=field_selector,
            limit=page_size,
            resource_version=resource_version,
        )
        return Pager(fetch, options, allow_inconsistent=allow_inconsistent)

    # Writes.

    async def create(
        self, obj: T, *, namespace: str | None = None, **options: Unpack[WriteOptions]
    ) -> T:
        """Create an object, named by itself or, with `generateName`, by the server."""
        resource_path = self._scope.resource_path(namespace, self.access.namespace(obj))
        body = self._codec.encode(obj)
        with self._scope.hints(resource_path.namespace):
            return await self._calls.write("POST", resource_path.collection, body, options)

    async def replace(
        self, obj: T, *, namespace: str | None = None, **options: Unpack[WriteOptions]
    ) -> T:
        """Write an object whole. Its resourceVersion, if any, must be current: else `Conflict`."""
        resource_path = self._scope.resource_path(namespace, self.access.namespace(obj))
        path = resource_path.item(self.access.name(obj))
        with self._scope.hints(resource_path.namespace):
            return await self._calls.write("PUT", path, self._codec.encode(obj), options)

    async def patch(
        self,
        name: str,
        patch: Patch,
        *,
        namespace: str | None = None,
        force: bool = False,
        **options: Unpack[WriteOptions],
    ) -> T:
        """Change an object by a patch; `force` is for an `ApplyPatch`."""
        if isinstance(patch, Mapping | list):
            raise TypeError(
                "a patch says of which kind it is: wrap it, as in MergePatch({...}); the others are"
                " JsonPatch, StrategicMergePatch and ApplyPatch of kubeloop.objects.patches"
            )
        path, kind = self._scope.resource_path(namespace).item(name), patch.content_type
        with self._scope.hints(namespace):
            return await self._calls.write(
                "PATCH", path, patch.body, options, content_type=kind, force=force
            )

    async def apply(
        self,
        obj: T,
        *,
        namespace: str | None = None,
        force: bool = False,
        **options: Unpack[WriteOptions],
    ) -> T:
        """Make the object have these fields, by server-side apply; creates it where missing.

        Needs `field_manager`. Fields of other managers are an `ApplyConflict` unless `force` takes
        them. A Struct is sent with what it has set: `UNSET` fields are not ours, nor is metadata
        that is empty. See `Client.apply`, which finds the resource by itself.
        """
        if not options.get("field_manager"):
            raise ValueError("apply needs field_manager=, the name that will own the fields")
        content = applied_content(obj, self.gvr)
        resource_path = self._scope.resource_path(namespace, DICT_ACCESS.namespace(content))
        path, body = resource_path.item(DICT_ACCESS.name(content)), msgspec.json.encode(content)
        with self._scope.hints(resource_path.namespace):
            return await self._calls.write(
                "PATCH", path, body, options, content_type=requests.APPLY, force=force
            )

    async def modify(
        self,
        name: str,
        change: Change[T],
        *,
        namespace: str | None = None,
        **options: Unpack[WriteOptions],
    ) -> T:
        """Let `change` edit the object in place, and write it whole unless nothing changed.

        `change` gets a copy of its own, may be plain or `async`, and is called again on what another
        client wrote meanwhile. Fields that T does not name are kept, also inside of lists (see
        `changes`). Returns the object as the server has it.
        """
        codec: Codec[JsonObject] = codec_for(dict)
        whole = Resource(self._scope, codec=codec, pipeline=self._pipeline, streams=self._streams)

        async def attempt() -> T:
            raw = await whole.get(name, namespace=namespace)
            wanted = self._codec.decode(codec.encode(raw))
            before = self._codec.encode(wanted)
            result = change(wanted)
            if inspect.isawaitable(result):
                await result
            after = carry_over(raw, codec.decode(before), codec.decode(self._codec.encode(wanted)))
            if not same_json(raw, after):
                after = await whole.replace(after, namespace=namespace, **options)
            return self._codec.decode(codec.encode(after))

        return await retry_on_conflict(attempt)

    async def delete(
        self,
        name: str,
        *,
        namespace: str | None = None,
        preconditions: Preconditions | None = None,
        propagation: Propagation | None = None,
        grace_period: int | None = None,
        dry_run: bool = False,
        timeout: float | None = None,
    ) -> T | None:
        """Delete one object; returns it if it stays for a while (finalizers, grace), else None.

        Raises `NotFound`, and `Conflict` where a precondition fails.
        """
        options = DeleteOptions(
            preconditions=preconditions,
            propagation=propagation,
            grace_period=grace_period,
            dry_run=dry_run,
        )
        request = delete(self._scope.resource_path(namespace).item(name), options)
        with self._scope.hints(namespace):
            return await self._calls.call_optional(request, timeout=timeout)

    async def delete_collection(
        self,
        *,
        selector: SelectorLike = "",
        field_selector: str = "",
        namespace: str | None = None,
        propagation: Propagation | None = None,
        grace_period: int | None = None,
        dry_run: bool = False,
        timeout: float | None = None,
    ) -> None:
        """Delete every object that the selectors match: all of the namespace if none is given."""
        options = DeleteOptions(propagation=propagation, grace_period=grace_period, dry_run=dry_run)
        query = {
            "labelSelector": str(LabelSelector.parse(selector)),
            "fieldSelector": field_selector,
        }
        request = delete(self._scope.collection(namespace), options, query)
        with self._scope.hints(namespace):
            await self._pipeline.send(request, timeout=timeout)

    # Parts.

    @overload
    def subresource(self, name: str) -> Subresource[JsonObject]: ...

    @overload
    def subresource(self, name: str, kind: type[S]) -> Subresource[S]: ...

    def subresource(self, name: str, kind: type[Any] = dict) -> Subresource[Any]:
        """Return a subresource such as `status` or `scale`; `kind` is what its documents are."""
        return Subresource(
            name=name, scope=self._scope, codec=codec_for(kind), pipeline=self._pipeline
        )

    def _list_request(self, options: ListOptions, namespace: str | None) -> Request:
        projection = self._codec.projection
        accept = requests.accept(f"{projection}List" if projection else "")
        return requests.get(self._scope.collection(namespace), options.query(), accept=accept)
