"""Which path a call means: the resource, the namespace it is bound to, and what is known of both.

What a resource is (namespaced or not) is known only if discovery was asked. Where it is, a missing
or a superfluous namespace is refused before anything is sent; where it is not, the server's 404 or
405 gets a note that says what is likely wrong.
"""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING

from kubeloop.client.errors import MethodNotAllowed, NotFound
from kubeloop.client.request import Place

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kubeloop.objects.gvk import GroupVersionResource


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ResourceScope:
    """A resource, perhaps bound to a namespace. `namespaced` is None where nobody asked."""

    gvr: GroupVersionResource
    namespace: str = ""
    namespaced: bool | None = None

    def __post_init__(self) -> None:
        # Fails here, where the caller wrote it, and not at the first request.
        _ = Place(self.gvr, self.namespace).collection
        if self.namespaced is False and self.namespace:
            raise ValueError(
                f"{self.gvr} is cluster-scoped: its objects have no namespace,"
                f" but {self.namespace!r} was given"
            )

    def place(self, namespace: str | None, own: str = "") -> Place:
        """Return where one object is; `own` is the namespace that the object itself names."""
        if namespace and own and namespace != own:
            raise ValueError(
                f"{self.gvr}: namespace={namespace!r} was asked for, but the object's"
                f" metadata.namespace is {own!r}"
            )
        chosen = namespace or own or self.namespace
        if self.namespaced and not chosen:
            raise ValueError(
                f"{self.gvr} is namespaced: pass namespace=, bind the resource with"
                " within(NAMESPACE), or set metadata.namespace"
            )
        if self.namespaced is False and chosen:
            raise ValueError(f"{self.gvr} is cluster-scoped: leave namespace {chosen!r} out")
        return Place(self.gvr, chosen)

    def collection(self, namespace: str | None) -> str:
        """Return the path of the objects of a namespace, or of all; None means as bound."""
        return Place(self.gvr, self.namespace if namespace is None else namespace).collection

    @contextlib.contextmanager
    def hints(self, namespace: str | None) -> Iterator[None]:
        """Explain a 404 or a 405 that is about the path and not about the object."""
        try:
            yield
        except (NotFound, MethodNotAllowed) as error:
            details = error.status.details
            if not (namespace or self.namespace) and not (details and details.name):
                error.add_note(
                    f"no namespace was given: if {self.gvr.resource} are namespaced, pass namespace="
                )
            raise

    def __str__(self) -> str:
        return f"{self.gvr} in {self.namespace}" if self.namespace else str(self.gvr)
