"""What sleep releases, counted over transitions, crashes and changes."""

from __future__ import annotations

import datetime as dt

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasti.api.conditions import WakeCause
from elasti.api.types import (
    CapacityStatus,
    DozeStatus,
    ElastiService,
    ElastiServiceSpec,
    ElastiServiceStatus,
    LastWake,
    ScaleTargetRef,
    SleepRecord,
    UsageStatus,
)
from elasti.api.usage import (
    MOST_RECENT,
    RequestingPod,
    UsageRow,
    counted,
    damped_cooldown,
    is_end_noted,
    is_flapping,
    pod_request,
    releases,
    usage_row,
    with_cause,
    with_present,
)
from kubeloop.objects.meta import JsonObject, ObjectMeta
from kubeloop.objects.times import format_time

BEGAN = dt.datetime(2030, 1, 1, tzinfo=dt.UTC)
CAPACITY = CapacityStatus(1500, 3 * 2**30)


def at(seconds: float) -> dt.datetime:
    return BEGAN + dt.timedelta(seconds=seconds)


def observed(
    old: ElastiServiceStatus,
    seconds: float,
    *,
    asleep: bool,
    empty: bool | None = None,
    capacity: CapacityStatus | None = CAPACITY,
) -> ElastiServiceStatus:
    """The status that a leader writes which sees this."""
    now, gone = at(seconds), asleep if empty is None else empty
    found = counted(old, asleep=asleep, empty=gone, capacity=capacity, now=now)
    return msgspec.structs.replace(
        old,
        usage=found.usage,
        released_since=found.released_since,
        recent=found.recent,
        capacity=capacity,
        asleep_since=(old.asleep_since or format_time(now)) if asleep else None,
    )


# A span of time: how long, whether the target is truly at zero, and whether the leader dies in it
# before it has written anything.
SPANS = st.lists(
    st.tuples(st.integers(1, 100_000), st.booleans(), st.booleans()), min_size=1, max_size=60
)


@given(SPANS)
def test_released_and_awake_make_up_all_the_time_whatever_crashes(spans):
    status, clock = observed(ElastiServiceStatus(), 0, asleep=False), 0
    truly_zero, unseen, crashed = 0, 0, False
    was_zero = noted = False
    for seconds, zero, crash in spans:
        if was_zero and not zero and not is_end_noted(status):
            # Every replica that wakes it notes that, leader or not.
            wake = LastWake(format_time(at(clock)), WakeCause.REQUEST)
            status = msgspec.structs.replace(status, last_wake=wake)
        if not crash:
            status = observed(status, clock, asleep=zero)
        noted = zero and (noted or not crash)
        unseen += seconds if zero and not noted else 0
        crashed = crashed or crash
        truly_zero += seconds if zero else 0
        was_zero = zero
        clock += seconds
    found = with_present(observed(status, clock, asleep=was_zero), at(clock))
    assert found is not None
    released, rest = divmod(found.cpu_millicore_seconds, CAPACITY.cpu_millicores)
    awake = clock - released
    assert rest == 0
    assert released * CAPACITY.memory_bytes == found.memory_byte_seconds
    assert (released + awake) * CAPACITY.cpu_millicores == clock * CAPACITY.cpu_millicores
    assert truly_zero - unseen <= released <= truly_zero, "never more than was released"
    assert crashed or released == truly_zero
    # A history adds up to what is counted, also of sleeps that are no longer recorded.
    end = observed(status, clock, asleep=was_zero)
    parts = list(releases(end, at(clock)))
    assert all(0 <= one.begin <= one.end <= BEGAN.timestamp() + clock for one in parts)
    cpu = sum((one.end - one.begin) * one.cpu_millicores for one in parts)
    # A wake-up that begins and ends while no operator leads is not recorded: two sleeps are shown as one.
    assert cpu >= found.cpu_millicore_seconds - 1
    assert crashed or cpu == pytest.approx(found.cpu_millicore_seconds)


