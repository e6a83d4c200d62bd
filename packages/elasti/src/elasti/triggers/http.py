"""Triggers that ask the target's own pods over HTTP whether they are busy.

Each pod is asked for one path, and its answer is read in one way: by its status, by the number at a JSON
pointer, or by an expression that the body has. Any other answer (a page of HTML, a redirect, a body without
an end, another status) is an error, which never lets a target sleep. Messages do not quote bodies: the
operator reaches pods that the author of a trigger may not.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from elasti.api.triggers.cluster import MAX_STATES, HttpMetadata
from elasti.safe_regex import compile_safely
from elasti.triggers.reader import ReadContext, ReaderSettings, TriggerReader, TriggerReading
from elasti.triggers.responses import (
    PodQueries,
    UnusableResponse,
    destinations_of,
    guarded_client,
    refuse_packed,
)
from kubeloop.http.client import Answer

_MAX_BYTES = 1 << 16
_SUCCESS, _REDIRECTS = range(200, 300), range(300, 400)


class HttpReader(TriggerReader):
    """Asks pods; keeps nothing between readings."""

    def __init__(self, queries: PodQueries) -> None:
        self._queries = queries

    async def read(self, metadata: HttpMetadata, context: ReadContext) -> TriggerReading:
        """Return the sum over all pods; a target that sleeps has no pods to ask, and is idle."""
        pods = context.pods()
        if not pods:
            none = TriggerReading(error="there is no pod to ask", pending=True)
            return TriggerReading(0.0) if context.asleep else none

        async def value(answer: Answer) -> float:
            return await _value(answer, metadata)

        answers = await self._queries.ask(pods, metadata.port, metadata.path, value)
        if isinstance(answers, str):
            return TriggerReading(error=answers)
        return TriggerReading(sum(answers))

    async def close(self) -> None:
        """Close connections."""
        await self._queries.close()


async def _value(answer: Answer, metadata: HttpMetadata) -> float:
    """Return the value of one pod's answer. Raises UnusableResponse and AnswerTooLong."""
    if answer.status == metadata.busy_status:
        return 1.0
    if answer.status not in _SUCCESS:
        hint = "; check the path"
        if answer.status in _REDIRECTS:
            hint = ", a redirect, which is not followed; name the path that it leads to"
        raise UnusableResponse(f"it answers {metadata.path} with {answer.status}{hint}")
    if metadata.busy_status:
        return 0.0
    refuse_packed(answer)
    body = await answer.body(limit=_MAX_BYTES)
    if metadata.expression:
        find = compile_safely(metadata.expression, most_states=MAX_STATES)
        # RE2 lets other threads run; a tenth of a second, at worst, is too long for the loop.
        found = await asyncio.to_thread(find, body.decode("utf-8", "replace"))
        return float(found is not None)
    assert metadata.pointer is not None
    try:
        document = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        kind = answer.header("content-type").partition(";")[0] or "no content type"
        raise UnusableResponse(
            f"its answer to {metadata.path} is not JSON ({kind}); name a path that"
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
            raise UnusableResponse(f"its answer has no value at {pointer}") from None
    match found:
        case bool() | int() | float():
            return float(found)
        case list() | dict():
            return float(len(found))
    raise UnusableResponse(f"its answer has {_kind(found)} at {pointer}, not a number")


def _kind(found: Any) -> str:
    return "null" if found is None else "text"


def make_reader(settings: ReaderSettings) -> HttpReader:
    """Make the reader."""
    return HttpReader(PodQueries(guarded_client(destinations_of(settings))))
