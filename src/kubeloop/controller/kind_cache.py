"""The informers behind cached reads of one kind: one over everything, or one for each namespace."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from kubeloop.objects.lazy import LazyObject

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kubeloop.informer.factory import SharedInformerFactory
    from kubeloop.informer.indexers import IndexFunction
    from kubeloop.informer.intake import Transform
    from kubeloop.informer.shared_informer import SharedInformer
    from kubeloop.objects.fields import FieldSelector, FieldSelectorLike
    from kubeloop.objects.gvk import GroupVersionResource
    from kubeloop.objects.names import Key
    from kubeloop.objects.selectors import LabelSelector, SelectorLike

_TEN_HOURS = 36_000.0


class CacheError(Exception):
    """A read that the cache cannot answer; the message says what would help."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CacheOptions:
    """What of a kind is cached.

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
        """Wait for the first lists. Raises CacheError where an informer stopped before."""
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