HOUR = 3600
GUARANTEE = CapacityStatus(899, 0)


def dozed(
    old: ElastiServiceStatus, seconds: float, doze: DozeStatus | None, *, woken: str = ""
) -> ElastiServiceStatus:
    """The status after a leader saw a doze, or its end."""
    back = GUARANTEE if doze is not None else CapacityStatus()
    found = counted(
        old,
        asleep=False,
        empty=False,
        capacity=CAPACITY,
        now=at(seconds),
        woken=woken,
        doze=doze,
        dozed=back,
    )
    return msgspec.structs.replace(old, doze=doze, **found._asdict())


def test_a_doze_counts_what_it_gave_back_and_its_end_is_a_wake_up():
    doze = DozeStatus("Dozing", format_time(at(0)))
    status = dozed(ElastiServiceStatus(), 0, doze)
    present = with_present(status, at(HOUR))
    assert present is not None
    assert (present.dozing_seconds, present.wakes) == (HOUR, 0)
    assert (present.cpu_millicore_seconds, present.memory_byte_seconds) == (HOUR * 899, 0)
    again = dozed(
        status, HOUR, DozeStatus("Dozing", format_time(at(HOUR))), woken=format_time(at(HOUR))
    )
    ended = dozed(again, 3 * HOUR, None, woken=format_time(at(2 * HOUR)))
    usage = with_present(ended, at(9 * HOUR))
    assert usage is not None
    assert (usage.dozing_seconds, usage.wakes, usage.asleep_seconds) == (2 * HOUR, 2, 0)
    assert usage.cpu_millicore_seconds == 2 * HOUR * 899
    assert [one.mode for one in ended.recent] == ["Doze", "Doze"]


def test_a_doze_that_ends_at_zero_is_not_a_wake_up():
    status = dozed(ElastiServiceStatus(), 0, DozeStatus("Dozing", format_time(at(0))))
    found = dozed(status, HOUR, None).usage
    assert found is not None
    assert (found.dozing_seconds, found.wakes) == (HOUR, 0)


@pytest.mark.parametrize("dozes", [False, True])
def test_within_a_window_a_doze_releases_no_memory_that_it_kept(dozes: bool):
    day = 24 * HOUR
    record = SleepRecord(format_time(at(0)), format_time(at(day)), mode="Doze")
    slept = SleepRecord(format_time(at(day)), format_time(at(2 * day)))
    status = ElastiServiceStatus(
        usage=UsageStatus(format_time(at(-30 * day)), dozing_seconds=day, asleep_seconds=day),
        capacity=GUARANTEE if dozes else CAPACITY,
        doze=DozeStatus("Dozing", format_time(at(3 * day))) if dozes else None,
        released_since=format_time(at(3 * day)) if dozes else None,
        recent=(record, slept),
    )
    spec = ElastiServiceSpec(ScaleTargetRef("apps/v1", "Deployment", "web"), "web")
    es = ElastiService(spec, ObjectMeta(name="web"), status)
    row = usage_row(es, at(4 * day), dt.timedelta(days=7))
    assert row is not None
    assert (row.asleep_seconds, row.dozing_seconds) == (day, day * (2 if dozes else 1))
    assert row.memory_gib_hours == (0 if dozes else 24 * 3)
    assert row.cpu_core_hours == pytest.approx(72 * 0.899 if dozes else 48 * 1.5)


def test_pods_that_are_leaving_still_request():
    status = observed(ElastiServiceStatus(), 0, asleep=True, empty=False)
    assert status.released_since is None
    status = observed(status, 30, asleep=True)
    found = with_present(status, at(40))
    assert found is not None
    assert (found.asleep_seconds, found.cpu_millicore_seconds) == (40, 10 * 1500)


def test_a_change_of_requests_during_a_sleep_begins_another_period():
    status = observed(ElastiServiceStatus(), 0, asleep=True)
    status = observed(status, 100, asleep=True, capacity=CapacityStatus(500, 0))
    found = with_present(status, at(110))
    assert found is not None
    assert found.cpu_millicore_seconds == 100 * 1500 + 10 * 500


