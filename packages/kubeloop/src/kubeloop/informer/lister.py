"""Reading from a store with selectors, by namespace and by name.

Objects are the stored ones, shared by all: treat them as read-only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

from kubeloop.client.errors import NotFound, Status, StatusDetails
from kubeloop.informer.store import NAMESPACE, StoreView
from kubeloop.objects.fields import FieldSelector, FieldSelectorLike, read_field
from kubeloop.objects.meta import Key, MetaAccess, make_key, split_key
from kubeloop.objects.selectors import LabelSelector, SelectorLike

T = TypeVar("T")


class _Listing(Generic[T]):
    """Common to both listers: list by selectors, in one namespace or, with the empty one, in all."""

    __slots__ = ("_access", "_namespace", "_resource", "_store")

    def __init__(
        self, store: StoreView[T], access: MetaAccess, *, resource: str, namespace: str = ""
    ) -> None:
        self._store = store
        self._access = access
        self._resource = resource
        self._namespace = namespace

    def list(
        self, selector: SelectorLike = "", *, field_selector: FieldSelectorLike = ""
    ) -> list[T]:
        """Return the objects that match both selectors.

        Field selectors know metadata.name and metadata.namespace of any object, and every dotted
        path of objects that are dictionaries or can become one. Raises SelectorError.
        """
        labels, fields = LabelSelector.parse(selector), FieldSelector.parse(field_selector)
        if labels.matches_nothing:
            return []
        found: Iterable[T] = self._candidates(fields)
        if not labels.is_everything:
            labels_of = self._access.labels
            found = (obj for obj in found if labels.matches(labels_of(obj)))
        if not fields.is_everything:
            found = (obj for obj in found if fields.matches(self._field_reader(obj)))
        return list(found)

    def _candidates(self, fields: FieldSelector) -> Iterable[T]:
        namespace = self._namespace or fields.exact("metadata.namespace")
        if not namespace:
            return self._store.list()
        if self._store.has_index(NAMESPACE):
            return self._store.by_index(NAMESPACE, namespace)
        namespace_of = self._access.namespace
        return (obj for obj in self._store.list() if namespace_of(obj) == namespace)

    def _field_reader(self, obj: T) -> Callable[[str], str]:
        def read(path: str) -> str:
            if path == "metadata.name":
                return self._access.name(obj)
            if path == "metadata.namespace":
                return self._access.namespace(obj)
            return read_field(_as_dict(obj, path), path)

        return read


class NamespaceLister(_Listing[T]):
    """The objects of one namespace; the empty one lists all, and finds objects without a namespace."""

    __slots__ = ()

    def find(self, name: str) -> T | None:
        """Return the object of that name, None if absent."""
        return self._store.get(make_key(self._namespace, name))

    def get(self, name: str) -> T:
        """Return the object of that name. Raises the client's `NotFound`."""
        obj = self.find(name)
        if obj is None:
            raise _not_found(self._resource, make_key(self._namespace, name))
        return obj


class Lister(_Listing[T]):
    """All objects of a store."""

    __slots__ = ()

    def namespace(self, namespace: str) -> NamespaceLister[T]:
        """Return a lister of one namespace."""
        return NamespaceLister(
            self._store, self._access, resource=self._resource, namespace=namespace
        )

    def find(self, namespace: str, name: str) -> T | None:
        """Return an object by namespace ("" if cluster-scoped) and name, None if absent."""
        return self.namespace(namespace).find(name)

    def get(self, namespace: str, name: str) -> T:
        """Return an object by namespace ("" if cluster-scoped) and name. Raises `NotFound`."""
        return self.namespace(namespace).get(name)


def _as_dict(obj: Any, path: str) -> dict[str, Any]:
    if isinstance(obj, dict):
        return obj
    to_dict = getattr(obj, "to_dict", None)
    if to_dict is None:
        raise TypeError(
            f"field {path!r} cannot be selected: a {type(obj).__name__} is not a dictionary;"
            " metadata.name and metadata.namespace always can"
        )
    result: dict[str, Any] = to_dict()
    return result


def _not_found(resource: str, key: Key) -> NotFound:
    return NotFound(
        Status(
            status="Failure",
            reason="NotFound",
            code=404,
            message=f'{resource} "{key}" not found',
            details=StatusDetails(name=split_key(key).name, kind=resource),
        )
    )
