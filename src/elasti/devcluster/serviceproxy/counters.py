"""How many connections a Service has seen."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(slots=True)
class Counters:
    """Connections of one Service: accepted from clients, relayed to pods, refused."""

    accepted: int = 0
    relayed: int = 0
    refused: int = 0
