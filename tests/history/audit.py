"""What an API server's audit log says of scale and rotation, as events of a history.

    Options(audited=True)                                    # a control plane that writes one (tests.controlplane.rig)
    events = of_audit(path, "default", clock=clock_offset())

The server's own record has every write, by whom, and in the order in which the server made them. A watch is later, and
after an interruption it skips what was overwritten meanwhile.
"""

from __future__ import annotations

import datetime as dt
import json
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.history.events import Rotation, Scaled

POLICY = """\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived, ResponseStarted]
rules:
- level: RequestResponse
  verbs: [create, update, patch, delete, deletecollection]
  resources:
  - {group: discovery.k8s.io, resources: [endpointslices]}
  - {group: apps, resources: [deployments, deployments/scale, statefulsets, statefulsets/scale]}
- level: None
"""
_SERVICE_LABEL = "kubernetes.io/service-name"


def clock_offset() -> float:
    """Return what a wall clock's moment lacks to one of the clock that probers use."""
    return time.monotonic() - time.time()


def of_audit(path: Path, namespace: str, *, clock: float) -> Iterator[Scaled | Rotation]:
    """Return what was written in a namespace.

    Raises ValueError that names a line that is not an audit event; the last one may be half written.
    """
    replicas: dict[str, int] = {}
    slices: defaultdict[str, dict[str, tuple[int, int]]] = defaultdict(dict)
    for at, line in sorted(_written(path, namespace), key=lambda one: one[0]):
        what, obj = line["objectRef"], line.get("responseObject") or {}
        if what["resource"] != "endpointslices":
            wanted = (obj.get("spec") or {}).get("replicas")
            if wanted is not None and replicas.get(what["name"]) != wanted:
                replicas[what["name"]] = wanted
                user = str(line["user"]["username"])
                yield Scaled(at=at + clock, service=what["name"], replicas=wanted, by=user)
            continue
        name = what.get("name") or obj["metadata"]["name"]
        if line["verb"] == "delete":
            services = [service for service, known in slices.items() if name in known]
        else:
            services = [(obj["metadata"].get("labels") or {}).get(_SERVICE_LABEL, "")]
        for service in services:
            gone = line["verb"] == "delete"
            slices[service][name] = (0, 0) if gone else _endpoints(obj)
            counts = slices[service].values()
            used = sum(ready for ready, _ in counts) or sum(ending for _, ending in counts)
            yield Rotation(at=at + clock, service=service, endpoints=used)


def _written(path: Path, namespace: str) -> Iterator[tuple[float, Mapping[str, Any]]]:
    text = path.read_bytes()
    lines = text.split(b"\n")
    for number, raw in enumerate(lines, 1):
        if not raw:
            continue
        try:
            line = json.loads(raw)
            at = dt.datetime.fromisoformat(line["stageTimestamp"]).timestamp()
            what, code = line["objectRef"], line["responseStatus"]["code"]
        except (ValueError, KeyError, TypeError) as error:
            if number == len(lines):
                return
            raise ValueError(f"{path}:{number}: not an audit event: {error!r}") from None
        # A delete that waits for a finalizer changes no endpoints; slices have none.
        if what.get("namespace") == namespace and code < 300 and line["verb"] != "deletecollection":
            yield at, line


def _endpoints(obj: Mapping[str, Any]) -> tuple[int, int]:
    conditions = [one.get("conditions") or {} for one in obj.get("endpoints") or []]
    ready = sum(one.get("ready") is not False for one in conditions)
    # Service proxies fall back to these if no endpoint is ready.
    ending = sum(bool(one.get("serving") and one.get("terminating")) for one in conditions)
    return ready, ending
