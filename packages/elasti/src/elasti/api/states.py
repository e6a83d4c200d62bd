"""The states of the hand-over, in the machine's names and in a user's words. Pure."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Literal, NamedTuple, TypeAlias

Mode: TypeAlias = Literal["proxy", "serve"]
"""Who takes the traffic: the resolver, or the pods."""


class State(enum.StrEnum):
    """Where a Service's traffic goes, and where it will go next."""

    SERVE = "Serve"
    ENGAGING = "Engaging"
    DRAINING = "Draining"
    PARKING = "Parking"
    PROXY = "Proxy"
    WAKING = "Waking"
    RELEASING = "Releasing"

    @property
    def mode(self) -> Mode:
        """Who takes the traffic in this state."""
        return "serve" if self in (State.SERVE, State.ENGAGING, State.RELEASING) else "proxy"


class DozeState(enum.StrEnum):
    """Where a doze is: of the pods' requests, beside the hand-over's state."""

    FULL = "Full"
    SHRINKING = "Shrinking"
    DOZING = "Dozing"
    GROWING = "Growing"
    STUCK = "Stuck"


class SleepOutcome(enum.StrEnum):
    """How a request to sleep ended."""

    ASLEEP = "Asleep"
    REFUSED = "Refused"


class StateText(NamedTuple):
    """A state of the hand-over for people: a word, and what it means."""

    word: str
    meaning: str

    def __str__(self) -> str:
        return f"{self.word}: {self.meaning}"


# The names of the state machine stand in `elasti describe`, and nowhere else.
NOT_READY = "not ready"
"""The word for an ElastiService without a state: its spec, target or Service is wrong."""

OBSERVED = "observed"
"""The word for one that is awake because nothing is done about it."""

STATES: Mapping[str, StateText] = {
    State.SERVE: StateText("awake", "traffic goes straight to its pods"),
    State.ENGAGING: StateText("falling asleep", "the resolver joins the pods for a last check"),
    State.DRAINING: StateText("falling asleep", "its pods are out of rotation for a last check"),
    State.PARKING: StateText("falling asleep", "no request came; its replicas are set to 0"),
    State.PROXY: StateText("asleep", "the resolver takes its traffic"),
    State.WAKING: StateText("waking", "no pod is ready yet; the resolver holds what arrives"),
    State.RELEASING: StateText("awake", "pods are ready; the resolver leaves"),
}


# All of them serve; what changes is what their pods request.
DOZES: Mapping[str, StateText] = {
    DozeState.SHRINKING: StateText("dozing", "its pods serve; their requests shrink"),
    DozeState.DOZING: StateText("dozing", "its pods serve with small requests"),
    DozeState.GROWING: StateText("waking", "its pods serve; their requests grow back"),
    DozeState.STUCK: StateText("waking", "its pods serve; a node has no room for their requests"),
}


RESTING = (STATES[State.PROXY].word, DOZES[DozeState.DOZING].word)
"""The words for a target that gives its capacity back."""


def phase_of(state: State | None, doze: DozeState = DozeState.FULL) -> str:
    """Return the phase that status has: a user's word, written as one name."""
    word = state_word(state, doze) if state is not None else NOT_READY
    return word.title().replace(" ", "")


def state_text(state: str, doze: str = "") -> StateText | None:
    """Return a state for people; None if it is unknown."""
    return DOZES[doze] if state == State.SERVE and doze in DOZES else STATES.get(state)


def state_word(state: str, doze: str = "") -> str:
    """Return the user's word for a state; an unknown state is returned unchanged."""
    found = state_text(state, doze)
    return found.word if found is not None else state
