"""`elasti wake`, `sleep`, `suspend` and `resume`: ask the operator, and wait until it is done.

A request is an annotation, as the resolver's own: durable, so that the leader of the moment acts on it,
and removed by the operator when it is carried out. `suspend` is a field, since it lasts. Nothing is scaled
from here.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import time
from typing import TYPE_CHECKING, Any

import click

from elasti.api.names import SLEEP_ANNOTATION, WAKE_ANNOTATION
from elasti.cli.exits import ExitCode, Failure
from elasti.cli.options import choice_options, cluster_options, namespace_option, timeout_option
from elasti.cli.rendering import echo

if TYPE_CHECKING:
    from elasti.api.types import ElastiService
    from elasti.cli.elastiservices import ElastiServices, ElastiServiceWatch
    from elasti.cli.options import AccessOptions, Choice
    from kubeloop.client import Client
    from kubeloop.objects.meta import JsonObject


_AWAKE = ("Serve", "Releasing")
_REFUSED = "reason=SleepRefused"
_EVENT_LOOKS = 15
_EVENT_PAUSE = 0.2


class RequestKind(enum.Enum):
    """What is asked for; the value is the annotation that asks."""

    WAKE = WAKE_ANNOTATION
    SLEEP = SLEEP_ANNOTATION

    @property
    def verb(self) -> str:
        """The word for it."""
        return self.name.lower()

    @property
    def outcome(self) -> str:
        """What a target is when it is done."""
        return "asleep" if self is RequestKind.SLEEP else "awake"


def _duration(_ctx: click.Context, _param: click.Parameter, text: str | None) -> dt.datetime | None:
    from elasti.api.parsing import parse_duration

    if text is None:
        return None
    try:
        return dt.datetime.now(dt.UTC) + dt.timedelta(seconds=parse_duration(text))
    except (ValueError, OverflowError) as error:
        raise click.BadParameter(str(error)) from error


def _moment(_ctx: click.Context, _param: click.Parameter, text: str | None) -> dt.datetime | None:
    from kubeloop.objects.times import parse_time

    if text is None:
        return None
    now = dt.datetime.now().astimezone()
    try:
        if ":" not in text[:3]:
            return parse_time(text)
        at = dt.time.fromisoformat(text)
    except ValueError as error:
        raise click.BadParameter(
            f"{text!r} is no time; write 18:00, or 2030-01-31T18:00:00Z"
        ) from error
    today = dt.datetime.combine(now.date(), at).astimezone()
    tomorrow = dt.datetime.combine(now.date() + dt.timedelta(days=1), at).astimezone()
    return today if today > now else tomorrow


@click.command("wake")
@choice_options
@namespace_option()
@click.option(
    "--for",
    "duration",
    metavar="DURATION",
    callback=_duration,
    help="Keep it awake so long, such as 3h or 90m, whatever its triggers say.",
)
@click.option(
    "--until",
    metavar="TIME",
    callback=_moment,
    help="Keep it awake until then: 18:00, the next one here, or 2030-01-31T18:00:00Z.",
)
@click.option("--wait", is_flag=True, help="Wait until an endpoint is ready.")
@timeout_option(300.0)
@cluster_options
def wake(
    *,
    choice: Choice,
    access: AccessOptions,
    duration: dt.datetime | None,
    until: dt.datetime | None,
    **options: Any,
) -> None:
    """Wake the targets of ElastiServices, as traffic would.

    The request is an annotation on the ElastiService: it survives a change of leaders, and the operator
    takes it away when an endpoint is ready. A target that is up stays up for another cooldown, and with
    --for or --until at least until then; elasti resume ends that earlier.

    \b
    Examples:
      elasti wake web
      elasti wake web api -n shop --wait --timeout 60
      elasti wake web --for 3h
      elasti wake -l team=shop --until 18:00
    """
    if duration and until:
        raise click.UsageError("give --for or --until, not both")
    kept = duration or until
    if kept is not None and kept <= dt.datetime.now(dt.UTC):
        raise click.UsageError("the time to keep it awake until is past; name a later one")
    _call(RequestKind.WAKE, choice, access, options | {"kept_until": kept})


@click.command("sleep")
@choice_options
@namespace_option()
@click.option("--wait", is_flag=True, help="Wait until it is asleep, or refused.")
@timeout_option(120.0)
@cluster_options
def sleep(*, choice: Choice, access: AccessOptions, **options: Any) -> None:
    """Put the targets of ElastiServices to sleep now.

    The rest of the cooldown is skipped, and the triggers are not asked, this once. Everything else stays:
    the resolver is put in rotation first and settles, connections and arrivals there keep the target up,
    other ElastiServices on the same target must agree, spec.enabledPeriod holds, KEDA is paused. Where one
    of them says no, nothing is changed.

    Connections that were opened to a pod while the target was awake (WebSockets, gRPC streams, database
    sessions) are not seen by the resolver, and end with the pod.

    \b
    Examples:
      elasti sleep web
      elasti sleep web -n shop --wait
    """
    _call(RequestKind.SLEEP, choice, access, options)


@click.command("suspend")
@choice_options
@namespace_option()
@cluster_options
def suspend(*, choice: Choice, access: AccessOptions, namespace: str | None) -> None:
    """Wake targets once, and then leave them alone until `elasti resume`.

    The resolver leaves their traffic, and nothing is scaled any more: not by requests, not by triggers.
    It needs the right to update the ElastiService.

    \b
    Examples:
      elasti suspend web
      elasti suspend --all -n shop
    """
    _change(choice, access, namespace, "suspend", "suspended")


@click.command("resume")
@choice_options
@namespace_option()
@cluster_options
def resume(*, choice: Choice, access: AccessOptions, namespace: str | None) -> None:
    """End `elasti suspend`, and what `elasti wake --for` and `--until` asked for.

    \b
    Examples:
      elasti resume web
    """
    _change(choice, access, namespace, "resume", "resumed: it may sleep again")


def _change(
    choice: Choice, access: AccessOptions, namespace: str | None, asked: str, done: str
) -> None:
    from elasti.cli.running import run_to_end

    async def change() -> None:
        from elasti.api.wire import Ask
        from elasti.cli.elastiservices import ElastiServices
        from elasti.cli.running import connected
        from kubeloop.objects.patches import MergePatch

        async with connected(access) as client:
            objects = ElastiServices(client, namespace or client.namespace)
            body = Ask(asked).patch(dt.datetime.now(dt.UTC))
            for name in await objects.chosen(choice):
                await objects.patch(name, MergePatch(body))
                echo(f"{name} is {done}")

    run_to_end(change)


def _call(
    kind: RequestKind, choice: Choice, access: AccessOptions, options: dict[str, Any]
) -> None:
    from elasti.cli.running import run_to_end

    run_to_end(lambda: _request(kind, choice, access, **options))


@dataclasses.dataclass(frozen=True, slots=True)
class RequestProgress:
    """How far a request has come: still under way, or at an end that was wanted or not."""

    over: bool = False
    refused: str = ""


def progress_of(kind: RequestKind, es: ElastiService) -> RequestProgress:
    """Judge a request by what the operator reports."""
    from elasti.api.view import why_of

    pending = kind.value in (es.metadata.annotations or {})
    state = es.status.state
    match kind:
        case RequestKind.WAKE if es.spec.suspend and not es.status.replicas:
            return RequestProgress(
                over=True, refused="it is suspended, so nothing scales it; elasti resume ends that"
            )
        case RequestKind.WAKE if es.status.conditions and not state:
            return RequestProgress(
                over=True, refused=f"{why_of(es)}; the request stays until it can be met"
            )
        case RequestKind.WAKE:
            return RequestProgress(over=not pending and state in _AWAKE)
        case RequestKind.SLEEP if state == "Proxy":
            return RequestProgress(over=True)
        case RequestKind.SLEEP:
            return (
                RequestProgress()
                if pending
                else RequestProgress(over=True, refused=str(why_of(es)))
            )


async def _request(
    kind: RequestKind,
    choice: Choice,
    access: AccessOptions,
    *,
    namespace: str | None,
    wait: bool,
    timeout: float,
    kept_until: dt.datetime | None = None,
) -> None:
    """Ask for each, and wait for all of them where wanted. Raises Failure."""
    import asyncio

    from elasti.cli.elastiservices import ElastiServices
    from elasti.cli.running import connected

    async with connected(access) as client:
        objects = ElastiServices(client, namespace or client.namespace)
        names = await objects.chosen(choice)
        # Where one is not there, none is asked.
        for es in [await objects.get(name) for name in names]:
            if kind is RequestKind.SLEEP:
                _warn_of_cuts(es)
        refusals = _Refusals(client, objects.namespace)
        if wait and kind is RequestKind.SLEEP:
            await refusals.note_former()
        asked = [await _ask(kind, objects, name, kept_until) for name in names]
        if not wait:
            for es in asked:
                echo(f"{es.metadata.name}: asked to {kind.verb}; elasti get shows what comes of it")
            return
        until = asyncio.get_running_loop().time() + timeout
        for es in asked:
            await _RequestWait(kind, es, refusals).until_over(client, until)


def _warn_of_cuts(es: ElastiService) -> None:
    """Say what will be cut, as far as a trigger knows of it."""
    shown = [
        f"triggers[{index}] ({trigger.type})"
        for index, trigger in enumerate(es.status.triggers)
        if trigger.quiet_since is None and not trigger.last_error
    ]
    if shown and es.status.state in _AWAKE:
        echo(
            f"{es.metadata.name}: by {', '.join(shown)} it was used within the last minute;"
            " connections that were opened to its pods meanwhile will be cut",
            err=True,
        )


async def _ask(
    kind: RequestKind, objects: ElastiServices, name: str, kept_until: dt.datetime | None
) -> ElastiService:
    from elasti.api.wire import Ask
    from kubeloop.objects.patches import MergePatch

    body = Ask(kind.verb).patch(dt.datetime.now(dt.UTC), kept_until)
    return await objects.patch(name, MergePatch(body))


class _Refusals:
    """The operator's events about requests to sleep that it refused: they alone have the reason."""

    def __init__(self, client: Client, namespace: str) -> None:
        self._events = client.resource("v1/events", namespace=namespace)
        self._former: set[tuple[str, str]] = set()

    async def note_former(self) -> None:
        """Leave out what was refused before now."""
        self._former = set(await self._read())

    async def reason(self, uid: str) -> str:
        """Return why the request of one ElastiService was refused; empty where no event says so soon."""
        import asyncio

        for _ in range(_EVENT_LOOKS):
            found = await self._read()
            for version in found.keys() - self._former:
                if found[version]["involvedObject"].get("uid") == uid:
                    return str(found[version].get("message")).rpartition(" as asked: ")[2]
            await asyncio.sleep(_EVENT_PAUSE)
        return ""

    async def _read(self) -> dict[tuple[str, str], JsonObject]:
        from kubeloop.client.errors import KubeError

        try:
            events = [event async for event in self._events.items(field_selector=_REFUSED)]
        except KubeError:
            return {}  # a user may lack the right
        return {(e["metadata"]["uid"], e["metadata"]["resourceVersion"]): e for e in events}


