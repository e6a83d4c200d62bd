"""Reads that cost the API server nothing: get and list from informers.

    reader = CachedReader(factory, options={"v1/secrets": CacheOptions(namespaces=("prod",))})
    pod = await reader.get("v1/pods", "web-0", namespace="default")             # a dictionary
    meta = await reader.get("v1/pods", "web-0", namespace="default", kind=PartialObjectMetadata)

The first read of a kind makes its informers (one over everything, or one for each namespace) and
waits for their lists. One store serves every view of a kind: objects are kept as JSON with decoded
metadata, and a read decodes what it is asked for into an object of the caller's own. Asking for
`LazyObject` gives the stored object itself, which is shared and read-only.

What a cache cannot do: it may lag behind the server (`ConsistencyGuard` is the remedy); field
selectors must be exact and need an index (`index_field`); there are no continue tokens, and a
limit keeps an arbitrary part.
"""

from __future__ import annotations

import dataclasses
import random
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, Unpack, overload

from kubeloop.objects.fields import FieldSelector, FieldSelectorLike
from kubeloop.objects.gvk import GroupVersionResource
from kubeloop.objects.lazy import LazyObject
from kubeloop.objects.selectors import LabelSelector, SelectorLike

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kubeloop.aio.backoff import Random
    from kubeloop.client import Client
    from kubeloop.client.resource import Resource
    from kubeloop.informer.factory import SharedInformerFactory
    from kubeloop.informer.reflector.events import Transform
    from kubeloop.informer.shared_informer import SharedInformer
    from kubeloop.informer.store import IndexFunction
    from kubeloop.objects.meta import JsonObject, Key


_TEN_HOURS = 36_000.0


T = TypeVar("T")


class CacheError(Exception):
    """A read that the cache cannot answer; the message says what would help."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CacheOptions:
    """The part of a kind that is cached.

    `namespaces`: a watch for each; empty for one over all of them. The selectors and the transform
    are the informer's. `resync`: how often handlers of these informers see everything again, in
    seconds, give or take a tenth so that many programs do not do it at once; 0 is never.
    """

    namespaces: tuple[str, ...] = ()
    label_selector: SelectorLike = ""
    field_selector: FieldSelectorLike = ""
    transform: Transform | None = None
    resync: float = _TEN_HOURS


class KindCache:
    """The cached part of one kind."""

    def __init__(
        self,
        factory: SharedInformerFactory,
        resource: GroupVersionResource,
        options: CacheOptions,
        *,
        spread: float,
    ) -> None:
        """Make the informers and start them; `spread` in [0, 1) places the resync in its range."""
        self._factory = factory
        self._resource = resource
        self._informers: dict[str, SharedInformer[LazyObject]] = {
            namespace: factory.informer(
                resource,
                LazyObject,
                namespace=namespace,
                label_selector=options.label_selector,
                field_selector=options.field_selector,
                transform=options.transform,
                resync=options.resync * (0.9 + 0.2 * spread),
            )
            for namespace in options.namespaces or ("",)
        }
        factory.start()

    async def wait_synced(self) -> None:
        """Wait for the first lists. Raises CacheError if an informer stopped before."""
        for informer in self._informers.values():
            if not await informer.wait_synced():
                raise CacheError(f"the informer of {self._resource} stopped before it had synced")

    def add_indexers(self, functions: Mapping[str, IndexFunction[LazyObject]]) -> None:
        """Index fields that may be selected by; functions return the values of an object."""
        named = {_index(field): function for field, function in functions.items()}
        for informer in self._informers.values():
            informer.add_indexers(named)

    def get(self, namespace: str, name: str) -> LazyObject:
        """Return the stored object. Raises the client's `NotFound`, and CacheError."""
        informer = self._informers.get("") or self._in_namespace(namespace)
        return informer.lister.get(namespace, name)

    def select(
        self, namespace: str, labels: LabelSelector, fields: FieldSelector
    ) -> list[LazyObject]:
        """Return the stored objects that match. Raises CacheError."""
        found: list[LazyObject] = []
        for informer in self._holding(namespace):
            if fields.is_everything:
                found += informer.lister.namespace(namespace).list(labels)
            else:
                found += self._by_fields(informer, namespace, labels, fields)
        return found

    async def release(self) -> None:
        """Give the informers up."""
        for informer in self._informers.values():
            await self._factory.release(informer)

    def _holding(self, namespace: str) -> Iterable[SharedInformer[LazyObject]]:
        if not namespace or "" in self._informers:
            return self._informers.values()
        return (self._in_namespace(namespace),)

    def _in_namespace(self, namespace: str) -> SharedInformer[LazyObject]:
        informer = self._informers.get(namespace)
        if informer is None:
            raise CacheError(
                f"{self._resource} is cached in {', '.join(self._informers)} only, not in"
                f" {namespace or 'all namespaces'}; add it to the CacheOptions' namespaces"
            )
        return informer

    def _by_fields(
        self,
        informer: SharedInformer[LazyObject],
        namespace: str,
        labels: LabelSelector,
        fields: FieldSelector,
    ) -> list[LazyObject]:
        objects = filter(None, map(informer.store.get, self._keys(informer, fields)))
        return [
            obj
            for obj in objects
            if namespace in ("", obj.metadata.namespace) and labels.matches(obj.metadata.labels)
        ]

    def _keys(self, informer: SharedInformer[LazyObject], fields: FieldSelector) -> Iterable[Key]:
        """The keys that every term's index has, in the first one's order."""
        kept: dict[Key, None] | None = None
        for term in fields.terms:
            if term.negated or not informer.store.has_index(_index(term.field)):
                raise CacheError(
                    f"field selector {str(term)!r} cannot be answered from the cache of"
                    f" {self._resource}: terms must be exact and need index_field({term.field!r})"
                )
            keys = informer.store.index_keys(_index(term.field), term.value)
            kept = dict.fromkeys(keys if kept is None else filter(kept.__contains__, keys))
        return kept or ()


