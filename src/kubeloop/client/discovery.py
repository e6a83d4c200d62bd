"""Asks a server what it offers.

Two requests where the server has aggregated discovery (all since 1.26), one for every group and
version besides where it has not. A group whose own server is down is reported among the failures
and hides nothing else. Nothing is kept here; the mapper does that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from kubeloop.aio.parallel import parallelize_until
from kubeloop.client import request as requests
from kubeloop.client.calls import decode
from kubeloop.client.discovery_documents import (
    AGGREGATED,
    NOTHING,
    Discovered,
    ResourceInfo,
    parse_resources,
    parse_root,
)
from kubeloop.client.errors import Forbidden, KubeError, NotFound
from kubeloop.objects.gvk import GroupVersion

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kubeloop.client.sender import Sender

_CONCURRENCY = 10


class Discovery:
    """Reads the discovery documents of one server."""

    def __init__(self, sender: Sender) -> None:
        self._sender = sender

    async def fetch(self) -> Discovered:
        """Read everything anew. Raises `KubeError` where not even the roots can be read."""
        core, core_error = await self._root("/api")
        groups, groups_error = await self._root("/apis")
        if core_error is not None and groups_error is not None:
            raise core_error
        return core.joined(groups)

    async def server_version(self) -> str:
        """Return the server's own version, such as `v1.36.4`."""
        response = await self._sender.send(requests.get("/version"))
        return decode(response, msgspec.json.Decoder(_Version).decode).git_version

    async def _root(self, path: str) -> tuple[Discovered, KubeError | None]:
        """Read one root. An aggregated API server may have only one of the two."""
        try:
            response = await self._sender.send(requests.get(path, accept=AGGREGATED))
        except (NotFound, Forbidden) as error:
            return NOTHING, error
        found = decode(response, parse_root)
        if isinstance(found, Discovered):
            return found, None
        return await self._each_version(found), None

    async def _each_version(self, versions: Mapping[str, tuple[str, ...]]) -> Discovered:
        wanted = [GroupVersion(group, v) for group, listed in versions.items() for v in listed]
        found: dict[GroupVersion, tuple[ResourceInfo, ...]] = {}
        failures: dict[GroupVersion, str] = {}

        async def read(index: int) -> None:
            group_version = wanted[index]
            try:
                found[group_version] = await self._resources(group_version)
            except KubeError as error:
                failures[group_version] = str(error)

        await parallelize_until(_CONCURRENCY, len(wanted), read)
        ordered = [found.get(group_version, ()) for group_version in wanted]
        return Discovered(
            versions=versions,
            resources=tuple(info for infos in ordered for info in infos),
            failures=failures,
        )

    async def _resources(self, group_version: GroupVersion) -> tuple[ResourceInfo, ...]:
        response = await self._sender.send(requests.get(requests.group_path(group_version)))
        return decode(response, lambda body: parse_resources(body, group_version))


class _Version(msgspec.Struct, rename="camel"):
    git_version: str = ""
