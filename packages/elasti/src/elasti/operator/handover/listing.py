"""The resolver's place in a Service's rotation: which resolvers are listed, and for how long.

A resolver is listed once it has confirmed that its port stands for this Service, on every port.
Each write is idempotent; none of them decides where the hand-over goes next.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

import msgspec

from elasti.api.names import FIELD_MANAGER, MANAGED_BY
from elasti.api.states import State
from elasti.logger import get_logger
from elasti.operator.handover.resolver_client import ResolverClient
from elasti.operator.model.children import adopted, resolver_slices, slice_differs
from elasti.operator.model.facts import Facts
from elasti.operator.model.records import ListingState
from elasti.operator.model.state import ServiceState
from elasti.operator.watch.resolvers import Resolvers
from kubeloop.client.client import Client
from kubeloop.client.errors import AlreadyExists, NotFound
from kubeloop.client.request import Preconditions
from kubeloop.objects.core import MANAGED_BY_LABEL, SLICES, EndpointSlice, ServiceEndpoint

_log = get_logger(__name__)


class SlicePublisher:
    """Puts resolvers into the rotation of Services, and takes them out. One for the leader."""

    def __init__(
        self, client: Client, resolver_client: ResolverClient, resolvers: Resolvers
    ) -> None:
        self._slices = client.resource(SLICES, EndpointSlice)
        self._resolver_client = resolver_client
        self._resolvers = resolvers

    async def publish(self, facts: Facts, state: ServiceState) -> None:
        """List every ready resolver that answers for this Service on all its ports.

        If none does, the published resolvers stay, except those that no longer exist.
        """
        assert facts.service is not None
        listed = await self._answering(facts, state.listing)
        state.listing.note_listing(listed, self._to_query(facts, state, listed))
        shown = listed
        if not facts.path.names_pods:
            shown = tuple(msgspec.structs.replace(one, target_ref=None) for one in listed)
        wanted = resolver_slices(facts.service, shown, facts.ports)
        present = {endpoint_slice.metadata.name: endpoint_slice for endpoint_slice in facts.slices}
        for endpoint_slice in wanted:
            await self._put(endpoint_slice, present.pop(endpoint_slice.metadata.name, None), state)
        for endpoint_slice in present.values():
            await (self._delete if wanted else self._empty)(endpoint_slice, state)
        state.listing.note_published(asyncio.get_running_loop().time())

    async def remove(self, slices: Iterable[EndpointSlice], state: ServiceState) -> None:
        """Take the resolver out of the rotation."""
        for endpoint_slice in slices:
            await self._delete(endpoint_slice, state)
        state.listing.forget()

    async def _answering(self, facts: Facts, listing: ListingState) -> tuple[ServiceEndpoint, ...]:
        ports = facts.ports.values()
        unverified = {
            (endpoint.place, port): endpoint.addresses[0]
            for endpoint in facts.resolvers
            for port in ports
            if (endpoint.place, port) not in listing.verified
        }
        answers = await asyncio.gather(
            *(
                self._resolver_client.owns(address, port, facts.namespace, facts.es.spec.service)
                for (_, port), address in unverified.items()
            )
        )
        listing.note_answers(facts.resolvers, dict(zip(unverified, answers, strict=True)))
        return tuple(
            endpoint
            for endpoint in facts.resolvers
            if all((endpoint.place, port) in listing.verified for port in ports)
        )

    def _to_query(
        self, facts: Facts, state: ServiceState, listed: Sequence[ServiceEndpoint]
    ) -> dict[str, ServiceEndpoint]:
        """Return every resolver that may have had traffic of this Service: all that are or were listed.

        While a park is decided on, that is every one since it began, there or not: what one that has
        left has seen cannot be known. Else it is those that still exist, if only on their way out.
        """
        published = {
            e.place: e for endpoint_slice in facts.slices for e in endpoint_slice.endpoints or ()
        }
        former = published | dict(state.listing.to_query)
        if state.current not in (State.ENGAGING, State.DRAINING, State.PARKING):
            former = {place: e for place, e in former.items() if self._exists(e)}
        return former | {endpoint.place: endpoint for endpoint in listed}

    def _exists(self, endpoint: ServiceEndpoint) -> bool:
        return any(map(self._resolvers.exists, endpoint.addresses))

    async def _put(
        self, wanted: EndpointSlice, present: EndpointSlice | None, state: ServiceState
    ) -> None:
        if present is not None and present.address_type != wanted.address_type:
            await self._delete(present, state)  # no write can change that
            present = None
        if present is None:
            try:
                written = await self._slices.create(wanted, field_manager=FIELD_MANAGER)
            except AlreadyExists:
                # One without our label, which no cache shows: ask for it next time.
                state.listing.recall(legacy_checked=False)
                raise
        elif slice_differs(present, wanted):
            onto = msgspec.structs.replace(wanted, metadata=adopted(wanted, present))
            written = await self._slices.replace(onto, field_manager=FIELD_MANAGER)
        else:
            return
        state.own_writes.wrote_slice(written)

    async def _empty(self, present: EndpointSlice, state: ServiceState) -> None:
        """If no resolver can be confirmed, keep only existing resolvers in our slice.

        KubeElasti's slice stays unchanged until there is something to put in its place.
        """
        if (present.metadata.labels or {}).get(MANAGED_BY_LABEL) != MANAGED_BY:
            return
        left = tuple(endpoint for endpoint in present.endpoints or () if self._exists(endpoint))
        if left == (present.endpoints or ()):
            return
        written = await self._slices.replace(
            msgspec.structs.replace(present, endpoints=left), field_manager=FIELD_MANAGER
        )
        state.own_writes.wrote_slice(written)

    async def _delete(self, endpoint_slice: EndpointSlice, state: ServiceState) -> None:
        meta = endpoint_slice.metadata
        try:
            await self._slices.delete(
                meta.name, namespace=meta.namespace, preconditions=Preconditions(uid=meta.uid)
            )
        except NotFound:
            _log.debug("slice is gone already", slice=meta.name, namespace=meta.namespace)
        state.own_writes.slices.deleted(meta.name, meta.resource_version)
