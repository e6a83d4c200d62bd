"""The fleet as groups and over time: labels to group by, and what sleep has released.

The history is what the ElastiServices record in their status, so it outlives operators and leaders, and nothing more is
written for it. The last twenty sleeps of each are exact to the second; what is counted of older ones is spread evenly
over their time; what a deleted ElastiService released is gone.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import itertools
from collections.abc import Iterable, Mapping

from elasti.api.types import ElastiService
from elasti.api.usage import releases
from elasti.dashboard.feed import Feed
from elasti.dashboard.model import key_of
from kubeloop.client import Client
from kubeloop.client.errors import Forbidden
from kubeloop.objects.meta import JsonObject, PartialObjectMetadata
from kubeloop.objects.times import unix_seconds

BUCKETS = 168
"""How many points a history has: an hour each in a week."""


async def labels_of(
    client: Client, namespace: str, services: Iterable[ElastiService]
) -> tuple[dict[str, dict[str, str]], list[str]]:
    """Return the labels of each ElastiService above those of its Service and of its namespace.

    The second value is what the user may not list. An empty namespace is all. Raises KubeError.
    """
    found: dict[tuple[str, str], Mapping[str, str]] = {}
    labels, unread = {}, []
    only = f"metadata.name={namespace}" if namespace else ""
    for kind, where, fields in (("namespaces", "", only), ("services", namespace, "")):
        objects = client.resource(f"v1/{kind}", PartialObjectMetadata)
        try:
            async for one in objects.items(namespace=where, field_selector=fields):
                found[one.metadata.namespace, one.metadata.name] = one.metadata.labels or {}
        except Forbidden:
            unread.append(kind)
    for es in services:
        beneath = ("", es.metadata.namespace), (es.metadata.namespace, es.spec.service)
        place, service = (found.get(key, {}) for key in beneath)
        labels[key_of(es)] = {**place, **service, **(es.metadata.labels or {})}
    return labels, unread


def history_of(services: Iterable[ElastiService], begin: float, now: dt.datetime) -> JsonObject:
    """Return what the status of ElastiServices says of the time from `begin` until now.

    `cpu`, `memory`: means of equal parts of that time, in millicores and bytes. `sums`: for each ElastiService its
    millicore- and byte-seconds. `since`, `complete`: from when some, and from when all of
    them are counted.
    """
    present = now.timestamp()
    step = (present - begin) / BUCKETS
    # By how much each part differs from the one before.
    cpus, memories = [0.0] * (BUCKETS + 2), [0.0] * (BUCKETS + 2)
    sums: dict[str, tuple[float, float]] = {}
    starts = []
    for es in services:
        if es.status.usage is None:
            continue
        starts.append(unix_seconds(es.status.usage.since))
        cpu_seconds = byte_seconds = 0.0
        for since, end, cpu, memory in releases(es.status, now):
            first, until = max(since, begin), min(end, present)
            if first >= until:
                continue
            cpu_seconds += cpu * (until - first)
            byte_seconds += memory * (until - first)
            for time, sign in ((first, 1), (until, -1)):
                at = int(place := (time - begin) / step)
                rest = sign * (at + 1 - place)
                for curve, amount in ((cpus, cpu), (memories, memory)):
                    curve[at] += amount * rest
                    curve[at + 1] += amount * (sign - rest)
        sums[key_of(es)] = (cpu_seconds, byte_seconds)
    times = {"begin": begin, "step": step, "since": min(starts, default=None)}
    times["complete"] = max(starts, default=None)
    # What rounding leaves of a sum may be below zero, which a browser refuses to draw.
    curves = ([max(0.0, y) for y in itertools.accumulate(one[:-2])] for one in (cpus, memories))
    return times | dict(zip(("cpu", "memory"), curves, strict=True)) | {"sums": sums}


async def fleet_view(client: Client, feed: Feed, days: int) -> JsonObject:
    """Return what the fleet view shows beside the rows: labels to group them by, and the history."""
    services, now = list(feed.services.values()), feed.around().now
    labels, unread = await labels_of(client, feed.namespace, services)
    found = await asyncio.to_thread(history_of, services, now.timestamp() - days * 86400, now)
    return found | {"labels": labels, "unread": unread}
