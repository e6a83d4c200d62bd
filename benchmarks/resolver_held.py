"""Connections that are held: what each costs, and how fast they are served once a pod answers."""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

from benchmarks.processes import ROOT, RunFailed
from benchmarks.report import Figure, Report, at_least, at_most
from benchmarks.resolver_servers import Server, backend, ours

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.suites import Settings

_CROWD = 10_000
_PER_PROCESS = 5_000
# By how many are held: within how many milliseconds the last must be served.
_RELEASES = {1: 60.0, 100: 150.0, 1000: 500.0}


def run(settings: Settings) -> list[Figure]:
    """Hold a crowd, then release crowds of three sizes."""
    figures = _crowd(settings)
    for held in _RELEASES:
        figures += _release(settings, held)
    return figures


def _crowd(settings: Settings) -> list[Figure]:
    crowd = 2_000 if settings.quick else _CROWD
    with backend(settings.cores.serving) as pod, _asleep(settings, pod) as proxy:
        before = proxy.ask("rss")["rss"]
        with _clients(settings, proxy.port, crowd) as results:
            _until_held(proxy, crowd)
            each = (proxy.ask("rss")["rss"] - before) / crowd
            at = proxy.ask("release")["at"]
            answers = results()
    served = crowd - sum(answer["errors"] + answer["unanswered"] for answer in answers)
    last = max(answer["last"] for answer in answers) - at
    return [
        Figure(
            name=f"resolver: RSS of each of {crowd} held connections",
            samples=[each],
            unit="B",
            goal=at_most(4096.0),
        ),
        Figure(
            name=f"resolver: of {crowd} held connections served, in order",
            samples=[served],
            unit="",
            goal=at_least(crowd),
            note=f"the last of them after {last:.2f} s",
        ),
    ]


def _release(settings: Settings, held: int) -> list[Figure]:
    firsts, medians, lasts = [], [], []
    for _ in range(2 if settings.quick else 5):
        with backend(settings.cores.serving) as pod, _asleep(settings, pod) as proxy:
            with _clients(settings, proxy.port, held) as results:
                _until_held(proxy, held)
                at = proxy.ask("release")["at"]
                (answer,) = results()
        if answer["errors"] or answer["unanswered"]:
            raise RunFailed(f"of {held} held connections not all were served: {answer}")
        delays = [(first - at) * 1000 for first in answer["firsts"]]
        firsts.append(delays[0])
        medians.append(statistics.median(delays))
        lasts.append(delays[-1])
    return [
        Figure(
            name=f"resolver: release to the first of {held} held",
            samples=firsts,
            unit="ms",
            goal=at_most(30.0),
        ),
        Figure(
            name=f"resolver: release to the last of {held} held",
            samples=lasts,
            unit="ms",
            goal=at_most(_RELEASES[held]),
            note=f"median {statistics.median(medians):.1f} ms",
        ),
    ]


@contextlib.contextmanager
def _asleep(settings: Settings, pod: Server) -> Iterator[Server]:
    with ours(settings.cores.measured, pod.port, "--asleep") as proxy:
        yield proxy


@contextlib.contextmanager
def _clients(settings: Settings, port: int, count: int) -> Iterator[Any]:
    """Start processes with that many clients in all; yields what waits for their results."""
    with contextlib.ExitStack() as stack:
        processes = []
        for first in range(0, count, _PER_PROCESS):
            command = [
                sys.executable, "-m", "benchmarks.resolver_clients", "--port", str(port),
                "--count", str(min(_PER_PROCESS, count - first)), "--first", str(first),
            ]  # fmt: skip
            process = subprocess.Popen(
                command,
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdout=subprocess.PIPE,
            )
            os.sched_setaffinity(process.pid, {settings.cores.serving})
            processes.append(stack.enter_context(process))
        try:
            outputs = [process.stdout for process in processes if process.stdout is not None]
            for output in outputs:
                json.loads(output.readline())
            yield lambda: [json.loads(output.readline()) for output in outputs]
        except BaseException:
            for process in processes:
                process.kill()
            raise


def _until_held(proxy: Server, count: int) -> None:
    deadline = time.monotonic() + 60
    while proxy.ask("stats")["held"] < count:
        if time.monotonic() > deadline:
            raise RunFailed(f"only {proxy.ask('stats')} of {count} are held")
        time.sleep(0.05)


def main() -> None:
    """Run this suite alone."""
    from benchmarks.processes import Cores  # noqa: PLC0415 -- as the package's own main does
    from benchmarks.suites import Settings  # noqa: PLC0415 -- as above

    settings = Settings(quick="--quick" in sys.argv, cores=Cores.of_this_machine())
    print(Report(run(settings)).table())


if __name__ == "__main__":
    main()
