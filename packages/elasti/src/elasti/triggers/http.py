"""Triggers that ask the target's own pods over HTTP whether they are busy: "ask it before you stop it".

One path of every pod, and one way to read its answer: by its status, by the number at a JSON pointer, or by
an expression that is found in the body. What cannot be read so (a page of HTML, a redirect, a body without an
end, another status) is an error, which never lets a target sleep. No word of a body appears in a message: the
operator reaches pods that the author of a trigger may not.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta

from elasti.safe_regex import compile_safely
from elasti.triggers.registry import (
    ReadContext,
    ReaderSettings,
    Role,
    Threshold,
    TriggerMetadata,
    TriggerReader,
    TriggerReading,
    TriggerType,
)
from elasti.triggers.responses import (
    PodQueries,
    UnusableResponse,
    pod_session,
    refuse_packed,
    whole_body,
)

if TYPE_CHECKING:
    import aiohttp

_MAX_BYTES = 1 << 16
_MAX_STATES = 200
_WAYS = "busyStatus, pointer or expression"
_SUCCESS, _REDIRECTS = range(200, 300), range(300, 400)


class HttpMetadata(TriggerMetadata, frozen=True, kw_only=True):
    """What a path of each pod answers: a number for each pod, compared by their sum.

    By `busyStatus` it is 1 for a pod that answers with it, by `expression` 1 for one whose body has it, by
    `pointer` the number there (true is 1, a list or an object counts its members).
    """

    path: Annotated[str, Meta(pattern="^/", description="What each pod is asked for.")]
    port: Annotated[
        int | str, Meta(description="Where pods serve it: a name or number of the Service's port.")
    ] = 0
    busy_status: Annotated[
        int, Meta(description="A pod that answers with this status is busy, with 2xx it is not.")
    ] = 0
    pointer: Annotated[
        Annotated[str, Meta(pattern=r"^(/|\Z)")] | None,
        Meta(description="Where the answer's JSON has the number, such as /jobs/running."),
    ] = None
    expression: Annotated[
        str, Meta(description="A pod whose answer has it is busy; in the syntax of RE2.")
    ] = ""
    threshold: Threshold = 1

    def __post_init__(self) -> None:
        if isinstance(self.port, int) and not 0 <= self.port < 65536:
            raise ValueError(f"port {self.port} is none; write a name, or a number up to 65535")
        ways = (self.busy_status, self.pointer is not None, self.expression)
        if sum(map(bool, ways)) != 1:
            raise ValueError(f"give exactly one of {_WAYS}: what says that a pod is busy")
        if self.busy_status and not 200 <= self.busy_status < 600:
            raise ValueError(f"busyStatus {self.busy_status} is no status of an answer, 200 to 599")
        if self.expression:
            compile_safely(self.expression, most_states=_MAX_STATES)


class HttpReader(TriggerReader):
    """Asks pods; keeps nothing between readings."""

    def __init__(self, queries: PodQueries) -> None:
        self._queries = queries

    async def read(self, metadata: HttpMetadata, context: ReadContext) -> TriggerReading:
        """Return the sum over all pods; a target that sleeps has none to ask, and is idle."""
        pods = context.pods()
        if not pods:
            none = TriggerReading(error="there is no pod to ask", pending=True)
            return TriggerReading(0.0) if context.asleep else none

        async def value(response: aiohttp.ClientResponse) -> float:
            return await _value(response, metadata)

        answers = await self._queries.ask(pods, metadata.port, metadata.path, value)
        if isinstance(answers, str):
            return TriggerReading(error=answers)
        return TriggerReading(sum(answers))

    async def close(self) -> None:
        """Close connections."""
        await self._queries.close()


async def _value(response: aiohttp.ClientResponse, metadata: HttpMetadata) -> float:
    """Return what one pod's answer says. Raises UnusableResponse and ResponseTooLong."""
    if response.status == metadata.busy_status:
        return 1.0
    if response.status not in _SUCCESS:
        hint = "; is that the path?"
        if response.status in _REDIRECTS:
            hint = ", a redirect, and none is followed; name the path that it leads to"
        raise UnusableResponse(f"it answers {metadata.path} with {response.status}{hint}")
    if metadata.busy_status:
        return 0.0
    refuse_packed(response)
    body = await whole_body(response, limit=_MAX_BYTES)
    if metadata.expression:
        find = compile_safely(metadata.expression, most_states=_MAX_STATES)
        # RE2 lets other threads run; a tenth of a second, at worst, is too long for the loop.
        found = await asyncio.to_thread(find, body.decode("utf-8", "replace"))
        return float(found is not None)
    assert metadata.pointer is not None
    try:
        document = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise UnusableResponse(
            f"its answer to {metadata.path} is no JSON ({response.content_type}); name a path that"
            " answers with JSON, or use busyStatus or expression"
        ) from None
    return number_at(document, metadata.pointer)


def number_at(document: Any, pointer: str) -> float:
    """Return the number at a JSON pointer (RFC 6901). Raises UnusableResponse."""
    found = document
    for part in pointer.split("/")[1:]:
        token = part.replace("~1", "/").replace("~0", "~")
        try:
            found = found[int(token) if isinstance(found, list) and token.isdecimal() else token]
        except (LookupError, TypeError):
            raise UnusableResponse(f"its answer has nothing at {pointer}") from None
    match found:
        case bool() | int() | float():
            return float(found)
        case list() | dict():
            return float(len(found))
    raise UnusableResponse(f"what its answer has at {pointer} is no number, but {_kind(found)}")


def _kind(found: Any) -> str:
    return "null" if found is None else "text"


def _make_reader(_settings: ReaderSettings) -> HttpReader:
    return HttpReader(PodQueries(pod_session()))


TRIGGER = TriggerType(name="http", metadata=HttpMetadata, reader=_make_reader, role=Role.VETO)
