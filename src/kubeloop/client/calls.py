"""Requests whose answer is one object, in the representation that the caller chose."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Generic, TypedDict, TypeVar

import msgspec

from kubeloop.client.answers import undecodable
from kubeloop.client.request import write_query
from kubeloop.objects.envelopes import DecodeError

if TYPE_CHECKING:
    from collections.abc import Callable

    from kubeloop.client.answers import Response
    from kubeloop.client.request import Request
    from kubeloop.client.sender import Sender
    from kubeloop.objects.codec import Codec

T = TypeVar("T")
R = TypeVar("R")


class WriteOptions(TypedDict, total=False):
    """What every write takes as keywords.

    `dry_run`: check and answer, store nothing. `field_manager`: under which name the fields are
    owned; required by `apply`. `field_validation`: `Strict`, `Warn` or `Ignore` unknown fields.
    `timeout`: seconds for one attempt, instead of the client's.
    """

    dry_run: bool
    field_manager: str
    field_validation: str
    timeout: float | None


class _Kind(msgspec.Struct):
    kind: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class ObjectCalls(Generic[T]):
    """A sender and the codec for what comes back."""

    sender: Sender
    codec: Codec[T]

    async def call(self, request: Request, *, timeout: float | None = None) -> T:
        """Return the object that answers a request."""
        response = await self.sender.send(request, timeout=timeout)
        return decode(response, self.codec.decode)

    async def call_optional(self, request: Request, *, timeout: float | None = None) -> T | None:
        """Return the object that answers, or None where a mere Status says success."""
        response = await self.sender.send(request, timeout=timeout)
        if decode(response, msgspec.json.Decoder(_Kind).decode).kind == "Status":
            return None
        return decode(response, self.codec.decode)


def decode(response: Response, decoder: Callable[[bytes], R]) -> R:
    """Decode a body; raises `ProtocolError` that names the URL where it is something else."""
    try:
        return decoder(response.body)
    except (DecodeError, msgspec.MsgspecError) as error:
        raise undecodable(response, error) from error


def query_from(options: WriteOptions, *, force: bool = False) -> dict[str, str]:
    """Return the query of a write."""
    return write_query(
        dry_run=options.get("dry_run", False),
        field_manager=options.get("field_manager", ""),
        field_validation=options.get("field_validation", ""),
        force=force,
    )
