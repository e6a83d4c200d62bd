"""`elasti wake`, `sleep`, `suspend` and `resume`: ask the operator, and wait for the result.

A request is an annotation, like the resolver's own requests. It is durable: the current leader acts on it and removes
it when it is carried out. `suspend` is a field, since it lasts. These commands scale nothing themselves.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import time
from typing import TYPE_CHECKING, Any

import click

from elasti.api.names import SLEEP_ANNOTATION, WAKE_ANNOTATION
from elasti.api.states import NOT_READY, RESTING, SleepOutcome, State, state_text, state_word
from elasti.cli.exits import ExitCode, Failure
from elasti.cli.options import (
    choice_options,
    cluster_options,
    namespace_option,
    span,
    timeout_option,
)
from elasti.cli.rendering import echo

if TYPE_CHECKING:
    from elasti.api.types import ElastiService
    from elasti.cli.cluster import AccessOptions
    from elasti.cli.elastiservices import ElastiServiceWatch
    from elasti.cli.options import Choice
    from kubeloop.client import Client


_AWAKE = (State.SERVE, State.RELEASING)


class RequestKind(enum.Enum):
    """The kind of request; the value is its annotation."""

    WAKE = WAKE_ANNOTATION
    SLEEP = SLEEP_ANNOTATION

    @property
    def verb(self) -> str:
        """The word for it."""
        return self.name.lower()

    @property
    def outcome(self) -> str:
        """The state of the target after the request."""
        return state_word(State.PROXY if self is RequestKind.SLEEP else State.SERVE)


def _duration(text: str) -> dt.datetime:
    try:
        return dt.datetime.now(dt.UTC) + dt.timedelta(seconds=span(text))
    except OverflowError as error:
        raise click.BadParameter(str(error)) from error


def _moment(text: str) -> dt.datetime:
    from kubeloop.objects.times import parse_time

    now = dt.datetime.now().astimezone()
    try:
        if ":" not in text[:3]:
            return parse_time(text)
        at = dt.time.fromisoformat(text)
    except ValueError as error:
        raise click.BadParameter(
            f"{text!r} is not a time; write 18:00 or 2030-01-31T18:00:00Z"
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
    type=_duration,
    help="Keep it awake for this long, such as 3h or 90m, even if its triggers are quiet.",
)
@click.option(
    "--until",
    metavar="TIME",
    type=_moment,
    help="Keep it awake until this time: 18:00 (the next one, local time) or 2030-01-31T18:00:00Z.",
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
    removes it when an endpoint is ready. A target that is awake stays awake for another cooldown, and with
    --for or --until at least for that time; elasti resume ends it earlier.

    \b
    Examples:
      elasti wake web
      elasti wake web api -n shop --wait --timeout 60
      elasti wake web --for 3h
      elasti wake -l team=shop --until 18:00
    """
    from elasti.cli.running import run_to_end

    if duration and until:
        raise click.UsageError("give --for or --until, not both")
    kept = duration or until
    if kept is not None and kept <= dt.datetime.now(dt.UTC):
        raise click.UsageError("--until must be in the future, and --for above 0")
    run_to_end(lambda: _request(RequestKind.WAKE, choice, access, kept_until=kept, **options))


@click.command("sleep")
@choice_options
@namespace_option()
@click.option("--wait", is_flag=True, help="Wait until it is asleep or the request is refused.")
@timeout_option(120.0)
@cluster_options
def sleep(*, choice: Choice, access: AccessOptions, **options: Any) -> None:
    """Put the targets of ElastiServices to sleep now.

    The request skips the rest of the cooldown and ignores the triggers, this once. All other steps stay the same:
    the resolver joins the rotation first and settles, connections that reach it keep the target awake, other
    ElastiServices of the same target must agree, spec.enabledPeriod applies, and KEDA is paused. If one of
    them prevents sleep, the request is refused and nothing changes.

    The resolver does not see connections that were opened to a pod while the target was awake (WebSockets,
    gRPC streams, database sessions). They end with the pod.

    \b
    Examples:
      elasti sleep web
      elasti sleep web -n shop --wait
    """
    from elasti.cli.running import run_to_end

    run_to_end(lambda: _request(RequestKind.SLEEP, choice, access, **options))


