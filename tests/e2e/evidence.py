"""What is kept of a run that did not go well: what was lost, what happened, what the programs said."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from kubeloop.client import KubeError
from kubeloop.client.request import Request
from tests.e2e import bundle
from tests.e2e.account import described
from tests.e2e.environment import Environment
from tests.e2e.prober.plan import Fault
from tests.e2e.report import FAILURES
from tests.e2e.trial import Trial

_LINES = "400"


async def gather(environment: Environment, trial: Trial) -> str:
    """Return it as text, the newest moments last; moments are in seconds of the monotonic clock."""
    await trial.abandon()
    parts = ["# Lost or counted apart", *_lost(trial), "", "# What happened", *_events(trial)]
    for pod in (*await environment.operator_pods(), *await environment.resolver_pods()):
        name = pod["metadata"]["name"]
        parts += ["", f"# The last lines of {name}", await _log(environment, name)]
    return "\n".join(parts) + "\n"


def keep(output: Path, name: str, text: str) -> Path:
    """Write it beside the report, and return where."""
    path = output / FAILURES / f"{name}.txt"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def _lost(trial: Trial) -> Iterator[str]:
    return (described(record) for record in trial.records if record.fault is not Fault.NONE)


def _events(trial: Trial) -> Iterator[str]:
    return (f"{e.at:.3f} {e.kind} {e.subject}: {e.what}" for e in trial.observer.events)


async def _log(environment: Environment, pod: str) -> str:
    path = f"/api/v1/namespaces/{bundle.NAMESPACE}/pods/{pod}/log"
    request = Request(method="GET", path=path, query=(("tailLines", _LINES),), accept="*/*")
    with contextlib.suppress(KubeError):
        return (await environment.client.send(request)).body.decode(errors="replace")
    return "(not to be had)"
