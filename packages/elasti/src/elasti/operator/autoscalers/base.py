"""What owns a target's replicas while it is awake, and must not fight over it while it sleeps.

An `Autoscaler` is one kind of them: how to pause and resume it, what to warn of, which rights it
takes. `Autoscalers` finds the one that an ElastiService names in `spec.autoscaler`.

What was paused is owed a resume until that succeeds, also where the ElastiService names it no
more, and across restarts: `AutoscalerState` keeps it in memory, an annotation of the ElastiService
keeps it for the next leader. The annotation is written before the pause.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from elasti.api.types import ElastiServiceSpec, is_object_name

if TYPE_CHECKING:
    from collections.abc import Iterable

    from elasti.api.rbac import PolicyRule
    from elasti.operator.report.conditions import Finding
    from kubeloop.client.client import Client

# Entries of the annotation without a type were written before there was more than one.
_UNTYPED = "keda"
_FIRST_RETRY = 0.5
_LONGEST_RETRY = 60.0


class AutoscalerRef(NamedTuple):
    """One autoscaler object, by the type that `spec.autoscaler` gives it, and its name."""

    type: str
    name: str

    def __str__(self) -> str:
        return self.name if self.type == _UNTYPED else f"{self.type}/{self.name}"

    @classmethod
    def parse(cls, text: str) -> AutoscalerRef:
        """Read what `str` writes."""
        kind, _, name = text.rpartition("/")
        return cls(kind or _UNTYPED, name)


class Autoscaler:
    """One kind of autoscaler. By default it needs nothing and has nothing to warn of.

    `pauses`: it must be paused before its target is parked, and resumed when the target is up.
    `resume_failure`: reason and message of the event where it could not be resumed.
    """

    type: ClassVar[str]
    rules: ClassVar[tuple[PolicyRule, ...]] = ()
    pauses: ClassVar[bool] = False
    resume_failure: ClassVar[tuple[str, str]] = (
        "FailedToResumeAutoscaler",
        "the autoscaler could not be resumed:",
    )

    def __init__(self, client: Client) -> None:
        self.client = client

    async def pause(self, namespace: str, name: str) -> str:
        """Stop it, and wait until it has; returns why it goes on, or nothing. Raises KubeError."""
        return ""

    async def resume(self, namespace: str, name: str) -> None:
        """Let it work again if we stopped it; safe to repeat. Raises KubeError."""

    async def warnings(self, namespace: str, name: str) -> list[Finding]:
        """Return what may surprise a user. Raises KubeError."""
        return []

    async def minimum(self, namespace: str, name: str) -> int | None:
        """Return the fewest replicas that it lets an awake target have, where known. Raises KubeError."""
        return None


class Autoscalers:
    """The kinds that there are, by type."""

    def __init__(self, client: Client, kinds: Iterable[type[Autoscaler]]) -> None:
        self._by_type = {kind.type: kind(client) for kind in kinds}

    def pausable(self, spec: ElastiServiceSpec) -> AutoscalerRef | None:
        """Return what has to be paused while the target sleeps; None for nothing."""
        named = spec.autoscaler
        if named is None or not self._by_type[named.type].pauses:
            return None
        return AutoscalerRef(named.type, named.name)

    async def pause(self, namespace: str, ref: AutoscalerRef) -> str:
        """Stop one; returns why it goes on, or nothing. Raises KubeError."""
        return await self._by_type[ref.type].pause(namespace, ref.name)

    async def resume(self, namespace: str, ref: AutoscalerRef) -> None:
        """Let one work again. Raises KubeError."""
        # The annotation may come from a version that had another kind; there is nothing to do then.
        if (found := self._by_type.get(ref.type)) is not None:
            await found.resume(namespace, ref.name)

    def resume_failure(self, ref: AutoscalerRef) -> tuple[str, str]:
        """Return reason and message of the event where one could not be resumed."""
        return self._by_type[ref.type].resume_failure

    async def minimum(self, namespace: str, spec: ElastiServiceSpec) -> int:
        """Return the fewest replicas that the one which is named gives an awake target. Raises KubeError."""
        named = spec.autoscaler
        found = await self._by_type[named.type].minimum(namespace, named.name) if named else None
        return found or 0

    async def warnings(self, namespace: str, spec: ElastiServiceSpec) -> tuple[Finding, ...]:
        """Return what may surprise the user of the one that is named. Raises KubeError."""
        named = spec.autoscaler
        if named is None:
            return ()
        return tuple(await self._by_type[named.type].warnings(namespace, named.name))


@dataclasses.dataclass(slots=True)
class AutoscalerState:
    """What one ElastiService's autoscalers are owed. Written here alone.

    `resumed`: the one that is named works, as far as we have to do with it; not known after a start.
    `retry_at` is the loop's time.
    """

    paused: frozenset[AutoscalerRef] = frozenset()
    resumed: bool = False
    failures: int = 0
    retry_at: float = -math.inf

    @property
    def annotation(self) -> str:
        """What may be paused, for the next leader."""
        return ",".join(sorted(map(str, self.paused)))

    def recall(self, annotation: str) -> None:
        """Take over what the former leader wrote down."""
        refs = (AutoscalerRef.parse(text) for text in annotation.split(","))
        # Others may write annotations, too: what cannot be a name was never paused.
        self.paused = frozenset(ref for ref in refs if is_object_name(ref.name))

    def owed(self, named: AutoscalerRef | None) -> tuple[AutoscalerRef, ...]:
        """Return what must work again and may not do so yet, once the target is awake."""
        found = set(self.paused)
        if named is not None and not self.resumed:
            found.add(named)
        return tuple(sorted(found))

    def note_park(self, named: AutoscalerRef | None) -> None:
        """A park begins: what is named will be paused."""
        self.resumed = False
        if named is not None:
            self.paused |= {named}

    def note_resumed(self, ref: AutoscalerRef, named: AutoscalerRef | None) -> None:
        """One works again."""
        self.failures = 0
        self.resumed = self.resumed or ref == named
        self.paused -= {ref}

    def note_failure(self, now: float) -> None:
        """One could not be resumed; the next try comes ever later."""
        self.failures += 1
        self.retry_at = now + retry_delay(self.failures)


def retry_delay(failures: int) -> float:
    """Return how long to wait before the next try, after so many failures."""
    return min(_FIRST_RETRY * 2.0 ** min(failures - 1, 10), _LONGEST_RETRY)
