"""Which objects a controller owns: those it controls, those it may adopt, those to let go. Pure."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from kubeloop.objects.meta import STRUCT_ACCESS
from kubeloop.objects.owners import controller_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kubeloop.objects.selectors import LabelSelector

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Claims(Generic[T]):
    """The outcome. What is to be adopted is not in `owned` yet."""

    owned: tuple[T, ...] = ()
    adopt: tuple[T, ...] = ()
    release: tuple[T, ...] = ()


def claim(owner: Any, selector: LabelSelector, candidates: Iterable[T]) -> Claims[T]:
    """Sort the candidates by whether they are the owner's.

    An owner that is being deleted keeps what it has and neither adopts nor releases.
    """
    uid, deleting = STRUCT_ACCESS.uid(owner), STRUCT_ACCESS.is_deleting(owner)
    owned: list[T] = []
    adopt: list[T] = []
    release: list[T] = []
    for item in candidates:
        matches = selector.matches(STRUCT_ACCESS.labels(item))
        controller = controller_of(STRUCT_ACCESS.owners(item))
        if controller is not None:
            if controller.uid == uid and matches:
                owned.append(item)
            elif controller.uid == uid and not deleting:
                release.append(item)
        elif matches and not deleting and not STRUCT_ACCESS.is_deleting(item):
            adopt.append(item)
    return Claims(owned=tuple(owned), adopt=tuple(adopt), release=tuple(release))


def controller_index(obj: Any) -> list[str]:
    """Index an object by its controller's uid; one that has none, by its namespace."""
    owner = controller_of(STRUCT_ACCESS.owners(obj))
    return [owner.uid] if owner is not None else [orphans_of(STRUCT_ACCESS.namespace(obj))]


def orphans_of(namespace: str) -> str:
    """Return the index value of the objects of a namespace that nobody controls."""
    return f"orphans/{namespace}"
