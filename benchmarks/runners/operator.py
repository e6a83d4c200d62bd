"""`elasti operator` put through growing populations; prints what it took as JSON.

For each size: an operator adopts the newcomers, stops, and a second one starts on what is settled
already. At the largest size that second one is also left alone, shown changes that ask for nothing,
asked for many wake-ups at once, also while another resolver takes everything over, killed, and given a
trigger for each ElastiService.

With `--chains` it measures something else, at the largest size: the same population each alone, and every third
ElastiService with the two that follow it in a chain.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import statistics
import sys
import time
from typing import TYPE_CHECKING, Any

from benchmarks.operator_ledger import RECEIVED, kinds, requests, scaled, watches
from benchmarks.operator_objects import SYSTEM, Population
from benchmarks.operator_places import Place, dev_place, real_place
from benchmarks.operator_process import operator
from elasti.api.defaults import FIRST_RESOLVER_PORT, LAST_RESOLVER_PORT, LOWEST_DATA_PORT
from kubeloop.client import Client, ClientConfig

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractAsyncContextManager

    from benchmarks.operator_objects import Name
    from benchmarks.operator_process import OperatorRun

_INTO_THE_STORM = 1.0
_PORTS_OF_A_PROCESS = 10_000
PLACES = {"dev": dev_place, "real": real_place}


class Told(dict[str, Any]):
    """Tells each phase's result on standard error as it comes: the whole takes minutes."""

    def __setitem__(self, phase: str, found: Any) -> None:
        super().__setitem__(phase, found)
        print(json.dumps({"at": round(time.monotonic()), phase: found}), file=sys.stderr)


