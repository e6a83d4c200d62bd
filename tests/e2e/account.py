"""The sums of a scenario: what was sent, lost, held. Pure.

A request is lost when it was refused, reset, unanswered in time, answered with an error or with another
request's body, or executed twice. Some losses nobody can prevent: those of a process that was killed,
and of connections that a node sends to a pod that is dead already. A scenario that kills says when
(`Window`), and those are counted apart.
"""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from tests.e2e.prober.plan import Fault, Record, Summary

_UNPREVENTABLE = (Fault.REFUSED, Fault.RESET)
_BAD_GATEWAY = 502
MOST_LAG = 2.0
"""How late, in seconds, 99 of 100 requests may be sent before a run says nothing."""


@dataclasses.dataclass(frozen=True, slots=True)
class Window:
    """A time in which a dead pod could still be met, and why."""

    began: float
    ended: float
    why: str
    #: How many requests it may explain: what was lost beyond that is lost.
    most: float
    #: A node was lost: what was sent to it in the window gets no answer at all.
    silent: bool = False

    def explains(self, record: Record) -> bool:
        """Whether a request failed because of it: as connections to the dead do, and then."""
        if self.silent and record.fault is Fault.TIMEOUT:
            return self.began <= record.sent <= self.ended
        kind = record.fault in _UNPREVENTABLE or record.status == _BAD_GATEWAY
        return kind and self.began <= record.answered <= self.ended


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """The sums; times in seconds."""

    sent: int
    lost: Mapping[str, int]
    apart: int
    held: int
    via_resolver: int
    reused: int
    hold_p50: float
    hold_p99: float
    hold_max: float
    answer_p50: float
    answer_p99: float
    lag_p99: float
    lag_max: float
    prober_cpu: float
    examples: Sequence[str]

    @property
    def lost_in_all(self) -> int:
        """How many were lost, without those that are counted apart."""
        return sum(self.lost.values())

    @property
    def is_valid(self) -> bool:
        """Whether the prober kept its schedule and sent everything, so that figures say something."""
        return self.lag_p99 <= MOST_LAG and Fault.OWN.value not in self.lost


def settle(
    records: Sequence[Record],
    summaries: Sequence[Summary],
    executed: Mapping[str, Sequence[str]],
    windows: Sequence[Window] = (),
) -> Account:
    """Return the account of all that was sent; `executed` names, by id, the pods that executed it."""
    lost: list[Record] = []
    excused = dict.fromkeys(windows, 0)
    for record in (_checked(record, executed) for record in records):
        if record.fault is Fault.NONE:
            continue
        for window in windows:
            if window.explains(record) and excused[window] < window.most:
                excused[window] += 1
                break
        else:
            lost.append(record)
    holds = sorted(record.held for record in records if record.held is not None)
    takes = sorted(r.answered - r.sent for r in records if r.fault is Fault.NONE)
    lags = sorted(record.sent - record.due for record in records)
    return Account(
        sent=len(records),
        lost=dict(Counter(record.fault.value for record in lost)),
        apart=sum(excused.values()),
        held=len(holds),
        via_resolver=sum(record.via_resolver for record in records),
        reused=sum(record.reused for record in records),
        hold_p50=percentile(holds, 0.5),
        hold_p99=percentile(holds, 0.99),
        hold_max=percentile(holds, 1.0),
        answer_p50=percentile(takes, 0.5),
        answer_p99=percentile(takes, 0.99),
        lag_p99=percentile(lags, 0.99),
        lag_max=percentile(lags, 1.0),
        prober_cpu=sum(summary.cpu_share for summary in summaries),
        examples=[described(record) for record in lost[:10]],
    )


def _checked(record: Record, executed: Mapping[str, Sequence[str]]) -> Record:
    """Return the record with a fault where the apps' own books differ from its answer."""
    pods = executed.get(record.id, ())
    if len(pods) > 1:
        record.fault, record.detail = Fault.TWICE, f"by {', '.join(pods)}; {record.detail}"
    elif record.fault is Fault.NONE and list(pods) != [record.pod]:
        record.fault, record.detail = Fault.BODY, f"{record.pod} answered, {pods} executed"
    return record


def percentile(ordered: Sequence[float], part: float) -> float:
    """Return the value that this part of an ordered sequence does not exceed; 0 of an empty one."""
    if not ordered:
        return 0.0
    return ordered[min(int(len(ordered) * part), len(ordered) - 1)]


def read_executed(directory: Path) -> dict[str, list[str]]:
    """Read the apps' books: by request id, the pods that executed it."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for path in sorted(directory.iterdir()):
        pod = path.name.rpartition(".")[0]
        for line in path.read_text().splitlines():
            found[line.partition(" ")[2]].append(pod)
    return found


def described(record: Record) -> str:
    """Return a lost request in words."""
    kept = "kept" if record.reused else "new"
    return (
        f"{record.fault.value}: {record.method} {record.id} over a {kept} connection, sent at"
        f" {record.sent:.3f}, failed at {record.answered:.3f}: {record.detail}"
    )


def merged(windows: Iterable[Window]) -> str:
    """Say why some losses are counted apart."""
    return "; ".join(dict.fromkeys(window.why for window in windows))