def test_a_target_without_requests_is_not_counted():
    status = observed(ElastiServiceStatus(), 0, asleep=True, capacity=None)
    found = with_present(status, at(100))
    assert found is not None
    assert (found.asleep_seconds, found.cpu_millicore_seconds) == (100, 0)


def test_the_last_sleeps_are_kept_with_what_ended_them():
    status = ElastiServiceStatus()
    for cycle in range(MOST_RECENT + 5):
        status = observed(status, cycle * 100, asleep=True)
        status = observed(status, cycle * 100 + 50, asleep=False)
    assert len(status.recent) == MOST_RECENT
    wake = LastWake(status.recent[-1].until, WakeCause.REQUEST, seconds=2.5)
    last = with_cause(status.recent, wake)[-1]
    assert (last.cause, last.seconds) == ("Request", 2.5)
    older = LastWake(format_time(at(0)), WakeCause.MANUAL)
    assert with_cause(status.recent, older) == status.recent


def container(cpu: str = "", memory: str = "", **more: object) -> JsonObject:
    named = {name: text for name, text in (("cpu", cpu), ("memory", memory)) if text}
    return {"resources": {"requests": named}, **more}


SIDECAR = {"restartPolicy": "Always"}


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        ({"containers": [{}]}, None),
        ({"containers": [container("100m", "1Ki"), container("1", "1Ki")]}, (1100, 2048)),
        ({"containers": [container("100m")], "initContainers": [container("2")]}, (2000, 0)),
        (
            {
                "containers": [container("1")],
                "initContainers": [container("500m", **SIDECAR), container("1")],
            },
            (1500, 0),
        ),
        ({"containers": [{"resources": {"limits": {"cpu": "2"}}}]}, (2000, 0)),
        (
            {"containers": [{"resources": {"requests": {"cpu": "0"}, "limits": {"cpu": "2"}}}]},
            None,
        ),
        ({"containers": [{"resources": {"requests": {"nvidia.com/gpu": "1"}}}]}, None),
        ({"containers": [{"resources": None}, {"resources": {"requests": {"cpu": "?"}}}]}, None),
        ({"containers": [container("1")], "overhead": {"cpu": "250m"}}, (1250, 0)),
        ({"containers": [container("1")], "resources": {"requests": {"cpu": 3}}}, (3000, 0)),
    ],
)
def test_a_pod_requests_what_the_scheduler_keeps_free(pod, expected):
    found = pod_request(msgspec.convert(pod, RequestingPod))
    assert found == (CapacityStatus(*expected) if expected else None)


def service(status: ElastiServiceStatus) -> ElastiService:
    spec = ElastiServiceSpec(ScaleTargetRef("apps/v1", "Deployment", "web"), "web")
    return ElastiService(spec, ObjectMeta(name="web", namespace="shop"), status)


def row(status: ElastiServiceStatus, now: float, days: float | None = None) -> UsageRow:
    window = None if days is None else dt.timedelta(days=days)
    found = usage_row(service(status), at(now), window)
    assert found is not None
    return found


def test_a_report_says_from_when_it_counts():
    status = observed(ElastiServiceStatus(), 0, asleep=False)
    assert usage_row(service(ElastiServiceStatus()), at(0), None) is None
    status = observed(status, 0, asleep=True)
    status = observed(status, 86400, asleep=False)
    status = observed(status, 9 * 86400, asleep=True)
    everything = row(status, 10 * 86400)
    assert (everything.since, everything.asleep_seconds) == (at(0), 2 * 86400)
    assert everything.cpu_core_hours == pytest.approx(2 * 24 * 1.5)
    assert row(status, 10 * 86400, days=30) == everything, "counting began within the window"
    week = row(status, 10 * 86400, days=7)
    assert (week.since, week.asleep_seconds, week.wakes) == (at(3 * 86400), 86400, 0)
    assert week.memory_gib_hours == pytest.approx(24 * 3)


