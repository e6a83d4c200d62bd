"""The server without its sockets: everything that answers calls, put together in one place."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elasti.devcluster.apiserver import status
from elasti.devcluster.apiserver.admission import NamespaceLifecycle
from elasti.devcluster.apiserver.allocation import ServiceAddresses
from elasti.devcluster.apiserver.auth import Gate
from elasti.devcluster.apiserver.catalog import builtin_registry
from elasti.devcluster.apiserver.custom.controller import (
    CleanupFinalizer,
    DefinitionController,
    TerminatingDefinitions,
)
from elasti.devcluster.apiserver.discovery import Discovery
from elasti.devcluster.apiserver.endpoints import Endpoints
from elasti.devcluster.apiserver.faults import Faults
from elasti.devcluster.apiserver.identity import Stamps
from elasti.devcluster.apiserver.ownership.tracker import FieldTracker
from elasti.devcluster.apiserver.paths import Paths
from elasti.devcluster.apiserver.schema.builtin import BuiltinTypes
from elasti.devcluster.apiserver.schema.openapi import OpenApi
from elasti.devcluster.apiserver.subresources.pods import Binding, Eviction, Finalize
from elasti.devcluster.apiserver.subresources.reviews import Reviews
from elasti.devcluster.apiserver.subresources.scale import Scale
from elasti.devcluster.apiserver.writes import Writer, Written

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from aiohttp import web

    from elasti.devcluster.apiserver.admission import Admission
    from elasti.devcluster.apiserver.answers import Answer, Streaming
    from elasti.devcluster.apiserver.auth import Authenticator, Authorizer
    from elasti.devcluster.apiserver.calls import Call
    from elasti.devcluster.apiserver.storage import Store
    from kubeloop.aio.clock import Clock

    StreamHandler = Callable[[Call, web.BaseRequest], Awaitable[web.StreamResponse]]


class Core:
    """What answers. The parts are public: later layers add authorizers, plugins, subresources."""

    def __init__(
        self,
        *,
        store: Store,
        clock: Clock,
        authenticators: Sequence[Authenticator],
        authorizers: Sequence[Authorizer],
        service_network: str,
    ) -> None:
        self.store = store
        self.types = BuiltinTypes()
        self.registry = builtin_registry(self.types)
        self.stamps = Stamps(clock=clock)
        self.gate = Gate(authenticators=authenticators, authorizers=authorizers)
        self.faults = Faults(store)
        self.admission: list[Admission] = [
            NamespaceLifecycle(store),
            CleanupFinalizer(),
            TerminatingDefinitions(store),
        ]
        self.writer = Writer(
            store=store,
            stamps=self.stamps,
            tracker=FieldTracker(self.stamps),
            admission=self.admission,
            allocators=[ServiceAddresses(store, network=service_network)],
            observe=self._written,
        )
        self.endpoints = Endpoints(self.writer)
        self.paths = Paths(
            discovery=Discovery(self.registry),
            openapi=OpenApi(self.registry, self.types),
            faults=self.faults,
        )
        self.reviews = Reviews(self.gate)
        self._subresources: dict[str, Callable[[Call], Answer]] = {
            "scale": Scale(self.writer).answer,
            "binding": Binding(self.writer).answer,
            "eviction": Eviction(self.writer).answer,
            "finalize": Finalize(self.writer).answer,
            "token": _no_tokens,
        }
        self.streams: dict[tuple[str, str], StreamHandler] = {}
        self.definitions = DefinitionController(
            writer=self.writer, registry=self.registry, types=self.types
        )
        self.observers: list[Callable[[Call, Written], None]] = [self.definitions.observe]

    def serve(self, subresource: str, handler: Callable[[Call], Answer]) -> None:
        """Answer a subresource with a handler, in place of the one before."""
        self._subresources[subresource] = handler

    def subresource(self, call: Call) -> StreamHandler | None:
        """Return the handler of a subresource that is more than an object, such as a log."""
        return self.streams.get((call.resource.plural, call.attributes.subresource))

    def answer(self, call: Call) -> Answer | Streaming:
        """Answer a call."""
        subresource = call.attributes.subresource
        if subresource and subresource not in call.served.subresources:
            raise _no_such_subresource(call.resource.plural, subresource)
        special = self._subresources.get(subresource)
        return special(call) if special is not None else self.endpoints.answer(call)

    def _written(self, call: Call, written: Written) -> None:
        for observer in self.observers:
            observer(call, written)


# What a real cluster has and this one has not; the remedy, where it is not plain.
_NOT_HERE = {
    "exec": "a pod is a process of this machine: run the command here",
    "attach": "a pod is a process of this machine; its output is in its log",
    "portforward": "connect to the pod's address itself: it is one of this machine's",
    "proxy": "connect to the pod's or the Service's address itself: it is one of this machine's",
}


def _no_such_subresource(plural: str, name: str) -> status.StatusError:
    remedy = _NOT_HERE.get(name) if plural in ("pods", "services", "nodes") else None
    if remedy is None:
        return status.no_such_path()
    return status.no_such_path(f"a development cluster does not serve {plural}/{name}; {remedy}")


def _no_tokens(call: Call) -> Answer:
    """Stand in until an issuer of ServiceAccount tokens registers its own handler."""
    raise status.failure(
        501,
        "NotImplemented",
        "this server issues no ServiceAccount tokens: no issuer is configured",
    )
