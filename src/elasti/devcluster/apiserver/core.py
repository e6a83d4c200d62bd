"""The server without its sockets: everything that answers calls, put together in one place."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elasti.devcluster.apiserver import status
from elasti.devcluster.apiserver.admission import NamespaceLifecycle
from elasti.devcluster.apiserver.auth import Gate
from elasti.devcluster.apiserver.catalog import builtin_registry
from elasti.devcluster.apiserver.discovery import Discovery
from elasti.devcluster.apiserver.endpoints import Endpoints
from elasti.devcluster.apiserver.faults import Faults
from elasti.devcluster.apiserver.identity import Stamps
from elasti.devcluster.apiserver.ownership.tracker import FieldTracker
from elasti.devcluster.apiserver.paths import Paths
from elasti.devcluster.apiserver.schema.builtin import BuiltinTypes
from elasti.devcluster.apiserver.schema.openapi import OpenApi
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
    ) -> None:
        self.store = store
        self.types = BuiltinTypes()
        self.registry = builtin_registry(self.types)
        self.stamps = Stamps(clock=clock)
        self.gate = Gate(authenticators=authenticators, authorizers=authorizers)
        self.faults = Faults(store)
        self.admission: list[Admission] = [NamespaceLifecycle(store)]
        self.writer = Writer(
            store=store,
            stamps=self.stamps,
            tracker=FieldTracker(self.stamps),
            admission=self.admission,
            observe=self._written,
        )
        self.endpoints = Endpoints(self.writer)
        self.paths = Paths(
            discovery=Discovery(self.registry),
            openapi=OpenApi(self.registry, self.types),
            faults=self.faults,
        )
        self.streams: dict[tuple[str, str], StreamHandler] = {}
        self.observers: list[Callable[[Call, Written], None]] = []

    def subresource(self, call: Call) -> StreamHandler | None:
        """Return the handler of a subresource that is more than an object, such as a log."""
        return self.streams.get((call.resource.plural, call.attributes.subresource))

    def answer(self, call: Call) -> Answer | Streaming:
        """Answer a call."""
        subresource = call.attributes.subresource
        if subresource and subresource not in call.served.subresources:
            raise status.no_such_path()
        return self.endpoints.answer(call)

    def _written(self, call: Call, written: Written) -> None:
        for observer in self.observers:
            observer(call, written)