@click.command("suspend")
@choice_options
@namespace_option()
@cluster_options
def suspend(*, choice: Choice, access: AccessOptions, namespace: str | None) -> None:
    """Wake targets once, then leave them alone until `elasti resume`.

    The resolver leaves the rotation, and neither requests nor triggers scale the targets. You need the right to
    update the ElastiService.

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
    """End `elasti suspend`, `elasti wake --for` and `elasti wake --until`.

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
                if (es := await objects.get(name)).spec.observes:
                    echo(
                        f"{name} is observed and was not changed; to let it sleep: {enforce_command(es)}"
                    )
                    continue
                await objects.patch(name, MergePatch(body))
                echo(f"{name} is {done}")

    run_to_end(change)


@dataclasses.dataclass(frozen=True, slots=True)
class RequestProgress:
    """The progress of a request: pending, done or refused."""

    over: bool = False
    refused: str = ""


def progress_of(kind: RequestKind, es: ElastiService, asked: str = "") -> RequestProgress:
    """Judge a request by what the operator reports; `asked` is the value of its annotation."""
    from elasti.api.view import why_of

    pending = kind.value in (es.metadata.annotations or {})
    state = es.status.state
    match kind:
        case RequestKind.WAKE if es.spec.suspend and not es.status.replicas:
            return RequestProgress(
                over=True, refused="it is suspended, so nothing scales it; run elasti resume first"
            )
        case RequestKind.WAKE if es.status.conditions and not state:
            return RequestProgress(
                over=True, refused=f"{why_of(es)}; the request stays until it can be met"
            )
        case RequestKind.WAKE if not pending and _slept_since(es, asked):
            text = f"it is asleep again: its cooldown of {es.spec.cooldown:g} s ended before an endpoint was seen ready;"
            return RequestProgress(over=True, refused=f"{text} add --for DURATION to keep it awake")
        case RequestKind.WAKE:
            return RequestProgress(over=not pending and state in _AWAKE and es.status.doze is None)
        case RequestKind.SLEEP:
            return _sleep_progress(es, asked)


def _slept_since(es: ElastiService, asked: str) -> bool:
    from kubeloop.objects.times import unix_seconds

    return 0 < unix_seconds(asked) < unix_seconds(es.status.asleep_since)


def _sleep_progress(es: ElastiService, asked: str) -> RequestProgress:
    from elasti.api.view import shown_state, why_of
    from kubeloop.objects.times import unix_seconds

    noted, state, wake = es.status.sleep_request, es.status.state, es.status.last_wake
    # A later request has replaced ours: its outcome is ours.
    if noted is not None and (
        noted.request == asked or unix_seconds(noted.request) > unix_seconds(asked)
    ):
        if noted.outcome is SleepOutcome.REFUSED:
            return RequestProgress(over=True, refused=noted.message or noted.reason)
        cause = f" ({wake.cause})" if wake is not None else ""
        rests = shown_state(es) in RESTING
        woken = f"it fell asleep and was woken again{cause}"
        return RequestProgress(over=True, refused="" if rests else woken)
    if SLEEP_ANNOTATION in (es.metadata.annotations or {}):
        return RequestProgress()
    # The request was withdrawn before an operator saw it, or the operator is older than this command.
    return RequestProgress(over=True, refused="" if state == State.PROXY else str(why_of(es)))


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
    """Request each, and with `wait` wait for all of them. Raises Failure."""
    import asyncio

    from elasti.api.wire import Ask
    from elasti.cli.elastiservices import ElastiServices
    from elasti.cli.running import connected
    from kubeloop.objects.patches import MergePatch

    async with connected(access) as client:
        objects = ElastiServices(client, namespace or client.namespace)
        names = await objects.chosen(choice)
        # If one does not exist, nothing is requested.
        for es in [await objects.get(name) for name in names]:
            if es.spec.observes:
                raise _is_observed(kind, es)
            if kind is RequestKind.SLEEP:
                _warn_of_cuts(es)
        body = MergePatch(Ask(kind.verb).patch(dt.datetime.now(dt.UTC), kept_until))
        asked = [await objects.patch(name, body) for name in names]
        if not wait:
            for es in asked:
                echo(f"{es.metadata.name}: {kind.verb} requested; follow it with elasti get")
            return
        until = asyncio.get_running_loop().time() + timeout
        for es in asked:
            await _RequestWait(kind, es).until_over(client, until)