class _RequestWait:
    """Waits for one request to be over, and reports how it goes."""

    def __init__(self, kind: RequestKind, asked: ElastiService, refusals: _Refusals) -> None:
        self._kind = kind
        self._seen = asked
        self._refusals = refusals
        self._text = (asked.metadata.annotations or {}).get(kind.value, "")
        self._shown = ("", "")
        self._began = time.monotonic()

    async def until_over(self, client: Client, deadline: float) -> None:
        """Wait, at most until the loop's clock says so. Raises Failure."""
        import asyncio

        from elasti.cli.elastiservices import watch_elastiservices

        meta, outcome = self._seen.metadata, self._kind.outcome
        self._report()
        try:
            async with (
                asyncio.timeout_at(deadline),
                watch_elastiservices(client, meta.namespace, meta.name) as changes,
            ):
                step = await self._last_step(client, changes)
        except TimeoutError:
            raise self._timed_out() from None
        if step.refused:
            told = self._kind is RequestKind.SLEEP and await self._refusals.reason(meta.uid)
            raise Failure(ExitCode.FAILED, f"{meta.name} is not {outcome}: {told or step.refused}")
        echo(f"{meta.name} is {outcome} ({time.monotonic() - self._began:.1f} s)")

    async def _last_step(self, client: Client, changes: ElastiServiceWatch) -> RequestProgress:
        from kubeloop.objects.meta import compare_versions

        while not (step := progress_of(self._kind, self._seen)).over or (
            self._kind is RequestKind.SLEEP and not step.refused and await self._is_up(client)
        ):
            change = await changes.next()
            if change.deleted:
                return RequestProgress(over=True, refused="the ElastiService was deleted meanwhile")
            versions = (es.metadata.resource_version for es in (change.es, self._seen))
            # What is listed first may be older than our own request.
            if compare_versions(*versions) > 0:
                self._seen = change.es
                self._report()
        return step

    async def _is_up(self, client: Client) -> bool:
        """Whether a target is up that sleeps by its status, which may be some seconds old."""
        from elasti.cli.describe.collect import readable, target_summary
        from elasti.cli.describe.model import TargetSummary

        target = await readable(target_summary(client, self._seen))
        return isinstance(target, TargetSummary) and target.wanted > 0

    def _report(self) -> None:
        from elasti.api.view import STATES, state_word

        status = self._seen.status
        unknown = "not in order" if status.conditions else "not seen by the operator yet"
        word = state_word(status.state) or unknown
        if (status.state, word) == self._shown:
            return
        self._shown = (status.state, word)
        took = time.monotonic() - self._began
        text = STATES.get(status.state, word)
        echo(f"{took:6.1f} s  {self._seen.metadata.name}: {text}", err=True)

    def _timed_out(self) -> Failure:
        from elasti.api.view import why_of

        name = self._seen.metadata.name
        if (self._seen.metadata.annotations or {}).get(self._kind.value) == self._text:
            return Failure(
                ExitCode.TIMED_OUT,
                f"{name}: the operator has not carried out the request to {self._kind.verb} yet"
                f" (it is {self._shown[1]}); the request stays",
                remedy="See what is wrong: elasti doctor",
            )
        return Failure(
            ExitCode.TIMED_OUT,
            f"{name} is not {self._kind.outcome} yet (it is {self._shown[1]}): {why_of(self._seen)}",
            remedy=f"See more: elasti describe {name}",
        )
