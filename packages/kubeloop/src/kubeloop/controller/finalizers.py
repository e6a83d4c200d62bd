"""Finalizers: what must be done before an object may go.

`Finalizers` decides and does the work; the caller writes. `FinalizerResult.patch` is that write:
a JSON patch which tests what it changes (a removed finalizer at its very index, the resourceVersion
for an added one), so that a concurrent edit makes it fail instead of removing something else. A
server answers a failed test with `Invalid`; reconcile again then.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Generic, TypeAlias, TypeVar

from kubeloop.objects.meta import access_for
from kubeloop.objects.patches import JsonPatch, pointer

T = TypeVar("T")
Finalize: TypeAlias = Callable[[T], Awaitable[object] | object]

_PATH = ("metadata", "finalizers")


@dataclasses.dataclass(frozen=True, slots=True)
class FinalizerResult:
    """The finalizers that an object should have now, and the errors of those that failed."""

    finalizers: tuple[str, ...]
    patch: JsonPatch | None = None
    errors: tuple[Exception, ...] = ()

    @property
    def updated(self) -> bool:
        """Whether there is something to write."""
        return self.patch is not None

    def check(self) -> None:
        """Raise the errors, all of them, after what succeeded was written."""
        if self.errors:
            # A log line shows only this text.
            raise ExceptionGroup(f"finalizers failed: {[*self.errors]}", self.errors)


class Finalizers(Generic[T]):
    """The finalizers of one controller, by their names in `metadata.finalizers`."""

    def __init__(self, finalizers: Mapping[str, Finalize[T]] | None = None) -> None:
        self._finalizers: dict[str, Finalize[T]] = {}
        for name, finalize in (finalizers or {}).items():
            self.register(name, finalize)

    def register(self, name: str, finalize: Finalize[T]) -> None:
        """Add a finalizer, plain or `async`. Raises ValueError if the name is taken."""
        if name in self._finalizers:
            raise ValueError(f"finalizer {name!r} is registered already")
        self._finalizers[name] = finalize

    async def finalize(self, obj: T) -> FinalizerResult:
        """Do what the object's state asks for; the object itself is not changed.

        Alive, it should have all our finalizers. Going, each of ours that it has is run, and taken
        off if it succeeded; one that fails stays, and does not keep the others from running.
        """
        access = access_for(type(obj))
        present = tuple(access.finalizers(obj))
        if not access.is_deleting(obj):
            missing = [name for name in self._finalizers if name not in present]
            return FinalizerResult(
                (*present, *missing), add_finalizers(present, missing, access.version(obj))
            )
        return await self._run(obj, present)

    async def _run(self, obj: T, present: tuple[str, ...]) -> FinalizerResult:
        done, errors = [], []
        for name, finalize in self._finalizers.items():
            if name in present:
                error = await _attempt(name, finalize, obj)
                if error is None:
                    done.append(name)
                else:
                    errors.append(error)
        left = tuple(name for name in present if name not in done)
        return FinalizerResult(left, remove_finalizers(present, done), tuple(errors))


def add_finalizers(
    present: Sequence[str], missing: Sequence[str], resource_version: str
) -> JsonPatch | None:
    """Return the patch that adds finalizers to an object of that version; None for nothing."""
    if not missing:
        return None
    test = {"op": "test", "path": pointer("metadata", "resourceVersion"), "value": resource_version}
    add = {"op": "add", "path": pointer(*_PATH), "value": [*present, *missing]}
    return JsonPatch([test, add] if resource_version else [add])


def remove_finalizers(present: Sequence[str], gone: Sequence[str]) -> JsonPatch | None:
    """Return the patch that removes finalizers, each tested at its index; None for nothing."""
    operations: list[dict[str, Any]] = []
    # From the end, so that a removal does not move what is still to be removed.
    for index, name in reversed(list(enumerate(present))):
        if name in gone:
            path = pointer(*_PATH, index)
            operations.append({"op": "test", "path": path, "value": name})
            operations.append({"op": "remove", "path": path})
    return JsonPatch(operations) if operations else None


async def _attempt(name: str, finalize: Finalize[T], obj: T) -> Exception | None:
    try:
        result = finalize(obj)
        if inspect.isawaitable(result):
            await result
    except Exception as error:  # noqa: BLE001 -- collected, so that the other finalizers run too
        error.add_note(f"in finalizer {name}")
        return error
    return None