def test_a_window_begins_no_earlier_than_the_recorded_sleeps():
    sleeps = tuple(
        SleepRecord(format_time(at(day * 86400)), format_time(at(day * 86400 + 3600)))
        for day in range(10, 10 + MOST_RECENT)
    )
    status = observed(ElastiServiceStatus(), 0, asleep=False)
    status = msgspec.structs.replace(status, recent=sleeps)
    found = row(status, 30 * 86400, days=25)
    assert (found.since, found.wakes) == (at(10 * 86400), MOST_RECENT)


def test_what_is_older_than_the_recorded_sleeps_is_spread_over_its_time():
    status = observed(ElastiServiceStatus(), 0, asleep=False)
    for day in range(30):
        status = observed(status, day * 86400 + 3600, asleep=True)
        status = observed(status, day * 86400 + 3600 * 7, asleep=False)
    first, *recorded = releases(status, at(30 * 86400))
    assert len(recorded) == MOST_RECENT
    assert all(one.cpu_millicores == 1500 for one in recorded)
    assert first.begin == BEGAN.timestamp()
    assert first.end == recorded[0].begin == at(10 * 86400 + 3600).timestamp()
    assert (first.end - first.begin) * first.cpu_millicores == pytest.approx(10 * 6 * HOUR * 1500)
    assert not list(releases(ElastiServiceStatus(), at(0)))


def sleeps(*spans: tuple[int, int], cause: str = "Request") -> tuple[SleepRecord, ...]:
    """Sleeps that begin so many minutes after BEGAN, and last so many seconds."""
    return tuple(
        SleepRecord(
            format_time(BEGAN + dt.timedelta(minutes=begin)),
            format_time(BEGAN + dt.timedelta(minutes=begin, seconds=seconds)),
            cause,
            1.0,
        )
        for begin, seconds in spans
    )


STEADY = sleeps((0, 20), (16, 22), (32, 19), (48, 30), (64, 20))


@pytest.mark.parametrize(
    ("recent", "flaps"),
    [
        (STEADY, True),
        (STEADY[1:], False),
        (sleeps((0, 20), (16, 22), (32, 300), (48, 30), (64, 20)), False),
        (sleeps((0, 20), (16, 22), (60, 19), (75, 30), (200, 20)), False),
        (sleeps((0, 20), (16, 22), (32, 19), (48, 30), (64, 20), cause="Manual"), False),
        (sleeps((0, 70), (2, 70), (4, 70), (6, 70), (8, 70)), False),
        (sleeps((0, 50), (2, 50), (4, 50), (6, 50), (8, 50)), True),
    ],
)
def test_steady_short_sleeps_are_flapping(recent: tuple[SleepRecord, ...], flaps: bool):
    assert is_flapping(ElastiServiceStatus(recent=recent), BEGAN) is flaps


def test_a_sleep_that_lasts_ends_the_flapping():
    status = ElastiServiceStatus(recent=STEADY, asleep_since=format_time(BEGAN))
    assert is_flapping(status, BEGAN + dt.timedelta(seconds=100))
    assert not is_flapping(status, BEGAN + dt.timedelta(seconds=200))


def test_damping_does_not_end_what_it_damps():
    damped = sleeps((0, 20), (16, 22), (32, 19), (48, 30), (64, 20), (124, 20), (184, 25))
    assert is_flapping(ElastiServiceStatus(recent=damped), BEGAN)
    ended = (*damped, *sleeps((244, 500)))
    assert not is_flapping(ElastiServiceStatus(recent=ended), BEGAN)
    other = (*damped, *sleeps((244, 20), cause="Manual"))
    assert not is_flapping(ElastiServiceStatus(recent=other), BEGAN)


@pytest.mark.parametrize(("cooldown", "damped"), [(30, 120), (900, 3600), (7200, 10800)])
def test_a_damped_cooldown_is_bounded(cooldown: float, damped: float):
    assert damped_cooldown(cooldown) == damped
