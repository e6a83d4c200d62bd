"""Triggers that ask the target's own pods: no Prometheus needed.

Every pod's `/metrics` is read, one metric summed. A counter is compared by its rate: by how much it
grew since the last reading, pod by pod, so that a restart (the counter begins anew) or a pod that came
meanwhile counts for what it has. A pod that cannot be read, or that went away since and took with it
what it knew, leaves the rate unknown: an error, which never lets a target sleep.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from typing import TYPE_CHECKING

import aiohttp
from yarl import URL

from elasti.scaling.decide import Reading
from elasti.scaling.triggers.bodies import TooLong, whole_body
from elasti.scaling.triggers.exposition import NotExposition, total

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence

    from elasti.api.triggers import PodsMetadata

_TIMEOUT = 5.0
_MOST_BYTES = 16 << 20
_HOPS = 3
_REDIRECTS = frozenset((301, 302, 303, 307, 308))


class Redirected(Exception):
    """A pod sent us on, and we do not go there."""


@dataclasses.dataclass(frozen=True, slots=True)
class PodEndpoint:
    """A pod of the target; `ports` are its Service's target ports by name, in their order."""

    identity: str
    address: str
    ports: tuple[tuple[str, int], ...]

    def port(self, wanted: int | str) -> int | None:
        """Return the port's number: one given, one by name, or the first; None for unknown."""
        if isinstance(wanted, int) and wanted:
            return wanted
        for name, number in self.ports:
            if not wanted or name == wanted:
                return number
        return None


@dataclasses.dataclass(frozen=True, slots=True)
class CounterState:
    """What each pod's counter was, and when."""

    at: float
    values: Mapping[str, float]


def rate(before: CounterState | None, now: float, values: Mapping[str, float]) -> Reading:
    """Return by how much counters grew a second since they were read before."""
    if before is None or now <= before.at:
        return Reading(error="this is the first reading; a rate needs two")
    if gone := before.values.keys() - values.keys():
        return Reading(error=f"{len(gone)} pods went away since the last reading")
    grown = sum(_grown(before.values.get(pod), value) for pod, value in values.items())
    return Reading(grown / (now - before.at))


def _grown(before: float | None, now: float) -> float:
    return now if before is None or now < before else now - before


class PodsReader:
    """Reads pods; remembers counters between readings, by trigger."""

    def __init__(self, session: aiohttp.ClientSession, *, timeout: float = _TIMEOUT) -> None:
        self._session = session
        self._timeout = aiohttp.ClientTimeout(total=timeout)
        self._counters: dict[Hashable, CounterState] = {}

    async def read(
        self, key: Hashable, metadata: PodsMetadata, pods: Sequence[PodEndpoint], *, asleep: bool
    ) -> Reading:
        """Return what a trigger says now; `asleep`: the target has no pods, and should not."""
        if not pods:
            self._counters.pop(key, None)
            return Reading(0.0) if asleep else Reading(error="there is no pod to ask")
        now = asyncio.get_running_loop().time()
        answers = await asyncio.gather(*(self._scrape(metadata, pod) for pod in pods))
        failed = [answer for answer in answers if isinstance(answer, str)]
        if failed:
            self._counters.pop(key, None)
            return Reading(error=failed[0])
        values = {
            pod.identity: answer
            for pod, answer in zip(pods, answers, strict=True)
            if isinstance(answer, float)
        }
        if not metadata.is_counter:
            return Reading(sum(values.values()))
        before, self._counters[key] = self._counters.get(key), CounterState(now, values)
        return rate(before, now, values)

    def forget(self, key: Hashable) -> None:
        """The trigger is gone, or another one now."""
        self._counters.pop(key, None)

    async def _scrape(self, metadata: PodsMetadata, pod: PodEndpoint) -> float | str:
        """Return a pod's value, or why there is none."""
        port = pod.port(metadata.port)
        if port is None:
            return f"the Service has no port {metadata.port!r} to read metrics from"
        try:
            text = await self._fetch(pod.address, port, metadata.path)
            value = total(text, metadata.metric, metadata.labels)
        except TimeoutError:
            return f"pod {pod.address} did not answer in time at port {port}"
        except (aiohttp.ClientError, OSError) as error:
            return f"pod {pod.address} cannot be asked at port {port}: {error}"
        except (NotExposition, TooLong, Redirected) as error:
            return f"pod {pod.address}: {error}"
        if value is None:
            return f"pod {pod.address} has no metric {metadata.metric} with these labels"
        return value

    async def _fetch(self, address: str, port: int, path: str) -> str:
        host = f"[{address}]" if ":" in address else address
        url = URL(f"http://{host}:{port}{path}")
        for _ in range(_HOPS):
            async with self._session.get(
                url, timeout=self._timeout, allow_redirects=False
            ) as response:
                if response.status not in _REDIRECTS:
                    response.raise_for_status()
                    body = await whole_body(response, limit=_MOST_BYTES)
                    return body.decode("utf-8", "replace")
                url = _elsewhere_on(response)
        raise Redirected(f"more than {_HOPS} redirects from {path}")


def _elsewhere_on(response: aiohttp.ClientResponse) -> URL:
    """Return where a pod sends us on itself; nobody may send the operator to other addresses."""
    location = response.headers.get("Location", "")
    with contextlib.suppress(ValueError):
        url = response.url.join(URL(location))
        if url.origin() == response.url.origin():
            return url
    raise Redirected(f"it redirects to {location!r}, and metrics are read from pods only")
