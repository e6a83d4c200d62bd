"""The ElastiServices of namespaces, as the objects they are: also those that no type of ours reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elasti.api.names import API_VERSION, FINALIZER, PLURAL
from kubeloop.client.errors import Forbidden, NotFound

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kubeloop.client import Client
    from kubeloop.objects.meta import JsonObject

RESOURCE = f"{API_VERSION}/{PLURAL}"
_MOST_NAMES = 5


async def elastiservices(client: Client, namespaces: Sequence[str]) -> list[JsonObject] | None:
    """Return the ElastiServices of namespaces, of all where none is named.

    None where nobody may look at all of them; without a definition there are none.
    """
    resource = client.resource(RESOURCE)
    try:
        return [
            item
            for namespace in namespaces or ("",)
            async for item in resource.items(namespace=namespace)
        ]
    except NotFound:
        return []
    except Forbidden:
        if namespaces:
            raise
        return None


def key_of(es: JsonObject) -> str:
    """Return how people name an ElastiService."""
    return f"{es['metadata']['namespace']}/{es['metadata']['name']}"


def is_held(es: JsonObject) -> bool:
    """Whether an operator of ours has to let go of it before it can be deleted."""
    return FINALIZER in (es["metadata"].get("finalizers") or ())


def some_of(found: Sequence[JsonObject]) -> str:
    """Name them, but not all where there are many."""
    names = ", ".join(key_of(es) for es in found[:_MOST_NAMES])
    more = len(found) - _MOST_NAMES
    return f"{names} and {more} more" if more > 0 else names
