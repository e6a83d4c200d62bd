"""Waiting for a scripted server to notice that its clients have gone."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kubeloop.testing.scripted_server import ScriptedServer


async def all_left(server: ScriptedServer) -> None:
    """Wait until the server has seen every client go, even those that left in a handshake."""
    if serving := list(server._connections):
        await asyncio.wait(serving)
