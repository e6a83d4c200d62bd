"""Wait for an object: until it is as a condition wants it, or until it is gone.

    ready = await wait_for(deployments, "web", has_condition("Available"), timeout=120)
    await wait_until_deleted(pods, "web-0", timeout=60)

Both watch one object, so they need the verbs `get`, `list` and `watch`. A watch that ends is opened
again; what the server refuses for good (Forbidden, no such resource) is raised at once. A program
that waits for many objects, or for longer than minutes, uses an informer.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import msgspec

from kubeloop.client.errors import ApiError, Gone, KubeError, NotFound
from kubeloop.client.retry import server_delay
from kubeloop.objects.list_watch import DELETED, WatchEvent
from kubeloop.objects.meta import JsonObject

if TYPE_CHECKING:
    from kubeloop.client.resource import Resource

T = TypeVar("T")
ObjectCondition: TypeAlias = Callable[[T], Awaitable[bool] | bool]

_PAUSE = 1.0


def has_condition(kind: str, status: str = "True") -> ObjectCondition[Any]:
    """Whether `status.conditions` has an entry of that type with that status, as `kubectl wait` asks."""

    def holds(obj: Any) -> bool:
        return any(
            found.get("type") == kind and found.get("status") == status
            for found in _conditions(obj)
        )

    return holds


async def wait_for(
    resource: Resource[T],
    name: str,
    condition: ObjectCondition[T],
    *,
    namespace: str | None = None,
    timeout: float = 60.0,
) -> T:
    """Return the object as soon as it exists and the condition holds for it.

    The condition may be plain or `async`. Raises TimeoutError, which says what was last seen, and
    `KubeError` for what waiting cannot mend.
    """
    last = "it does not exist"
    try:
        async with asyncio.timeout(timeout):
            while True:
                async for event in _changes(resource, name, namespace, ""):
                    if event.type == DELETED:
                        last = "it was deleted"
                        continue
                    holds = condition(event.object)
                    if await holds if inspect.isawaitable(holds) else holds:
                        found: T = event.object
                        return found
                    last = _summary(event.object)
    except TimeoutError:
        raise TimeoutError(
            f"{resource.gvr} {name}: the condition did not hold in {timeout:g} s; last seen: {last}"
        ) from None


async def wait_until_deleted(
    resource: Resource[Any], name: str, *, namespace: str | None = None, timeout: float = 60.0
) -> None:
    """Return when the object is gone; one of the same name that was created since is another one.

    Raises TimeoutError, which names the finalizers that are left, and `KubeError`.
    """
    access, uid, left = resource.access, "", ""
    try:
        async with asyncio.timeout(timeout):
            while True:
                try:
                    found = await resource.get(name, namespace=namespace)
                except NotFound:
                    return
                uid = uid or access.uid(found)
                if access.uid(found) != uid:
                    return
                left = ", ".join(access.finalizers(found))
                version = access.version(found)
                async for event in _changes(resource, name, namespace, version):
                    if event.type == DELETED:
                        return
                    left = ", ".join(access.finalizers(event.object))
    except TimeoutError:
        why = f"its finalizers are {left}" if left else "it has no finalizers"
        raise TimeoutError(
            f"{resource.gvr} {name} was not deleted in {timeout:g} s; {why}"
        ) from None


async def _changes(
    resource: Resource[T], name: str, namespace: str | None, version: str
) -> AsyncIterator[WatchEvent[T]]:
    """Yield what happens to one object until the watch ends; rests after a failure that may pass."""
    try:
        async for event in resource.watch(
            field_selector=f"metadata.name={name}", namespace=namespace, resource_version=version
        ):
            yield event
    except Gone:
        return
    except KubeError as error:
        delay = server_delay(error)
        if isinstance(error, ApiError) and delay is None:
            raise
        await asyncio.sleep(_PAUSE if delay is None else delay)


def _conditions(obj: Any) -> list[JsonObject]:
    status = obj.get("status") if isinstance(obj, dict) else getattr(obj, "status", None)
    found = msgspec.to_builtins(status).get("conditions") if status else None
    return list(found or ())


def _summary(obj: Any) -> str:
    said = [f"{c.get('type')}={c.get('status')} {c.get('message', '')}" for c in _conditions(obj)]
    return "; ".join(part.strip() for part in said) or "it exists, without conditions"