def _index(field: str) -> str:
    return f"field:{field}"


class CacheQuery(TypedDict, total=False):
    """The objects that a list returns; see `CachedReader.list`."""

    namespace: str
    selector: SelectorLike
    field_selector: FieldSelectorLike
    limit: int


class CachedReader:
    """Reads through informers of a factory, made as they are needed.

    `options` say what of a kind is cached, by resource; `default` is for the others. Kinds named in
    `uncached` are read from the server through `live`. With `create=False` a kind that is not in
    `options` is an error instead of a new informer.
    """

    def __init__(
        self,
        factory: SharedInformerFactory,
        *,
        options: Mapping[str, CacheOptions] | None = None,
        default: CacheOptions | None = None,
        live: Client | None = None,
        uncached: Iterable[str] = (),
        create: bool = True,
        rand: Random = random.random,
    ) -> None:
        self._factory = factory
        self._options = {
            GroupVersionResource.parse(name): value for name, value in (options or {}).items()
        }
        self._default = default or CacheOptions()
        self._live = live
        self._uncached = frozenset(map(GroupVersionResource.parse, uncached))
        self._create = create
        self._rand = rand
        self._indexers: dict[GroupVersionResource, dict[str, IndexFunction[LazyObject]]] = {}
        self._caches: dict[GroupVersionResource, KindCache] = {}
        if self._uncached and live is None:
            raise ValueError("uncached kinds need `live`, a client to read them with")

    @overload
    async def get(
        self, resource: str | GroupVersionResource, name: str, *, namespace: str = ""
    ) -> JsonObject: ...

    @overload
    async def get(
        self, resource: str | GroupVersionResource, name: str, *, namespace: str = "", kind: type[T]
    ) -> T: ...

    async def get(
        self,
        resource: str | GroupVersionResource,
        name: str,
        *,
        namespace: str = "",
        kind: type[Any] = dict,
    ) -> Any:
        """Return an object, decoded as `kind`. Raises the client's `NotFound`, and CacheError."""
        gvr = GroupVersionResource.parse(resource)
        if (live := self._live_objects(gvr, kind)) is not None:
            return await live.get(name, namespace=namespace or None)
        cache = await self._cache(gvr)
        return _view(cache.get(namespace, name), kind)

    @overload
    async def list(
        self, resource: str | GroupVersionResource, **query: Unpack[CacheQuery]
    ) -> list[JsonObject]: ...

    @overload
    async def list(
        self, resource: str | GroupVersionResource, *, kind: type[T], **query: Unpack[CacheQuery]
    ) -> list[T]: ...

    async def list(
        self,
        resource: str | GroupVersionResource,
        *,
        namespace: str = "",
        selector: SelectorLike = "",
        field_selector: FieldSelectorLike = "",
        limit: int = 0,
        kind: type[Any] = dict,
    ) -> list[Any]:
        """Return the objects that match, at most `limit` of them where given. Raises CacheError."""
        gvr = GroupVersionResource.parse(resource)
        labels, fields = LabelSelector.parse(selector), FieldSelector.parse(field_selector)
        if (live := self._live_objects(gvr, kind)) is not None:
            items = live.items(
                selector=labels, field_selector=str(fields), namespace=namespace or None
            )
            return (await items.to_list())[: limit or None]
        cache = await self._cache(gvr)
        found = cache.select(namespace, labels, fields)
        return [_view(obj, kind) for obj in found[: limit or None]]

    def index_field(
        self, resource: str | GroupVersionResource, field: str, function: IndexFunction[LazyObject]
    ) -> None:
        """Let a field be selected by; `function` returns an object's values of it.

        Never waits, and makes no informer. Raises ValueError for a field that is indexed already.
        """
        gvr = GroupVersionResource.parse(resource)
        indexers = self._indexers.setdefault(gvr, {})
        if field in indexers:
            raise ValueError(f"field {field!r} of {gvr} is indexed already")
        indexers[field] = function
        if gvr in self._caches:
            self._caches[gvr].add_indexers({field: function})

    async def aclose(self) -> None:
        """Give up the informers; those that are used nowhere else stop."""
        caches, self._caches = self._caches, {}
        for cache in caches.values():
            await cache.release()

    async def _cache(self, gvr: GroupVersionResource) -> KindCache:
        cache = self._caches.get(gvr)
        if cache is None:
            cache = self._caches[gvr] = self._make_cache(gvr)
        await cache.wait_synced()
        return cache

    def _make_cache(self, gvr: GroupVersionResource) -> KindCache:
        if not self._create and gvr not in self._options:
            raise CacheError(f"{gvr} is not cached; add it to the reader's options")
        options = self._options.get(gvr, self._default)
        cache = KindCache(self._factory, gvr, options, spread=self._rand())
        cache.add_indexers(self._indexers.get(gvr, {}))
        return cache

    def _live_objects(self, gvr: GroupVersionResource, kind: type[Any]) -> Resource[Any] | None:
        if self._live is None or gvr not in self._uncached:
            return None
        return self._live.resource(gvr, kind)


def _view(obj: LazyObject, kind: type[Any]) -> Any:
    if kind is LazyObject:
        return obj
    return obj.to_dict() if issubclass(kind, dict) else obj.decode(kind)