class Neighbours:
    """The process that pretends to be everybody else."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        shown = self._read()
        self.admin_port = int(shown["admin_port"])
        self.prometheus = str(shown["prometheus"])

    async def ask(self, **command: Any) -> Any:
        """Send one command and return the answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command).encode() + b"\n")
        self._process.stdin.flush()
        return await asyncio.to_thread(self._read)

    def _read(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the operator's neighbours ended")
        return json.loads(line)


@contextlib.contextmanager
def neighbours(place: Place, core: int, size: int) -> Iterator[Neighbours]:
    """Start them, with a range of ports for that many Services; they end with their standard input."""
    argv = [sys.executable, "-m", "benchmarks.operator_neighbours"]
    argv += ["--address", place.resolver_address]
    first, last = ports_for(size)
    starts = range(first, last + 1, _PORTS_OF_A_PROCESS)
    with contextlib.ExitStack() as stack:
        started = []
        for start in starts:
            ports = min(_PORTS_OF_A_PROCESS, last + 1 - start)
            more = [f"--first={start}", f"--ports={ports}"]
            process = place.start([*argv, *more], core=core, piped=True)
            stack.callback(_end, process)
            started.append(Neighbours(process))
        # The others only have ports.
        yield started[0]


def _end(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.close()
    process.wait(timeout=60)


def ports_for(size: int) -> tuple[int, int]:
    """Return the first and the last resolver port: the default range, if it is enough."""
    if size <= LAST_RESOLVER_PORT - FIRST_RESOLVER_PORT:
        return FIRST_RESOLVER_PORT, LAST_RESOLVER_PORT
    return LOWEST_DATA_PORT, LOWEST_DATA_PORT + 40_000 - 1


class Trial:
    """One place, one population, one operator after another."""

    def __init__(
        self,
        place: Place,
        others: Neighbours,
        population: Population,
        arguments: argparse.Namespace,
    ) -> None:
        self._place = place
        self._others = others
        self._population = population
        self._core = arguments.core
        self._ports = ports_for(arguments.sizes[-1])
        self._idle = arguments.idle
        self._wakes = arguments.wakes
        self._polling = arguments.polling
        self._calm = arguments.calm
        self._kill = arguments.kill
        self._sleeping: Iterator[Name] = (name for name in population.names if not name.awake)

    def _operator(
        self, *, kill: bool = False, **variables: str
    ) -> AbstractAsyncContextManager[OperatorRun]:
        first, last = self._ports
        common = {
            "ELASTI_OPERATOR_NAMESPACE": SYSTEM,
            "ELASTI_PORT_RANGE": f"{first}-{last}",
            "ELASTI_RESOLVER_PORT": str(self._others.admin_port),
            "POLLING_INTERVAL": f"{self._polling:g}s",
        }
        return operator(
            self._place,
            core=self._core,
            variables=common | variables,
            kill=kill,
            calm=self._calm,
        )

    async def at(self, size: int, *, last: bool) -> dict[str, Any]:
        """Measure one size."""
        await self._population.grow(size)
        result: dict[str, Any] = Told({"size": size})
        async with self._operator() as run:
            result["adopted"] = await self._settle(run)
        async with self._operator() as run:
            result["restarted"] = await self._settle(run)
            result["idle"] = await run.idle(self._idle)
            result |= {"watches": watches(run.entries), "peak": run.weighed.mib("VmHWM")}
            if last:
                result["touched"] = await self._touch(run)
        return result | (await self._more() if last else {})

    async def in_chains(self, size: int) -> dict[str, Any]:
        """Measure the population each alone, and then in chains of three."""
        await self._population.grow(size)
        async with self._operator() as run:
            await self._settle(run)
        result: dict[str, Any] = Told({"size": size, "chains": len(self._population.chains())})
        chains = iter(self._population.chains())
        for phase in ("alone", "in chains"):
            if phase == "in chains":
                await self._population.join()
            async with self._operator() as run:
                settled = await self._settle(run)
                idle = await run.idle(self._idle)
                opened = watches(run.entries)
                woken = [next(chains) for _ in range(self._wakes)]
                taken = await self._wake_sets(
                    run,
                    [(first,) if phase == "alone" else (first, *more) for first, *more in woken],
                )
                result[phase] = {
                    "watches": opened,
                    "settled": settled["wall"],
                    "idle": idle,
                    "mib": settled["mib"],
                    "p50": statistics.median(taken),
                    "p95": statistics.quantiles(taken, n=20, method="inclusive")[-1],
                    "written": len(taken),
                }
        return result

    async def _wake_sets(self, run: OperatorRun, sets: Sequence[tuple[Name, ...]]) -> list[float]:
        """Ask for the first of each set, all at once; how long until the first scale of each set was written."""
        run.look()
        asked = [[first.namespace, first.name] for first, *_ in sets]
        answers = await self._others.ask(do="wake", port=self._place.operator_port, services=asked)
        await run.quiet_writes()
        written = scaled(run.entries)
        sent = {(answer["namespace"], answer["service"]): answer["sent"] for answer in answers}
        return [
            min(times) - sent[names[0].namespace, names[0].name]
            for names in sets
            if (times := [written[name[:2]] for name in names if name[:2] in written])
        ]

    async def _more(self) -> dict[str, Any]:
        """Measure what is asked of the largest population only."""
        result: dict[str, Any] = Told()
        result["resynced"] = await self._resync()
        await self._population.give_triggers(self._others.prometheus)
        async with self._operator() as run:
            await run.settled()
            result["triggers"] = await self._poll(run)
        async with self._operator(kill=self._kill) as run:
            result["restarted with triggers"] = await self._settle(run)
            result["woken"] = [await self._wake(run) for _ in range(3)]
            result["resolver replaced"] = await self._replace_resolver(run)
        if self._kill:
            async with self._operator() as run:
                result["killed"] = await self._settle(run)
        return result

    async def _settle(self, run: OperatorRun) -> dict[str, Any]:
        """Wait until a new operator is ready and settled."""
        await self._others.ask(do="counts")
        ready = await self._others.ask(do="ready", port=self._place.operator_port)
        result: dict[str, Any] = await run.settled()
        return result | {
            "ready": ready["at"] - run.began,
            "requests": requests(run.entries),
            "reads": kinds(entry for entry in run.entries if not entry.is_write),
            "mib": run.weighed.mib(),
            **await self._others.ask(do="counts"),
        }

    async def _resync(self) -> dict[str, Any]:
        """Have every object handed to the handlers again, once.

        A handler is due a period after it was added, and looked at every period since the list: the
        leader's come in the second one.
        """
        period = self._idle
        async with self._operator(ELASTI_INFORMER_RESYNC=f"{period:g}s") as run:
            await run.settled()
            idle = await run.idle(2.2 * period)
            return idle | {"seconds": 2.2 * period}

    async def _poll(self, run: OperatorRun) -> dict[str, Any]:
        """Let the triggers be read three times, after they have shown that all is quiet."""
        async with asyncio.timeout(600):
            seen = 0
            while seen < 2 * len(self._population.names):
                await asyncio.sleep(0.5)
                seen += (await self._others.ask(do="counts"))["queries"]
        await run.quiet_writes()
        idle = await run.idle(3.3 * self._polling)
        return idle | await self._others.ask(do="counts")

    async def _touch(self, run: OperatorRun) -> dict[str, Any]:
        """Change every object in a way that asks for nothing."""
        run.look()
        cpu = run.weighed.cpu()
        await self._population.touch("1")
        written = await run.quiet_writes()
        return {"writes": written, "cpu": run.weighed.cpu() - cpu}

    async def _replace_resolver(self, run: OperatorRun) -> dict[str, Any]:
        """Put another resolver in the place of the one, and ask for wake-ups while it is listed."""
        run.look()
        await self._others.ask(do="counts")
        cpu, before, began = run.weighed.cpu(), len(run.entries), time.time()
        await self._population.replace_resolver("another")
        await asyncio.sleep(_INTO_THE_STORM)
        woken = await self._wake(run)
        await run.until_quiet()
        listed = [
            entry.at - began
            for entry in run.entries[before:]
            if entry.is_write and entry.resource == "endpointslices" and entry.stage == RECEIVED
        ]
        return {
            "cpu": run.weighed.cpu() - cpu,
            "listed": len(listed),
            "seconds": max(listed, default=0.0),
            "woken": woken,
            **await self._others.ask(do="counts"),
        }

    async def _wake(self, run: OperatorRun) -> dict[str, Any]:
        """Ask for many wake-ups at once; how long each took until its scale was written."""
        names = [next(self._sleeping) for _ in range(self._wakes)]
        services = [[name.namespace, name.name] for name in names]
        run.look()
        port = self._place.operator_port
        answers = await self._others.ask(do="wake", port=port, services=services)
        await run.quiet_writes()
        written = scaled(run.entries)
        sent = {(answer["namespace"], answer["service"]): answer["sent"] for answer in answers}
        return {
            "codes": sorted({answer["code"] for answer in answers}),
            "written": [written[key] - at for key, at in sent.items() if key in written],
            "answered": [answer["answered"] - answer["sent"] for answer in answers],
        }


async def measure(place: Place, arguments: argparse.Namespace) -> dict[str, Any]:
    """Put one place through all sizes."""
    config = ClientConfig.from_kubeconfig(place.admin)
    with neighbours(place, arguments.serving, arguments.sizes[-1]) as others:
        async with Client(config) as client:
            population = Population(client)
            await population.prepare(place.resolver_address, others.admin_port)
            trial = Trial(place, others, population, arguments)
            sizes = arguments.sizes
            if arguments.chains:
                return {"place": place.name, "sizes": [await trial.in_chains(sizes[-1])]}
            return {
                "place": place.name,
                "sizes": [await trial.at(size, last=size == sizes[-1]) for size in sizes],
            }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--place", choices=PLACES, default="dev")
    parser.add_argument("--core", type=int, required=True, help="the operator's")
    parser.add_argument("--serving", type=int, required=True, help="everybody else's")
    parser.add_argument("--sizes", type=_sizes, default=[1, 100, 1000, 5000])
    parser.add_argument("--idle", type=float, default=40.0)
    parser.add_argument("--wakes", type=int, default=100)
    parser.add_argument("--polling", type=float, default=30.0)
    parser.add_argument("--calm", type=float, default=3.0)
    parser.add_argument("--kill", action="store_true", help="also start after a kill")
    parser.add_argument("--chains", action="store_true", help="compare with chains of three")
    arguments = parser.parse_args()
    with PLACES[arguments.place](arguments.serving) as place:
        print(json.dumps(asyncio.run(measure(place, arguments))))


def _sizes(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


if __name__ == "__main__":
    main()