def _is_observed(kind: RequestKind, es: ElastiService) -> Failure:
    to_sleep = f"To let it sleep: {enforce_command(es)}"
    return Failure(
        f"{es.metadata.name} is observed (spec.policy: Observe), so Elasti never scales it; nothing was requested",
        remedy="It is awake." if kind is RequestKind.WAKE else to_sleep,
    )


def enforce_command(es: ElastiService) -> str:
    """Return the command that ends observing."""
    patch = '{"spec":{"policy":"Enforce","suspend":false}}'
    return (
        f"kubectl patch elastiservice {es.metadata.name} -n {es.metadata.namespace} --type merge"
        f" -p '{patch}'"
    )


def _warn_of_cuts(es: ElastiService) -> None:
    """Warn of connections that will be cut, if a trigger reports recent use."""
    shown = [
        f"triggers[{index}] ({trigger.type})"
        for index, trigger in enumerate(es.status.triggers)
        if trigger.quiet_since is None and not trigger.last_error
    ]
    if shown and es.status.state in _AWAKE and es.spec.sleep.mode == "Zero":
        echo(
            f"{es.metadata.name}: {', '.join(shown)} reported traffic within the last minute;"
            " connections that are open to its pods will be cut",
            err=True,
        )


class _RequestWait:
    """Waits for the end of one request and reports its progress."""

    def __init__(self, kind: RequestKind, asked: ElastiService) -> None:
        self._kind = kind
        self._seen = asked
        self._text = (asked.metadata.annotations or {}).get(kind.value, "")
        self._shown = ("", "")
        self._began = time.monotonic()

    async def until_over(self, client: Client, deadline: float) -> None:
        """Wait, at most until `deadline` on the loop's clock. Raises Failure."""
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
            raise Failure(f"{meta.name} is not {outcome}: {step.refused}")
        echo(f"{meta.name} is {self._shown[1]} ({time.monotonic() - self._began:.1f} s)")

    async def _last_step(self, client: Client, changes: ElastiServiceWatch) -> RequestProgress:
        from kubeloop.objects.meta import compare_versions

        while not (step := progress_of(self._kind, self._seen, self._text)).over or (
            self._kind is RequestKind.SLEEP and not step.refused and await self._is_up(client)
        ):
            change = await changes.next()
            if change.deleted:
                return RequestProgress(over=True, refused="the ElastiService was deleted")
            versions = (es.metadata.resource_version for es in (change.es, self._seen))
            # The first list may be older than our own request.
            if compare_versions(*versions) > 0:
                self._seen = change.es
                self._report()
        return step

    async def _is_up(self, client: Client) -> bool:
        """Whether the target is up although its status, which may be seconds old, says asleep."""
        if self._seen.status.doze is not None:
            return False
        from elasti.cli.describe.collect import readable, target_summary
        from elasti.cli.describe.model import TargetSummary

        target = await readable(target_summary(client, self._seen))
        return isinstance(target, TargetSummary) and target.wanted > 0

    def _report(self) -> None:
        status = self._seen.status
        unknown = NOT_READY if status.conditions else "not seen by the operator yet"
        doze = status.doze.state if status.doze is not None else ""
        word = state_word(status.state, doze) or unknown
        if (status.state, word) == self._shown:
            return
        self._shown = (status.state, word)
        took = time.monotonic() - self._began
        text = state_text(status.state, doze) or word
        echo(f"{took:6.1f} s  {self._seen.metadata.name}: {text}", err=True)

    def _timed_out(self) -> Failure:
        from elasti.api.view import why_of

        name = self._seen.metadata.name
        if (self._seen.metadata.annotations or {}).get(self._kind.value) == self._text:
            return Failure(
                f"{name}: the operator has not carried out the request to {self._kind.verb} yet"
                f" (it is {self._shown[1]}); the request stays",
                code=ExitCode.TIMED_OUT,
                remedy="See what is wrong: elasti doctor",
            )
        return Failure(
            f"{name} is not {self._kind.outcome} yet (it is {self._shown[1]}): {why_of(self._seen)}",
            code=ExitCode.TIMED_OUT,
            remedy=f"See more: elasti describe {name}",
        )
