"""ElastiServices for commands: read and asked for by name, with errors that help.

An ElastiService that is not there, and a cluster that has no ElastiServices at all, are both 404 to
the server; here they are two different failures with two different remedies.
"""

from __future__ import annotations

import contextlib
import difflib
from typing import TYPE_CHECKING

from elasti.api.names import API_VERSION, PLURAL
from elasti.api.types import ElastiService
from elasti.cli.exits import ExitCode, Failure
from elasti.cli.failures import is_not_installed, not_installed
from kubeloop.client.errors import KubeError, NotFound

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kubeloop.client import Client, Resource
    from kubeloop.objects.patches import Patch

RESOURCE = f"{API_VERSION}/{PLURAL}"
FIELD_MANAGER = "elasti-cli"
_MOST_NAMES = 8


class ElastiServices:
    """The ElastiServices of one namespace; of all of them where it is empty."""

    def __init__(self, client: Client, namespace: str) -> None:
        self._objects: Resource[ElastiService] = client.resource(
            RESOURCE, ElastiService, namespace=namespace
        )
        self.namespace = namespace

    @property
    def resource(self) -> Resource[ElastiService]:
        """The resource itself, for watches."""
        return self._objects

    async def all(self) -> list[ElastiService]:
        """Return all, by namespace and name. Raises Failure or KubeError."""
        with definition_needed():
            found = [item async for item in self._objects.items()]
        return sorted(found, key=lambda es: (es.metadata.namespace, es.metadata.name))

    async def get(self, name: str) -> ElastiService:
        """Return one. Raises Failure or KubeError."""
        try:
            with definition_needed():
                return await self._objects.get(name)
        except NotFound:
            raise await self._unknown(name) from None

    async def named(self, names: tuple[str, ...]) -> list[ElastiService]:
        """Return those named, in that order; all where none is. Raises Failure or KubeError."""
        if not names:
            return await self.all()
        return [await self.get(name) for name in dict.fromkeys(names)]

    async def patch(self, name: str, patch: Patch) -> ElastiService:
        """Change one. Raises Failure or KubeError."""
        try:
            with definition_needed():
                return await self._objects.patch(name, patch, field_manager=FIELD_MANAGER)
        except NotFound:
            raise await self._unknown(name) from None

    async def _unknown(self, name: str) -> Failure:
        try:
            others = [es.metadata.name for es in await self.all()]
        except KubeError:
            others = []
        return Failure(ExitCode.NOT_FOUND, no_such(name, self.namespace, others))


def no_such(name: str, namespace: str, others: list[str]) -> str:
    """Say that there is no such ElastiService, and what there is."""
    near = difflib.get_close_matches(name, others, n=3) or others[:_MOST_NAMES]
    there = (
        f"; there is {', '.join(near)}" if near else "; -n names another, elasti get -A shows all"
    )
    return f"there is no ElastiService {name} in namespace {namespace}{there}"


@contextlib.contextmanager
def definition_needed() -> Iterator[None]:
    """Turn the 404 of a server without our definition into the failure that says so."""
    try:
        yield
    except NotFound as error:
        if is_not_installed(error):
            raise not_installed() from error
        raise
