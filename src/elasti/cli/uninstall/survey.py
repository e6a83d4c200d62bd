"""What there is to remove, and what of it must stay because somebody else needs it.

Everything is read from the cluster, nothing is remembered: an uninstall that was killed half-way
finds, when it is called again, just what is left to do.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from elasti.api.names import GROUP, PLURAL
from elasti.cli.install.elastiservices import elastiservices, is_held, key_of, some_of
from elasti.cli.install.finding import installed, installed_in, objects_of
from elasti.cli.install.parts import MANAGER
from kubeloop.client.errors import Forbidden, NotFound

if TYPE_CHECKING:
    from collections.abc import Mapping

    from elasti.cli.install.finding import Found, Installed
    from kubeloop.client import Client
    from kubeloop.objects.meta import JsonObject

DEFINITIONS = "apiextensions.k8s.io/v1/customresourcedefinitions"
DEFINITION = f"{PLURAL}.{GROUP}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """What was found.

    watches: the installation's namespaces, empty for all. variables: its operator's, if it has one.
    needed_by: why the definition cannot go, for people; empty where it can. has_definition: whether
    there is one that was installed with the programs.
    """

    namespace: str
    watches: tuple[str, ...]
    elastiservices: tuple[JsonObject, ...]
    objects: tuple[Found, ...]
    has_definition: bool
    needed_by: str = ""
    foreign_definition: bool = False
    variables: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def is_done(self, *, keep: bool) -> bool:
        """Whether nothing is left to remove; to let go of, where ElastiServices are kept."""
        if self.objects:
            return False
        if keep:
            return not any(map(is_held, self.elastiservices))
        goes = self.has_definition and not self.needed_by
        return not (self.elastiservices or goes)


async def survey(client: Client, namespace: str) -> Survey:
    """Look at an installation. Raises KubeError."""
    ours = await installed_in(client, namespace)
    others = [item for item in await installed(client) if item.namespace != namespace]
    watches = ours.watches if ours else ()
    everywhere = await elastiservices(client, ())
    objects = [item async for item in objects_of(client, namespace, watches)]
    mine = await _mine(client, ours, others, everywhere)
    definition = await _definition(client)
    labels = (definition or {}).get("metadata", {}).get("labels") or {}
    foreign = definition is not None and labels.get("app.kubernetes.io/managed-by") != MANAGER
    return Survey(
        namespace=namespace,
        watches=watches,
        elastiservices=tuple(mine),
        objects=tuple(objects),
        has_definition=definition is not None and not foreign,
        needed_by=_needed_by(others, everywhere, mine),
        foreign_definition=foreign,
        variables=ours.variables if ours else {},
    )


async def _mine(
    client: Client,
    ours: Installed | None,
    others: list[Installed],
    everywhere: list[JsonObject] | None,
) -> list[JsonObject]:
    """Return the ElastiServices that end with this installation."""
    if ours is not None and ours.watches:
        return await elastiservices(client, ours.watches) or []
    if ours is None and others:
        return []
    return everywhere or []


async def _definition(client: Client) -> JsonObject | None:
    try:
        return await client.resource(DEFINITIONS).get(DEFINITION)
    except (NotFound, Forbidden):
        return None


def _needed_by(
    others: list[Installed], everywhere: list[JsonObject] | None, mine: list[JsonObject]
) -> str:
    if others:
        places = ", ".join(sorted(item.namespace for item in others))
        return f"another installation needs it (namespace {places})"
    if everywhere is None:
        return "nobody may see here whether others have ElastiServices"
    known = {key_of(es) for es in mine}
    left = [es for es in everywhere if key_of(es) not in known]
    if not left:
        return ""
    return f"ElastiServices outside of this installation would be lost with it: {some_of(left)}"
