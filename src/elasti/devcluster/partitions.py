"""Nodes that cannot reach the API server, on demand.

A partitioned node's requests get no answer until the partition is healed, and the watches it had
are gone: as when a cable is pulled, and not as when a server says no.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from elasti.devcluster.auth.authorizer import NODE_PREFIX

if TYPE_CHECKING:
    from elasti.devcluster.apiserver.auth import Credentials, User
    from elasti.devcluster.apiserver.faults import Faults


class Partitions:
    """Stands first in the row of authenticators; knows nobody, but lets some wait."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults
        self._cut: dict[str, asyncio.Event] = {}

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes that are cut off."""
        return tuple(self._cut)

    def cut(self, node: str) -> None:
        """Let a node hear nothing from now on. Other clients' watches begin anew."""
        if node not in self._cut:
            self._cut[node] = asyncio.Event()
            self._faults.drop_watches()

    def heal(self, node: str) -> None:
        """Let a node through again; what it asked meanwhile is answered now."""
        event = self._cut.pop(node, None)
        if event is not None:
            event.set()

    async def authenticate(self, credentials: Credentials) -> User | None:
        """Return None, after as long as the caller is cut off."""
        while self._cut:
            healed = self._cut.get(_node(credentials))
            if healed is None:
                break
            await healed.wait()
        return None


def _node(credentials: Credentials) -> str:
    subject = (credentials.certificate or {}).get("subject", ())
    names = [value for part in subject for key, value in part if key == "commonName"]
    name = names[0] if names else ""
    return name.removeprefix(NODE_PREFIX) if name.startswith(NODE_PREFIX) else ""
