"""A target in memory: the data path's seam without a cluster behind it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elasti.resolver.proxy.statistics import TrafficStatistics
from elasti.resolver.proxy.upstream.interface import (
    HeldConnection,
    LocalAnswer,
    Refusal,
    RequestFacts,
    TcpWake,
    UpstreamAddress,
    WaitingPage,
)

if TYPE_CHECKING:
    from collections.abc import Callable


class MemoryUpstream:
    """Pods as a list, held connections as another; `release` and `refuse_all` end the waiting."""

    def __init__(self, *pods: UpstreamAddress, max_held: int = 100_000) -> None:
        self.pods = list(pods)
        self.max_held = max_held
        self.waiting: list[HeldConnection] = []
        self.arrivals = 0
        self.refusals: list[UpstreamAddress] = []
        self.stepping_aside = False
        self.page: WaitingPage | None = None
        self.tcp_wake: TcpWake = "Connect"
        self.ignored_by: list[str] = []
        self.detail = ""
        self.statistics = TrafficStatistics()
        self.rule: Callable[[RequestFacts], LocalAnswer | None] = lambda _: None

    def pick(self) -> UpstreamAddress | None:
        return self.pods[0] if self.pods else None

    def wait(self, waiter: HeldConnection, *, first: bool = False) -> Refusal | None:
        if len(self.waiting) >= self.max_held and not first:
            return Refusal.OVERFLOW
        self.waiting.insert(0 if first else len(self.waiting), waiter)
        return None

    def leave(self, waiter: HeldConnection) -> None:
        if waiter in self.waiting:
            self.waiting.remove(waiter)

    def refused(self, address: UpstreamAddress) -> None:
        self.refusals.append(address)
        if address in self.pods:
            self.pods.remove(address)

    def answer_locally(self, asked: RequestFacts) -> LocalAnswer | None:
        return self.rule(asked)

    def explain(self, refusal: Refusal) -> str:
        return refusal.message + self.detail

    def ignored(self, rule: str) -> None:
        self.ignored_by.append(rule)

    def arrived(self, now: float) -> None:
        self.arrivals += 1

    def release(self, *pods: UpstreamAddress) -> None:
        """Pods answer now: every held connection goes there."""
        self.pods = list(pods)
        waiting, self.waiting = self.waiting, []
        for waiter in waiting:
            waiter.admit(pods[0])

    def refuse_all(self, refusal: Refusal) -> None:
        """No pod will come."""
        waiting, self.waiting = self.waiting, []
        for waiter in waiting:
            waiter.give_up(refusal)
