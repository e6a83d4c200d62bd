"""Make an object be as it should, with as few writes as possible."""

from __future__ import annotations

import copy
import enum
import inspect
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeAlias, TypeVar

from kubeloop.client.errors import NotFound
from kubeloop.objects.meta import access_for
from kubeloop.objects.patches import same_json

T = TypeVar("T")
Mutate: TypeAlias = Callable[[T], Awaitable[object] | object]


class ObjectApi(Protocol[T]):
    """The part of a `Resource` that this needs."""

    async def get(self, name: str, *, namespace: str | None = None) -> T:
        """Read one object; raises NotFound."""

    async def create(self, obj: T) -> T:
        """Create it."""

    async def replace(self, obj: T) -> T:
        """Write it whole; raises Conflict where it changed meanwhile."""


class WriteOutcome(enum.Enum):
    """What was written."""

    CREATED = "created"
    UPDATED = "updated"
    UNCHANGED = "unchanged"


async def create_or_update(api: ObjectApi[T], obj: T, mutate: Mutate[T]) -> tuple[T, WriteOutcome]:
    """Read the object that `obj` names, let `mutate` set what matters, and write if that changed it.

    Where there is none, `obj` itself is mutated and created. `mutate` works in place, on a copy of
    our own, and must leave name and namespace alone (ValueError). Returns the object as the server
    has it now. Raises Conflict where somebody else wrote meanwhile: try again later.
    """
    access = access_for(type(obj))
    name, namespace = access.name(obj), access.namespace(obj)
    try:
        found = await api.get(name, namespace=namespace)
    except NotFound:
        wanted = copy.deepcopy(obj)
        await _mutate(mutate, wanted)
        return await api.create(wanted), WriteOutcome.CREATED
    wanted = copy.deepcopy(found)
    await _mutate(mutate, wanted)
    if same_json(found, wanted):
        return found, WriteOutcome.UNCHANGED
    return await api.replace(wanted), WriteOutcome.UPDATED


async def _mutate(mutate: Mutate[T], obj: T) -> None:
    access = access_for(type(obj))
    before = access.key(obj)
    result = mutate(obj)
    if inspect.isawaitable(result):
        await result
    if access.key(obj) != before:
        raise ValueError(f"mutate renamed {before} to {access.key(obj)}; it must not")
